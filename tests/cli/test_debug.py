"""``stepwise debug`` on a real terminal: a prompt in the frame where a run stopped."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter

import pytest
from command import COMMAND, process
from debug_adapter import Client
from harness import interpreted, python, python_path
from prompting import Prompt
from restarted import edit

import stepwise

PROGRAM = """
import os, sys
from stepwise import current_step, sleep, step, tool, workflow

def log(text):
    with open(os.environ["LOG"], "a") as file:
        file.write(text + "\\n")

@step
def think(number):
    log(f"think {number}")
    return number * 10

@step
def price(text):
    log(f"price {text}")
    cents = int(text)
    return cents

@tool(side_effect=True)
def send_email(to, body):
    log(f"email {to} {body}")
    return f"sent {body}"

def doubled(number):
    return number * 2

@workflow(retention="all")
def agent(topic):
    text = "seven"
    notes = []
    for number in range(1, 4):
        notes.append(think(number))
    cents = price(text)
    answer = send_email("team", f"{topic} {notes} {cents}")
    return answer

if __name__ == "__main__":
    print("result", agent("tides"))
"""


class Case:
    """A program whose run has failed."""

    def __init__(self, folder, monkeypatch, source=PROGRAM):
        self.script, self.path = folder / "program.py", folder / "log"
        self.script.write_text(source)
        (folder / "plain").mkdir()
        (folder / "plain" / "IPython.py").write_text("raise ImportError('not here')")
        self.plain = {"PYTHONPATH": python_path(folder / "plain")}
        monkeypatch.setenv("LOG", str(self.path))
        monkeypatch.setenv("STEPWISE_QUIET", "")
        self.start()
        self.run = next(iter(stepwise.runs()), None)

    def start(self):
        """Run the program itself."""
        return python(self.script)

    def debug(self, *arguments):
        """A terminal at the prompt of the run."""
        return Prompt(self.run.id, *arguments, env=self.plain)

    def edit(self, old, new):
        edit(self.script, (old, new))

    @property
    def log(self):
        return self.path.read_text().splitlines()

    @property
    def state(self):
        """What the store holds of the run."""
        steps = [each.to_dict() for each in self.run.steps]
        return self.run.status, self.run.owner, steps, self.run.updated_at, self.run.checkpoints


@pytest.fixture
def case(tmp_path, monkeypatch):
    return Case(tmp_path, monkeypatch)


def test_the_frame_where_it_stopped(case):
    """The prompt opens before the statement that failed, with the variables and the callers."""
    before = case.state
    prompt = case.debug()
    banner = prompt.hear()
    assert "ValueError" in banner
    assert "after 3 steps" in banner
    assert "cents = price(text)" in banner
    assert prompt.say("p notes, doubled(len(notes))").strip() == "([10, 20, 30], 6)"
    assert "agent(topic" not in prompt.say("where")
    assert 'print("result", agent("tides"))' in prompt.say("up")
    assert "stepwise" not in prompt.say("where").replace("stepwise:", "")
    assert prompt.end("quit")[0] == 0
    assert case.state == before
    assert case.log == ["think 1", "think 2", "think 3", "price seven"]


def test_calls_at_the_prompt(case):
    """A typed step is answered by the journal or refused, and a side effect never happens."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    assert "step 2\r\n20" in prompt.say("think(2)")
    assert "OutsideRunError" in prompt.say("think(9)")
    assert "OutsideRunError" in prompt.say("send_email('boss', 'hello')")
    assert "OutsideRunError" in prompt.say("sleep(0)")
    assert "OutsideRunError" in prompt.say("import stepwise; stepwise.wait_for('x')")
    assert "OutsideRunError" in prompt.say("[*stepwise.map(think, [1, 7])]")
    assert "OutsideRunError" in prompt.say("stepwise.background().__enter__()")
    assert prompt.end("quit")[0] == 0
    assert case.state == before
    assert "email" not in "".join(case.log)


