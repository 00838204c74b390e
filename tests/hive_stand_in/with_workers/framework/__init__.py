"""The stand-in of hive v0.10 and later: worker agents execute the nodes."""

import pathlib

__path__.append(str(pathlib.Path(__file__).parents[2] / "framework"))
