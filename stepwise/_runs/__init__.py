"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    steps sources paths history overview messages fork questions why verify copying run starting
    export housekeeping limits finding doctor
"""
