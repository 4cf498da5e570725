"""The own pieces of the bed are tested everywhere; what needs a cluster by `make test-cluster` alone."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("LSDFLOW_ON_CLUSTER") else ["on_cluster"]
