"""Temporal: only what it costs to import, since its server comes from no package registry."""

from __future__ import annotations

import workloads
from harness import Peer


class Temporal(Peer):
    """``WorkflowEnvironment.start_local()`` downloads the server's binary."""

    name = "temporal"
    distribution = "temporalio"
    imports = "import temporalio.client, temporalio.worker, temporalio.workflow"
    only_import = "its server is a download, in no package registry"


if __name__ == "__main__":
    workloads.main(Temporal)