def test_typed_threads(case):
    """A step in a thread that was started at the prompt is typed as well, whatever run it sees."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    prompt.say("back")
    prompt.say("back")
    threads = (
        "import threading; t = threading.Thread(target=think, args=(3,)); t.start(); t.join()",
        "import threading; t = threading.Thread(target=send_email, args=(1, 2)); t.start()",
        "import asyncio; asyncio.run(asyncio.to_thread(send_email, 1, 2))",
        "import contextvars; contextvars.Context().run(send_email, 1, 2)",
        "import contextvars as c; from concurrent.futures import ThreadPoolExecutor as Pool",
        "Pool().submit(c.Context().run, send_email, 1, 2).result()",
    )
    for line in threads:
        prompt.say(line)
    assert case.state == before
    prompt.say("text = '7'")
    prompt.say("next")
    for line in threads:
        prompt.say(line)
    code, said = prompt.end("continue")
    assert (code, "result sent tides [10, 20, 30] 7" in said) == (0, True)
    assert Counter(case.log).most_common(1)[0][1] == 1
    assert "email 1 2" not in case.log


def test_a_function_on_one_line(tmp_path, monkeypatch):
    """A workflow whose statements stand on the line of its ``def`` is opened before them."""
    source = PROGRAM.split("@workflow", maxsplit=1)[0] + (
        "@workflow\ndef agent(topic): think(1); return price(topic)\n\nagent('tides')\n"
    )
    case = Case(tmp_path, monkeypatch, source)
    before = case.state
    prompt = case.debug()
    assert "def agent(topic)" in prompt.hear()
    assert prompt.end("quit")[0] == 0
    assert case.state == before


def test_a_coroutine_that_is_typed(tmp_path, monkeypatch):
    """A typed call of an asynchronous step that nobody awaits does not fail the run later."""
    source = PROGRAM.split("@workflow", maxsplit=1)[0] + (
        "import asyncio\n@step\nasync def later(number):\n    return number\n"
        "@workflow\nasync def agent(topic):\n    text = 'x'\n    await later(1)\n"
        "    return price(text)\n\nprint(asyncio.run(agent('tides')))\n"
    )
    prompt = Case(tmp_path, monkeypatch, source).debug()
    prompt.hear()
    assert "coroutine" in prompt.say("later(2)")
    prompt.say("text = '7'")
    assert prompt.end("continue")[0] == 0


def test_a_second_call_of_the_run(tmp_path, monkeypatch):
    """Once the run has completed, a second call of it is answered by the journal."""
    source = PROGRAM.replace('retention="all"', 'retention="all", run_id="one"').replace(
        'print("result", agent("tides"))', 'print(agent("tides"), agent("tides"))'
    )
    prompt = Case(tmp_path, monkeypatch, source).debug()
    prompt.hear()
    prompt.say("text = '7'")
    code, said = prompt.end("continue")
    assert (code, said.count("sent tides [10, 20, 30] 7")) == (0, 2)


def test_the_latest_run(case):
    """Without RUN, the latest run is opened."""
    prompt = Prompt(env=case.plain)
    assert case.run.id in prompt.hear()
    assert prompt.end("quit")[0] == 0
    assert f"stepwise debug {case.run.id}" in process("why").stdout


def test_allow(case):
    """``allow NAME`` lets one typed call be executed, outside of the run."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    prompt.say("allow send_email")
    assert "sent hello" in prompt.say("send_email('boss', 'hello')")
    assert "OutsideRunError" in prompt.say("send_email('boss', 'hello')")
    assert prompt.end("quit")[0] == 0
    assert case.log.count("email boss hello") == 1
    assert case.state == before


def test_mended_and_finished(case):
    """A changed variable goes on record, the run completes, and no step is made twice."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '7'")
    prompt.say("up")
    prompt.say("down")
    code, said = prompt.end("continue")
    assert (code, "result sent tides [10, 20, 30] 7" in said) == (0, True)
    assert case.run.status == "completed"
    assert case.run.checkpoints[3].verified
    assert case.run.locals(at=3)["text"] == "7"
    assert Counter(case.log).most_common(1)[0][1] == 1


def test_next(case):
    """``next`` executes one line for real, and the prompt comes again."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '7'")
    assert "answer = send_email" in prompt.say("next")
    assert prompt.say("p cents").strip() == "7"
    assert case.run.owner is not None
    assert "OutsideRunError" in prompt.say("send_email('boss', 'now')")
    assert "return answer" in prompt.say("next")
    assert prompt.end("continue")[0] == 0
    assert case.log[-2:] == ["price 7", "email team tides [10, 20, 30] 7"]


