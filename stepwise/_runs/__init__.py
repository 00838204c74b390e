"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

<<<<<<< HEAD
    steps sources paths overview messages fork questions why verify copying streaming run
    replica portable starting export housekeeping limits census retention schedules finding
    doctor
=======
    steps sources paths overview messages fork branching questions why verify copying streaming run
    replica portable starting export housekeeping limits cache census retention finding doctor
>>>>>>> 6d7c9cd575e7c06c2db3ff0acb3802b3c53cdf48
"""
