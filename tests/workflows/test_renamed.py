"""A workflow that has another name or place than when its run began is told, and can go on."""

import os
import pathlib
from dataclasses import dataclass

import pytest
from harness import python

import stepwise
from stepwise.stores.disk import DiskStore

PROGRAM = """
import os, sys
import stepwise

@stepwise.tool(side_effect=True)
def send(text):
    print("sent", text, flush=True)

@stepwise.step
def think(text):
    if "DIE" in os.environ:
        os._exit(9)
    return text.upper()

@stepwise.workflow
def agent(text="a"):
    send(text)
    return think(text)

if __name__ == "__main__":
    print(agent.options(**eval(sys.argv[1] if sys.argv[1:] else "{}"))())
"""
BEGUN = "sent a\n"
WENT_ON = "A\n"
ANEW = "sent a\nA\n"


@pytest.fixture
def began(tmp_path):
    """A program that was killed after its side effect; the id of its run."""
    program = tmp_path / "project" / "agent.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    assert executed(program, DIE="1") == (BEGUN, "")
    (run,) = stepwise.runs()
    return program, run.id


def executed(program, *arguments, **environment):
    """What a program printed, and what was told."""
    ended = python(
        program,
        *arguments,
        env={**os.environ, "STEPWISE_QUIET": "", **environment},
        code=(9 if "DIE" in environment else 0),
    )
    return ended.stdout, ended.stderr


def moved(program):
    return program.parent.rename(program.parent.with_name("elsewhere")) / program.name


def edited(program, old, new):
    assert old in program.read_text()
    program.write_text(program.read_text().replace(old, new))


def test_a_script_that_was_moved_is_told(began):
    """A script in another place starts a new run, and is told how to go on with the old one."""
    program, run_id = began
    old, new = program, moved(program)
    printed, told = executed(new)
    assert printed == ANEW
    assert f"unfinished: {run_id}() with side effects send x1 of the same code" in told
    assert f"in {old}, which no longer exists" in told
    assert f"STEPWISE_RESUME={run_id}" in told


@pytest.mark.parametrize("way", ["variable", "option"])
def test_a_script_that_was_moved_goes_on(began, way):
    """Told which run is meant, a script in another place goes on, and repeats nothing."""
    program, run_id = began
    if way == "variable":
        printed, told = executed(moved(program), STEPWISE_RESUME=run_id)
    else:
        printed, told = executed(moved(program), repr({"run_id": run_id}))
    assert printed == WENT_ON
    assert f"{run_id} resumes at agent.py" in told
    (run,) = stepwise.runs()
    assert run.status == "completed"


@dataclass
class Killed:
    """A run that was killed in a script, and the script as it is now."""

    script: pathlib.Path
    run_id: str


WITH_A_CLASS = (
    PROGRAM.replace("import stepwise\n", "import stepwise\nfrom dataclasses import dataclass\n", 1)
    .replace(
        "@stepwise.workflow", "@dataclass\nclass Task:\n    text: str\n\n@stepwise.workflow", 1
    )
    .replace('def agent(text="a"):', "def agent(task):\n    text = task.text", 1)
    .replace(")()", ')(Task(os.environ["TASK"]))')
)


def killed(script, edit=("", "")):
    """The run of a script whose workflow gets an object of a class of the script itself."""
    script.write_text(WITH_A_CLASS.replace(*edit))
    before = {each.id for each in stepwise.runs()}
    assert executed(script, DIE="1", TASK="a")[0] == BEGUN
    (new,) = {each.id for each in stepwise.runs()} - before
    return Killed(script, new)


@pytest.mark.parametrize("way", ["variable", "option"])
def test_a_renamed_script_goes_on_with_an_object_of_its_own_class(tmp_path, way):
    """An object of a class of the script is the same argument after the script was renamed."""
    run = killed(tmp_path / "agent.py")
    script = run.script.rename(tmp_path / "journey.py")
    told = executed(script, DIE="1", TASK="a")[1]
    assert f"unfinished: {run.run_id}(task=Task(text='a')) with side effects send x1" in told
    if way == "variable":
        printed, told = executed(script, TASK="a", STEPWISE_RESUME=run.run_id)
    else:
        printed, told = executed(script, repr({"run_id": run.run_id}), TASK="a")
    assert printed == WENT_ON
    assert f"{run.run_id} resumes at agent.py" in told


