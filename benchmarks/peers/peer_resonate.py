"""Resonate: only what it costs to import, since its server comes from no package registry."""

from __future__ import annotations

import workloads
from harness import Peer


class Resonate(Peer):
    """Without the server its promises are kept in memory."""

    name = "resonate"
    distribution = "resonate-sdk"
    imports = "import resonate"
    only_import = "its server is a download; alone it keeps nothing"


if __name__ == "__main__":
    workloads.main(Resonate)
