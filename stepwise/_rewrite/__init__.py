"""Functions that can be entered in the middle: syntax tree in, function out.

The room knows no store and no run.  ``rewrite(function)`` returns a copy that runs like the
original unless the caller gives it a frame.  The copy asks the frame to save at statement
boundaries, and can begin at one::

    from stepwise._rewrite.build import rewrite
    from stepwise._rewrite.frame import Frame, pending

    class Recorder(Frame):
        def save(self, number, values):     # a point was reached while ``self.due``
            self.last = number, {**values}

    rewritten = rewrite(agent)
    first = Recorder()
    first.due = True
    pending.set(first)                      # taken by the next rewritten function to be entered
    rewritten("task")                       # dies, after some saves

    second = Recorder()
    second.target, second.values = first.last
    pending.set(second)
    rewritten("task")                       # resumes after that statement, with those locals

``source``     a function's source, taken when its decorator runs: its syntax tree, its statements
               by position, a fingerprint of the code
``statements`` what statements call, and the variables that they can make again
``frame``      a rewritten function, and its protocol with the code that resumes it
``transform``  the rewrite of a body, and its hidden names
``build``      from the rewritten tree to a function
``cells``      the names that a notebook cell reads, binds and defines; imported on use
``reading``    the text of a definition, and the names that it reads; imported on use
``decorators`` the function whose parameters a call of a wrapper fills in; imported on use

The modules, in import order: each imports only from those before it::

    source statements frame transform build cells reading decorators
"""
