"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    steps sources paths fitting overview messages fork branching questions why verify
    copying streaming run replica starting export maintenance
    schedules doctor
"""
