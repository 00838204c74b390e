"""Changes that a call makes to what it was given: found exactly, recorded by path, put back.

``layouts`` knows how the objects of a class are looked at.  ``snapshots`` holds what the arguments,
``self`` and captured variables of a call hold before its body, at any depth, and finds what is
different afterwards.  ``edits`` describes one change of one object, and repeats it on another.

The modules, each importing only from those before it::

    layouts snapshots edits
"""
