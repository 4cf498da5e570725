"""Training with TensorFlow: the same networks, batches, losses and bundles as with torch."""

import os

# TensorFlow reads this variable on import; 2 hides information and warnings of its C++ code
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
