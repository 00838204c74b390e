"""Random programs that ask which recorded outcome answers which call.

``programs.py`` draws a program: several objects (instances of many kinds of classes, closures,
steps made in a loop, partials, functions of one name, child workflows) with equal calls on them,
in sequence, in the order of a set, beside each other, in blocks that replay and in places where
the function is entered in its middle.  ``judge.py`` kills it, runs it again until it ends, settles
what is in doubt by the ledger, and compares the whole with the program without the library.
``rules.py`` puts other rules into the library's place: controls that must fail.
``python -m identity FIRST [LAST]`` in ``tests/programs`` does it for these seeds.
"""