def test_breakpoints(case):
    """A breakpoint in a step is met once the run goes on."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '7'")
    line = case.script.read_text().splitlines().index("    cents = int(text)") + 1
    prompt.say(f"break {case.script}:{line}")
    assert "cents = int(text)" in prompt.say("continue")
    assert prompt.say("p text").strip() == "'7'"
    assert "OutsideRunError" in prompt.say("think(5)")
    assert prompt.end("continue")[0] == 0
    assert case.run.status == "completed"


def test_quit_while_it_goes_on(case):
    """``quit`` after the run went on interrupts it, and the next start finishes it."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '7'")
    prompt.say("next")
    prompt.end("quit")
    assert (case.run.status, case.run.owner) == ("interrupted", None)
    assert case.start().returncode == 0
    assert Counter(case.log).most_common(1)[0][1] == 1


def test_end_of_input(case):
    """The end of the input leaves the run as it was."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    prompt.terminal.sendeof()
    assert prompt.end()[0] == 0
    assert case.state == before


def test_ctrl_c(case):
    """Ctrl-C at the prompt leaves the run as it was, and the prompt open."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    prompt.terminal.sendintr()
    prompt.hear()
    assert prompt.say("p notes").strip() == "[10, 20, 30]"
    assert prompt.end("quit")[0] == 0
    assert case.state == before


def test_killed_at_the_prompt(case):
    """A process that is killed at the prompt has recorded nothing and holds no lease."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    pid = int(prompt.say("import os; print(os.getpid())"))
    os.kill(pid, signal.SIGKILL)
    prompt.end()
    assert case.state == before


def test_no_terminal(case):
    """Without a terminal the command says so, with exit code 2."""
    ended = process("debug", case.run.id)
    assert ended.returncode == 2
    assert "--listen" in ended.stderr


def test_moved_on(case):
    """A run that another process has taken on meanwhile is not continued."""
    prompt = case.debug()
    prompt.hear()
    case.start()  # fails again, at the same step
    assert "another process has gone on" in prompt.say("continue")
    assert case.run.owner is None
    assert prompt.end("quit")[0] == 0


def test_busy(case):
    """A run that a process executes is looked at, and not continued."""
    case.edit("cents = int(text)", "print('inside', flush=True); sys.stdin.readline(); cents = 7")
    with subprocess.Popen(
        [sys.executable, str(case.script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "inside\n"
        prompt = case.debug()
        assert "cents = price(text)" in prompt.hear()
        assert "is being executed" in prompt.say("continue")
        assert prompt.end("quit")[0] == 0
        other.communicate("\n")
    assert case.run.status == "completed"
    assert case.log.count("email team tides [10, 20, 30] 7") == 1


def test_reload(case):
    """``reload`` reads the edited source, keeps a changed variable, and the run goes on."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("notes.append(40)")
    case.edit("    cents = int(text)", "    cents = len(text)")
    case.edit("    cents = price(text)", "    text += '!'\n    cents = price(text)")
    again = prompt.say("reload")
    assert "text += '!'" in again
    assert prompt.say("p notes").strip() == "[10, 20, 30, 40]"
    assert prompt.end("continue")[0] == 0
    assert case.run.result == "sent tides [10, 20, 30, 40] 6"
    assert Counter(each for each in case.log if "think" in each).most_common(1)[0][1] == 1


def test_jump(case):
    """``jump`` leaves statements out, and never goes back over steps that were made."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("cents = 5")
    lines = case.script.read_text().splitlines()
    loop, email = (
        next(number for number, line in enumerate(lines, 1) if part in line)
        for part in ("for number", "answer = send")
    )
    assert "would be made twice" in prompt.say(f"jump {loop}")
    assert "no statement" in prompt.say("jump 1000")
    assert "answer = send_email" in prompt.say(f"jump {email}")
    assert prompt.end("continue")[0] == 0
    assert case.run.result == "sent tides [10, 20, 30] 5"
    assert "price 5" not in case.log


def test_back_and_forward(case):
    """``back`` and ``forward`` move through the kept checkpoints, the variables with them."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("back")
    assert prompt.say("p notes").strip() == "[10, 20]"
    prompt.say("back")
    assert prompt.say("p notes").strip() == "[10]"
    prompt.say("forward")
    assert prompt.say("p notes, number").strip() == "([10, 20], 3)"
    prompt.say("text = '8'")
    assert prompt.end("continue")[0] == 0
    assert case.run.result == "sent tides [10, 20, 30] 8"
    assert Counter(case.log).most_common(1)[0][1] == 1


