"""The match between calls and recorded calls.

The modules, each importing only from those before it::

    in_flight changes_of_calls subjects pool
"""
