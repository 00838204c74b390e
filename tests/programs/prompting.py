"""``stepwise debug`` on a terminal, to talk with."""

import fcntl
import os
import struct
import termios

import pexpect
from harness import COMMAND, Watched
from pexpect.fdpexpect import fdspawn
from sweeping import WHOLE


class Forked(fdspawn):
    """What of ``pexpect.spawn`` is used here, of a program in a fork."""

    def __init__(self, *words, env, **how):
        master, slave = os.openpty()
        mode = termios.tcgetattr(slave)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 240, 0, 0))
        self.program = Watched(*words, cwd=os.getcwd(), env=env, terminal=os.ttyname(slave))
        os.close(slave)  # only the program has it open, so that its end is the end of the file
        super().__init__(master, **how)

    def sendintr(self):
        self.send("\x03")

    def sendeof(self):
        self.send("\x04")

    def close(self):
        """Wait for its end."""
        super().close()
        code = self.program.wait()
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)


class Prompt:
    """A terminal with ``stepwise debug``, and what it prints."""

    def __init__(self, *arguments, env=(), wanted=r"\(debug\) "):
        self.wanted = wanted
        env = {**os.environ, "TERM": "dumb", **dict(env)}
        how = {"encoding": "utf-8", "timeout": 60}
        if WHOLE:
            size = {"dimensions": (50, 240), "echo": False}
            self.terminal = pexpect.spawn(COMMAND, ["debug", *arguments], env=env, **size, **how)
        else:
            self.terminal = Forked("stepwise", "debug", *arguments, env=env, **how)

    def hear(self, wanted=""):
        """What is printed up to the next prompt."""
        self.terminal.expect(wanted or self.wanted)
        return self.terminal.before

    def say(self, line, wanted=""):
        """What a command prints, up to the next prompt."""
        self.terminal.sendline(line)
        return self.hear(wanted)

    def end(self, line=""):
        """The exit code and the last words, after a last command."""
        if line:
            self.terminal.sendline(line)
        self.terminal.expect(pexpect.EOF)
        self.terminal.close()
        code = self.terminal.exitstatus
        return (-self.terminal.signalstatus if code is None else code), self.terminal.before
