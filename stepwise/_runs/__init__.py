"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    steps sources paths overview messages fork questions why verify copying streaming run
    replica portable starting export housekeeping limits census retention schedules finding
    doctor
"""
