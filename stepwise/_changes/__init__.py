"""Changes that a call makes to its arguments: found exactly, recorded by path, made again.

``layouts`` knows how to read and write the objects of a class.  ``snapshots`` copies the contents
of a call's arguments, ``self`` and captured variables before the body, at any depth, and finds the
differences afterwards.  ``edits`` describes one change of one object, and repeats the change on
another object.

The modules, each importing only from those before it::

    layouts snapshots edits
"""
