"""Texts and programs of the images are tested everywhere; what needs an engine by `make test-containers` alone."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("LSDFLOW_WITH_ENGINE") else ["with_engine"]
# Another 2 GB to build; `make test-containers-tensorflow` asks for it.
if not os.environ.get("LSDFLOW_WITH_TENSORFLOW"):
    collect_ignore.append("with_engine/test_tensorflow_variant.py")