def test_at(case):
    """``--at STEP`` opens the newest kept checkpoint after that many steps or fewer."""
    prompt = case.debug("--at", "1")
    assert "after 1 step," in prompt.hear()
    assert prompt.say("p notes").strip() == "[10]"
    assert prompt.end("quit")[0] == 0


def test_fork(case):
    """``fork`` goes on as a new run with the changed variables, and the run stays as it was."""
    before = case.state
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '9'")
    code, said = prompt.end("fork")
    assert (code, "result sent tides [10, 20, 30] 9" in said) == (0, True)
    assert case.state == before
    (made,) = [each for each in stepwise.runs() if each.forked_from == case.run.id]
    assert made.result == "sent tides [10, 20, 30] 9"
    assert case.log.count("think 1") == 1


def test_a_completed_run(case):
    """A completed run is only looked at; a fork goes on from a kept checkpoint."""
    case.edit("int(text)", "len(text)")
    assert case.start().returncode == 0
    prompt = case.debug("--at", "3")
    prompt.hear()
    assert "only looked at" in prompt.say("continue")
    assert "only looked at" in prompt.say("next")
    prompt.say("text = 'xx'")
    code, said = prompt.end("fork")
    assert code == 0, said
    assert case.run.result == "sent tides [10, 20, 30] 5"
    assert case.log[-1] == "email team tides [10, 20, 30] 2", said


