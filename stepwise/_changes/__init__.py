"""Changes that a call makes to what it was given: found exactly, recorded by path, put back.

``snapshots`` holds what the arguments, ``self`` and captured variables of a call hold before its
body, at any depth, and finds what is different afterwards.  ``layouts`` knows how the objects of a
class are looked at.  ``edits`` describes one change of one object, and repeats it on another.
``graph`` records all changes of a call, with its value, as one pickle, and loads them again.
"""