def test_a_renamed_script_does_not_go_on_with_another_object_of_its_own_class(tmp_path):
    """Another object is another argument, in a renamed script as in any."""
    run = killed(tmp_path / "agent.py")
    script = run.script.rename(tmp_path / "journey.py")
    printed, told = executed(script, TASK="b", STEPWISE_RESUME=run.run_id)
    assert (printed, "unfinished" in told) == ("sent b\nB\n", False)
    with pytest.raises(AssertionError, match="RunConflictError"):
        executed(script, repr({"run_id": run.run_id}), TASK="b")


def test_arguments_of_another_call_are_not_loaded(tmp_path):
    """A renamed script loads arguments of an old run only if its texts and numbers are equal."""
    loads = WITH_A_CLASS.replace(
        "    text: str\n",
        "    text: str\n    def __reduce__(self):\n        return loaded, (self.text,)\n\n"
        "def loaded(text):\n    print('loaded', file=sys.stderr)\n    return Task(text)\n",
    )
    script = tmp_path / "agent.py"
    script.write_text(
        loads.replace("(task)", "(task, number)").replace(
            '(Task(os.environ["TASK"]))', '(Task(os.environ["TASK"]), len(os.environ["COUNTED"]))'
        )
    )
    assert executed(script, DIE="1", TASK="a", COUNTED="1")[0] == BEGUN
    script = script.rename(tmp_path / "journey.py")
    for counted, is_loaded in (("12", False), ("1", True)):
        told = executed(script, DIE="1", TASK="a", COUNTED=counted)[1]
        assert ("loaded" in told, "of the same code" in told) == (is_loaded, is_loaded)


def test_scripts_with_equal_classes_do_not_take_each_others_runs(tmp_path):
    """Two scripts in one folder have classes of one name: each goes on with its own run."""
    first = killed(tmp_path / "agent.py")
    other = killed(tmp_path / "other.py", ("return think(text)", "return 2 * think(text)"))
    first.script = first.script.rename(tmp_path / "journey.py")
    other.script = other.script.rename(tmp_path / "another.py")
    for one, theirs, end in ((first, other, "A\n"), (other, first, "AA\n")):
        told = executed(one.script, DIE="1", TASK="a")[1]
        assert (one.run_id in told, theirs.run_id in told) == (True, False)
        with pytest.raises(AssertionError, match="RunConflictError"):
            executed(one.script, repr({"run_id": theirs.run_id}), TASK="a")
        assert executed(one.script, TASK="a", STEPWISE_RESUME=one.run_id)[0] == end


def test_an_unknown_run_to_resume_is_reported(began):
    """A mistyped ``STEPWISE_RESUME`` is reported, since another run would start."""
    program, run_id = began
    printed, told = executed(moved(program), STEPWISE_RESUME=run_id[:-3])
    assert printed == ANEW
    assert (
        told.count(f"STEPWISE_RESUME={run_id[:-3]} is ignored by agent: there is no such run") == 1
    )


def test_a_run_whose_script_is_gone_is_not_taken_by_another(began):
    """Other code in another place is not the same workflow, whatever its name."""
    program, run_id = began
    program = moved(program)
    edited(program, "return think(text)", "return think(text + text)")
    printed, told = executed(program)
    assert (printed, "unfinished" in told) == ("sent a\nAA\n", False)
    with pytest.raises(AssertionError, match="RunConflictError"):
        executed(program, repr({"run_id": run_id}))


REFUSED = "would begin a new run beside an unfinished one whose side effects it may repeat"


def refused(program, *arguments, **environment):
    """What was told by a program that was not to start."""
    env = {**os.environ, "STEPWISE_QUIET": "", **environment}
    ended = python(program, *arguments, env=env)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"RunConflictError: researcher() {REFUSED}" in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("way", ["variable", "option", "name", "command"])
def test_a_workflow_that_was_renamed_asks(began, way):
    """Under another name, a workflow repeats no side effect of its run, but says how to go on."""
    program, run_id = began
    edited(program, "agent", "researcher")
    told = refused(program)
    assert f"{run_id}() with side effects send x1 of a workflow 'agent'" in told
    assert f"STEPWISE_RESUME={run_id}, or .options(run_id={run_id!r})" in told
    assert "@workflow(name='agent')" in told
    assert ".options(fresh=True), or STEPWISE_FRESH=1" in told
    if way == "name":
        edited(program, "@stepwise.workflow", "@stepwise.workflow(name='agent')")
    if way == "command":
        ended = python(
            "-m", "stepwise", "resume", run_id, env={**os.environ, "STEPWISE_QUIET": ""}, code=0
        )
        printed, told = ended.stdout, ended.stderr
    elif way == "option":
        printed, told = executed(program, repr({"run_id": run_id}))
    else:
        printed, told = executed(
            program, **({"STEPWISE_RESUME": run_id} if way == "variable" else {})
        )
    assert printed == WENT_ON
    assert f"{run_id} resumes at agent.py" in told
    (run,) = stepwise.runs()
    assert run.status == "completed"