def test_a_run_without_a_command(tmp_path, monkeypatch):
    """A run whose program was not started from a command line is opened by its module."""
    case = Case(tmp_path, monkeypatch, "")
    (tmp_path / "orders.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    source = "import orders\norders.agent('winds')\n"
    interpreted(text=source, code=None)
    (case.run,) = stepwise.runs()
    prompt = case.debug()
    prompt.hear()
    assert prompt.say("p topic, notes").strip() == "('winds', [10, 20, 30])"
    prompt.say("text = '7'")
    prompt.say("reload")
    assert prompt.say("p text").strip() == "'7'"
    assert prompt.end("continue")[0] == 0
    assert case.run.result == "sent winds [10, 20, 30] 7"


def test_an_encrypted_store_without_its_key(case, tmp_path):
    """A store that cannot be read with the key that is set is a sentence."""
    code, said = Prompt(case.run.id, env={"STEPWISE_KEY": "another key of some length"}).end()
    assert (code, "another key" in said, "Traceback" in said) == (1, True, False)


def test_a_child_run(tmp_path, monkeypatch):
    """A child run is opened by its parent, whose ``step`` enters it."""
    source = PROGRAM.replace(
        "def doubled", "@workflow\ndef inner(text):\n    return price(text)\n\ndef doubled"
    ).replace("cents = price(text)", "cents = inner(text)")
    case = Case(tmp_path, monkeypatch, source)
    child = next(each for each in stepwise.runs() if each.parent)
    code, said = Prompt(child.id, env=case.plain).end()
    assert (code, f"stepwise debug {child.parent}" in said) == (1, True)
    case.run = stepwise.get_run(child.parent)
    prompt = case.debug()
    assert "cents = inner(text)" in prompt.hear()
    assert "OutsideRunError" in prompt.say("inner('8')")
    case.edit("cents = int(text)", "cents = 7")
    prompt.say("reload")
    code, said = prompt.end("continue")
    assert code == 0, said
    assert case.run.result == "sent tides [10, 20, 30] 7"


def test_other_calls_of_the_program(case):
    """The program's calls of other runs are refused, so that it begins none."""
    case.edit('if __name__ == "__main__":', 'agent("winds")\nif True:')
    prompt = case.debug()
    code, said = prompt.end()
    assert code != 0
    assert "is refused" in said
    assert [each.id for each in stepwise.runs()] == [case.run.id]


def test_a_program_that_calls_it_no_more(case):
    """A program that does not call the run any more is a sentence."""
    case.edit('agent("tides")', '"none"')
    code, said = case.debug().end()
    assert (code, "without a call of run" in said) == (1, True)


def test_changed_source(case):
    """With code changed above the position, what still fits is opened: here, the top."""
    case.edit("        notes.append(think(number))", "        notes += [think(number)]")
    prompt = case.debug()
    said = prompt.hear()
    assert "has changed" in said
    assert prompt.say("p topic").strip() == "'tides'"
    assert prompt.end("quit")[0] == 0


def test_missing_source(case):
    """A program that is gone is a sentence."""
    case.script.unlink()
    code, said = case.debug().end()
    assert (code, "is gone" in said) == (1, True)


def test_replay(tmp_path, monkeypatch):
    """``--replay`` executes the code after a checkpoint with recorded results, up to a step."""
    case = Case(tmp_path, monkeypatch, SPARSE)
    before = case.state
    prompt = case.debug("--at", "1", "--replay")
    prompt.hear(r"\[y/N\]: ")
    assert "think comes next, after 1 step" in prompt.say("y")
    assert prompt.say("p notes").strip() == "[10]"
    assert prompt.end("quit")[0] == 0
    assert case.state == before


def test_a_step_that_failed(case):
    """``--step`` executes the body of a failed step under the debugger, outside of the run."""
    before = case.state
    prompt = case.debug("--step", "4")
    prompt.hear()
    assert prompt.say("p text").strip() == "'seven'"
    assert "ValueError" in prompt.say("continue")
    assert prompt.end("quit")[0] == 0
    assert case.state == before
    assert case.log.count("price seven") == 2


SPARSE = PROGRAM.replace('retention="all"', "checkpoint_every=10")  # no checkpoint before the end


def test_a_replay_to_the_error(tmp_path, monkeypatch):
    """A replay without ``--at`` ends where the run has to go on for real, which it can."""
    case = Case(tmp_path, monkeypatch, SPARSE)
    prompt = case.debug("--replay")
    prompt.hear(r"\[y/N\]: ")
    assert "has not made price(text='seven') yet" in prompt.say("y")
    assert prompt.say("p notes").strip() == "[10, 20, 30]"
    case.edit("cents = int(text)", "cents = 7")
    assert prompt.end("continue")[0] == 1  # with the old source
    assert Counter(case.log)["price seven"] == 2
    assert Counter(case.log)["think 1"] == 1
    assert case.start().returncode == 0


def test_an_approximate_replay(tmp_path, monkeypatch):
    """A replay says that it is approximate after a call that differs, and the run stays there."""
    source = SPARSE.replace("notes.append(think(number))", "notes.append(think(number + EXTRA))")
    case = Case(tmp_path, monkeypatch, f"EXTRA = 0\n{source}")
    before = case.state
    case.edit("EXTRA = 0", "EXTRA = 5")
    prompt = case.debug("--at", "2", "--replay")
    prompt.hear(r"\[y/N\]: ")
    said = prompt.say("y")
    assert "approximate: think(number=6), which differs from step 1 on record" in said
    assert "think comes next, after 2 steps" in said
    assert prompt.say("p notes").strip() == "[10, 20]"
    assert "only approximate" in prompt.say("continue")
    assert prompt.end("quit")[0] == 0
    assert case.state == before


def test_a_replay_that_raises(tmp_path, monkeypatch):
    """A replay opens the prompt in the frames of an error that the workflow's own code raises."""
    source = SPARSE.replace("cents = price(text)", "cents = doubled(None)")
    case = Case(tmp_path, monkeypatch, source)
    before = case.state
    prompt = case.debug("--replay")
    prompt.hear(r"\[y/N\]: ")
    assert "TypeError" in prompt.say("y")
    assert prompt.say("p number").strip() == "None"
    prompt.say("up")
    assert prompt.say("p notes").strip() == "[10, 20, 30]"
    assert "the code has raised" in prompt.say("continue")
    assert prompt.end("quit")[0] == 0
    assert case.state == before


def test_recorded_arguments(tmp_path, monkeypatch):
    """``--step`` takes the recorded arguments of a step, if there are any."""
    monkeypatch.setenv("STEPWISE_RECORD_ARGUMENTS", "1")
    case = Case(tmp_path, monkeypatch)
    case.edit('text = "seven"', 'text = "eight"')
    prompt = case.debug("--step", "4")
    assert "with the arguments on record" in prompt.hear()
    assert prompt.say("p text").strip() == "'seven'"
    assert prompt.end("quit")[0] == 0


def test_after_the_end(case):
    """Behind the end of the run, a typed side effect is refused as well."""
    prompt = case.debug()
    prompt.hear()
    prompt.say("text = '7'")
    while "(<module>)" not in (said := prompt.say("next")) and "<module>()" not in said:
        pass
    assert case.run.status == "completed"
    assert "OutsideRunError" in prompt.say("send_email('boss', 'hello')")
    prompt.end("quit")
    assert sum("email" in each for each in case.log) == 1


def test_a_side_effect_that_failed(tmp_path, monkeypatch):
    """The body of a side effect is executed by ``--step`` only if it is allowed."""
    source = PROGRAM.replace('text = "seven"', 'text = "7"').replace(
        'return f"sent {body}"', "raise ValueError(body)"
    )
    case = Case(tmp_path, monkeypatch, source)
    before = case.state
    code, said = case.debug("--step", "5").end()
    assert (code, "--allow send_email" in said) == (1, True)
    assert "".join(case.log).count("email") == 1
    prompt = case.debug("--step", "5", "--allow", "send_email")
    prompt.hear()
    assert prompt.say("p to").strip() == "'team'"
    assert prompt.end("quit")[0] == 0
    assert case.state == before
    assert "".join(case.log).count("email") == 1


def test_a_step_that_is_done(case):
    """A step that has completed, or is not there, cannot be entered."""
    for number, why in ((1, "has completed"), (99, "is not on record")):
        code, said = case.debug("--step", str(number)).end()
        assert (code, why in said) == (1, True)


def test_ipython(case):
    """Where IPython is installed, the prompt is that of its debugger, with the same commands."""
    prompt = Prompt(case.run.id, env={"IPY_TEST_SIMPLE_PROMPT": "1"}, wanted="ipdb> ")
    prompt.hear()
    assert "[10, 20, 30]" in prompt.say("p notes")
    assert "OutsideRunError" in prompt.say("send_email('boss', 'hello')")
    prompt.say("text = '7'")
    assert prompt.end("continue")[0] == 0, prompt.terminal.before
    assert case.run.result == "sent tides [10, 20, 30] 7"


# -- in an editor ----------------------------------------------------------------------------------


@pytest.fixture
def listening(case):
    """A run that waits for an editor's debugger, and the connection of a client to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [COMMAND, "debug", case.run.id, "--listen", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            if "waiting for a debugger's client" in line:
                break
        client = Client(port)
        client.attach()
        yield process, client
        client.close()


def test_an_editor(case, listening):
    """An editor stops at the line, shows and changes the variables, and goes on for real."""
    before = case.state
    process, client = listening
    thread, frames = client.stopped()
    assert frames[0]["name"] == "agent"
    source = case.script.read_text().splitlines()[frames[0]["line"] - 1]
    assert "for number" in source or "cents = price(text)" in source
    assert client.variables(frames[0])["notes"] == "[10, 20, 30]"
    answer = client.call("evaluate", expression="think(2)", frameId=frames[0]["id"], context="repl")
    assert answer["result"] == "20"
    refused = client.ask(
        "evaluate", expression="send_email('a', 'b')", frameId=frames[0]["id"], context="repl"
    )
    with pytest.raises(AssertionError, match="OutsideRunError"):
        client.answer(refused)
    assert case.state == before
    client.call("evaluate", expression="text = '7'", frameId=frames[0]["id"], context="repl")
    client.call("next", threadId=thread)
    _, frames = client.stopped()
    assert client.variables(frames[0])["text"] == "'7'"
    client.call("continue", threadId=thread)
    client.event("terminated")
    assert process.wait(60) == 0
    assert case.run.result == "sent tides [10, 20, 30] 7"
    assert Counter(case.log).most_common(1)[0][1] == 1


def test_an_editor_that_leaves(case, listening):
    """A client that disconnects leaves the run as it was."""
    before = case.state
    process, client = listening
    client.stopped()
    client.call("disconnect", terminateDebuggee=False)
    client.close()
    assert process.wait(60) == 0
    assert case.state == before
