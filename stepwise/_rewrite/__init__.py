"""Functions that can be entered in the middle: pure syntax tree in, function out.

Knows no store and no run.  ``rewrite(function)`` gives a copy that runs as the original, unless
somebody gives it a frame, which is asked to save at statement boundaries, and can begin at one::

    class Recorder(Frame):
        def save(self, number, values):     # a point was reached while ``self.due``
            self.last = number, {**values}

    rewritten = rewrite(agent)
    first = Recorder()
    first.due = True
    pending.set(first)                      # taken by the next rewritten function to be entered
    rewritten("task")                       # dies, after some saves

    second = Recorder()
    second.target, second.values = first.last
    pending.set(second)
    rewritten("task")                       # goes on after that statement, with those locals

``source``     a function's source, taken when its decorator runs, and its syntax tree
``positions``  structural positions of statements, what follows them, a fingerprint of the code
``ahead``      what a statement names and calls
``scope``      declarations, and the hidden names
``bound_once`` variables that one call makes
``transform``  the rewrite of a body
``frame``      what the rewritten function asks while it runs
``build``      from the rewritten tree to a function
``cells``      what a notebook's cell reads, binds and defines; imported by who needs it
``wrappers``   whose parameters a call of a wrapped function fills in; imported by who needs it

The modules, each importing only from those before it::

    source positions ahead frame bound_once scope transform build cells wrappers
"""

from __future__ import annotations

from stepwise._rewrite.ahead import Ahead
from stepwise._rewrite.bound_once import Made
from stepwise._rewrite.build import Rewritten, UnsupportedError, build, rewrite
from stepwise._rewrite.frame import Frame, pending
from stepwise._rewrite.positions import (
    Place,
    Points,
    finally_lines,
    fingerprint,
    following_line,
    function_like,
    functions_named,
    handler_at,
    prefix_fingerprint,
)
from stepwise._rewrite.scope import visited_in
from stepwise._rewrite.source import FunctionNode, Source, capture
from stepwise._rewrite.transform import Point

__all__ = [
    "Ahead",
    "Frame",
    "FunctionNode",
    "Made",
    "Place",
    "Point",
    "Points",
    "Rewritten",
    "Source",
    "UnsupportedError",
    "build",
    "capture",
    "finally_lines",
    "fingerprint",
    "following_line",
    "function_like",
    "functions_named",
    "handler_at",
    "pending",
    "prefix_fingerprint",
    "rewrite",
    "visited_in",
]
