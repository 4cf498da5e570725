"""Tests of the bed's own pieces run everywhere; those on a cluster only by `make test-cluster`, which sets the variable."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("LSDFLOW_ON_CLUSTER") else ["on_cluster"]
