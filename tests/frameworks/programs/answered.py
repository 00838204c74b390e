"""A program of this folder, answered from a file: ``answered.py RUN.json PROGRAM VARIANT``."""

import pathlib
import runpy
import sys

from stepwise.testing import recorded

_, path, program, *sys.argv[1:] = sys.argv
with recorded(path, strict=True):
    runpy.run_path(str(pathlib.Path(__file__).with_name(program)), run_name="__main__")