@pytest.mark.parametrize("way", ["option", "variable", "forgotten"])
def test_another_workflow_begins_anew_when_told_so(began, way):
    """Whoever says that the workflow is another one gets a new run beside the unfinished one."""
    program, run_id = began
    edited(program, "agent", "researcher")
    refused(program)
    if way == "option":
        printed, _ = executed(program, repr({"fresh": True}))
    elif way == "variable":
        printed, _ = executed(program, STEPWISE_FRESH="1")
    else:
        stepwise.get_run(run_id).delete()
        printed, _ = executed(program)
    assert printed == ANEW


def test_a_renamed_workflow_without_side_effects_is_told(began):
    """Where a new run can repeat no side effect it begins, and is told of the unfinished one."""
    program, run_id = began
    stepwise.get_run(run_id).delete()
    edited(program, "@stepwise.tool(side_effect=True)", "@stepwise.step")
    executed(program, DIE="1")
    edited(program, "agent", "researcher")
    printed, told = executed(program)
    assert printed == ANEW
    assert f"unfinished: {run_id}() of a workflow 'agent'" in told
    assert f"STEPWISE_RESUME={run_id}" in told


@pytest.mark.parametrize("how", ["module", "arguments", "made later"])
def test_a_renamed_workflow_is_known_by_file_and_arguments(began, how):
    """The file may be started another way; other arguments and workflows yet to be made differ."""
    program, _ = began
    edited(program, "agent(", "researcher(")
    edited(program, "agent.options", "researcher.options")
    if how == "module":
        (program.parent / "start.py").write_text("import agent\nprint(agent.researcher())\n")
        refused(program.parent / "start.py")
        return
    if how == "arguments":
        edited(program, 'text="a"', 'text="b"')
        assert executed(program)[0] == "sent b\nB\n"
    else:
        edited(program, "if __name__", "def made():\n    def agent(text): pass\n\nif __name__")
        assert executed(program)[0] == ANEW


@pytest.mark.parametrize("other", ["function", "name", "method", "script"])
def test_what_is_still_there_is_not_taken_for_renamed(began, other):
    """Nothing is told of the unfinished runs of another workflow that is still there."""
    program, _ = began
    workflow = "@stepwise.workflow\ndef agent"
    if other == "script":
        copy = program.with_name("second.py")
        copy.write_text(program.read_text())
        program = copy
    elif other == "function":
        edited(program, workflow, f"{workflow}(): pass\n\n@stepwise.workflow\ndef another")
        edited(program, "print(agent", "print(another")
    else:
        old = "@stepwise.workflow(name='agent')\n{0}def old(): pass\n\n"
        old = f"class Old:\n  {old.format('  ')}" if other == "method" else old.format("")
        edited(program, workflow, f"{old}@stepwise.workflow\ndef another")
        edited(program, "print(agent", "print(another")
    assert executed(program) == (ANEW, "")


def test_a_name_with_a_colon(began):
    """A copied script is another program, whatever is in the names of its workflows."""
    program, _ = began
    edited(program, "@stepwise.workflow", "@stepwise.workflow(name='agent: daily')")
    assert executed(program, DIE="1") == (BEGUN, "")
    copy = program.with_name("second.py")
    copy.write_text(program.read_text())
    assert executed(copy) == (ANEW, "")


def test_what_a_module_holds_is_not_asked(began):
    """Objects that raise when they are asked for an attribute may stand beside a workflow."""
    program, run_id = began
    edited(program, "agent", "researcher")
    proxy = "class Proxy:\n  def __getattr__(self, name): raise RuntimeError(name)\n\n"
    edited(program, "@stepwise.tool", f"{proxy}request = Proxy()\n\n@stepwise.tool")
    assert f"{run_id}() with side effects send x1" in refused(program)


def test_other_unfinished_runs_are_not_read(monkeypatch):
    """What a new run starts beside costs it no journal of another workflow."""

    @stepwise.workflow
    def stops(number):
        raise KeyboardInterrupt

    @stepwise.workflow
    def ends(number):
        return number

    for number in range(3):
        with pytest.raises(KeyboardInterrupt):
            stops(number)
    read, plain = [], DiskStore.read
    monkeypatch.setattr(
        DiskStore,
        "read",
        lambda store, run_id, after=0: read.append(run_id) or plain(store, run_id, after),
    )
    run = ends.execute(0)
    assert set(read) - {"bell:"} <= {run.id}  # a watcher of another test may look there
