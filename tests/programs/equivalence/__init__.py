"""Random workflow programs, crashed everywhere: resumed, they are what they were undisturbed.

:class:`writer.Writer` writes a program out of the vocabulary of :mod:`world`, and :mod:`programs`
makes it a module.  :func:`checker.check` runs it:

1. plainly, as undecorated functions, and in a run that nothing disturbs;
2. *killed* wherever that makes a difference: from a copy of the store as it was after each write,
   which is all that ``kill -9`` leaves behind; the recovery is killed and recovered in its turn;
3. *interrupted* in the middle of a step, as by Ctrl-C: the exception unwinds the program;
4. *forked* (:func:`checker.check_forked`): a process that ends itself with ``os._exit`` in a step.

Each time the result, the log of effects, the caller's objects and the final local variables are
those of the undisturbed run, and a trace of the statements that are no steps shows that nothing ran
again that lies before the last checkpoint of its run.

The programs of :mod:`states` are agents: their steps change state objects of all kinds in place,
some of which hold clients, and an outer step fails once around a tool.

``python tests/programs/equivalence 0 1000`` checks the programs 0 to 999; ``--forked`` does it with
forks, ``--show`` prints the programs, and ``--states changes,clients,retries`` checks
agents with these features.
"""
