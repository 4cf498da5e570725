"""Training with TensorFlow: the same networks, batches, losses and bundles as with torch."""

import os

# TensorFlow reads it when it is imported: no notices of its C++ parts
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
