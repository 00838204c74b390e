"""The names of workflows: of modules, scripts, programs, worker processes and notebooks."""

from __future__ import annotations

import fractions
import os
import re
import textwrap

import pytest
from harness import interpreted, python, python_path
from restarted import Program

import stepwise
from stepwise._identity.identity import label_of


def plain():
    pass


def outer():
    def inner():
        pass

    class Inner:
        def method(self):
            pass

    return inner, Inner.method


def test_labels():
    """A function's label is its qualified name, without the functions around it."""
    labels = [
        label_of(function) for function in (plain, fractions.Fraction.limit_denominator, *outer())
    ]
    assert labels == ["plain", "Fraction.limit_denominator", "inner", "Inner.method"]


def test_names_in_modules():
    """A workflow of a module is named by module and label."""
    assert stepwise.workflow(plain).full_name == f"{__name__}:plain"
    assert stepwise.workflow(name="other")(textwrap.dedent).full_name == "textwrap:other"


AGENT = textwrap.dedent(
    """
    from stepwise import workflow
    @workflow
    def main(task="x"):
        return __file__
    if __name__ == "__main__":
        print(main.full_name, main.run_id_for(), main())
    """
)


ODD_AGENT = AGENT.replace(
    "print(main.full_name, main.run_id_for(), main())", "main(); print('done')"
)


@pytest.fixture
def run(tmp_path, home):
    """Run a Python command line in a folder of its own, and give what it printed."""

    def run(*args, cwd=tmp_path, code="", by=python):
        env = {**os.environ, "PYTHONPATH": python_path(tmp_path)}
        done = by(*args, cwd=cwd, env=env, text=code)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def written(path, text=AGENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_scripts(tmp_path, run):
    """A script's workflow is named by the script's real path, from wherever it is started."""
    script = written(tmp_path / "jobs" / "agent.py")
    link = tmp_path / "link.py"
    link.symlink_to(script)
    names = {
        run(script)[0],
        run("agent.py", cwd=script.parent)[0],
        run("../jobs/agent.py", cwd=script.parent)[0],
        run(link)[0],
    }
    assert names == {f"{script.resolve()}:main"}


def test_scripts_in_odd_folders(tmp_path, run):
    """A script runs in a folder whose name is no UTF-8, too."""
    try:
        script = written(tmp_path / os.fsdecode(b"caf\xe9") / "agent.py", ODD_AGENT)
    except OSError as error:  # on file systems that have UTF-8 only
        pytest.skip(str(error))
    assert run(script) == ["done"]


def test_two_scripts_with_main(tmp_path, run):
    """Two scripts that both define ``main()`` never meet: each has its own run and result."""
    said = [run(written(tmp_path / name)) for name in ("one.py", "two.py", "deep/one.py")]
    assert len({run_id for _, run_id, _ in said}) == 3
    assert [os.path.relpath(result, tmp_path) for _, _, result in said] == [
        *("one.py", "two.py", "deep/one.py")
    ]


def test_two_folders_with_main(tmp_path, run):
    """Two folders started as programs (``python folder``) never meet either."""
    files = [written(tmp_path / name / "__main__.py") for name in ("one", "two")]
    said = [run(each.parent, by=interpreted) for each in files]
    assert [os.path.basename(os.path.dirname(result)) for _, _, result in said] == ["one", "two"]
    assert len({name for name, _, _ in said}) == 2


def test_runs_of_a_file_started_otherwise(tmp_path, run):
    """A workflow finds its runs, however its file was started, and no runs of another file."""
    for folder in (tmp_path, tmp_path / "copy"):
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(AGENT)
    look = "import agent, stepwise; print(len(stepwise.runs(agent.main)))"
    run("agent.py")
    run("agent.py", cwd=tmp_path / "copy")
    assert run("-c", look) == ["1"]
    run("-c", "import agent; agent.main('other')")
    assert run("-c", look) == ["2"]
    (tmp_path / "agent.py").write_text(
        f"{AGENT}    import stepwise; print(len(stepwise.runs(main)))"
    )
    assert run("agent.py")[-1] == "2"


def test_a_crashed_script_that_is_imported(tmp_path, run):
    """A process that imports a script resumes its crashed runs; that of a copy stays alone."""
    script = """
    import os, stepwise
    @stepwise.step
    def ask():
        if __name__ == "__main__":
            os._exit(0)
        return "said"
    @stepwise.workflow
    def main():
        return ask()
    if __name__ == "__main__":
        main()
    """
    for folder in (tmp_path, tmp_path / "copy"):
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(textwrap.dedent(script))
        run("agent.py", cwd=folder)
    code = "import agent, stepwise; handles = stepwise.recover({}); "
    code += "print(*[each.result() for each in handles], len(handles.left))"
    assert run("-c", code.format("agent.main")) == ["said", "0"]
    assert run("-c", code.format("")) == ["1"]


def test_modules_started_as_programs(tmp_path, run):
    """``python -m package.module`` is the workflow that importing the module gives."""
    written(tmp_path / "package" / "__init__.py", "")
    written(tmp_path / "package" / "agent.py")
    name, run_id, _ = run("-m", "package.agent")
    assert name == "package.agent:main"
    code = "from package.agent import main; print(main.full_name, main.run_id_for())"
    assert run("-c", code) == [name, run_id]


def test_packages_started_as_programs(tmp_path, run):
    """``python -m package`` is named by the package; its ``__init__`` is another module."""
    written(tmp_path / "package" / "__init__.py", AGENT)
    written(tmp_path / "package" / "__main__.py", AGENT)
    name, run_id, _ = run("-m", "package")
    assert name.startswith("package")
    code = "from package import main; print(main.full_name, main.run_id_for())"
    assert run("-c", code) != [name, run_id]


SPAWN = textwrap.dedent(
    """
    import multiprocessing
    from stepwise import workflow
    @workflow
    def main(task="x"):
        return __file__
    def work(_):
        return [main.full_name, main.run_id_for(), main()]
    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(main.full_name, main.run_id_for(), *pool.map(work, [0])[0])
    """
)


def test_worker_processes(tmp_path, run):
    """In a spawned worker a script's workflow has the name that it has in the script."""
    *names, file = run(written(tmp_path / "one.py", SPAWN), by=interpreted)
    assert os.path.basename(file) == "one.py"
    assert names[:2] == names[2:]


def test_prompts(tmp_path, run, monkeypatch):
    """Code without a file is named by its folder and what it does, a notebook by its own path."""
    code = (
        "def f(): pass\nfrom stepwise._identity.module_names import place_of\n"
        "print(f'{place_of(f.__module__)}:f')"
    )
    folder = tmp_path.resolve()
    name = " ".join(run("-c", code, by=interpreted))
    assert re.fullmatch(re.escape(f"{folder}/<program ") + "[0-9a-f]{12}>:f", name)
    assert " ".join(run("-", code=code, by=interpreted)) == name
    monkeypatch.setenv("JPY_SESSION_NAME", "/books/agent.ipynb")
    assert run("-c", code, by=interpreted) == ["/books/agent.ipynb:f"]


NAMESAKES = """
def bull():
    @workflow
    def ask(question):
        did("bull")
        crash("bull")
        return "bull"
    return ask
def bear():
    @workflow
    def ask(question):
        return "bear"
    return ask
print(globals()[os.environ["WHO"]]().options(start=os.environ["START"])("why"))
"""


@pytest.mark.parametrize("dies", ["", "bull"])
def test_a_run_of_a_namesake_is_refused(tmp_path, dies):
    """A workflow takes no run of another one that has its name in the same file, ended or not."""
    program = Program(tmp_path, NAMESAKES)
    program.run(dies, WHO="bull", START="same")
    told = program.run(code=1, WHO="bear", START="same")
    assert "belongs to another workflow of the name 'ask'" in told
    assert program.run(WHO="bear", START="unfinished").endswith("bear\n")
    assert program.run(WHO="bull", START="same").endswith("bull\n")
    program.edit(('return "bull"', 'return "BULL"'))
    assert "may belong to another workflow" in program.run(code=1, WHO="bear", START="same")


def test_a_run_of_an_edited_workflow_without_a_namesake_goes_on(tmp_path):
    """Another function of that name which is no workflow keeps nobody from an edited one's run."""
    text = NAMESAKES.partition("def bear")
    others = "def other():\n    def ask(): pass\n"
    program = Program(tmp_path, text[0] + others + text[2].partition("return ask\n")[2])
    program.run("bull", WHO="bull", START="same")
    program.edit(('return "bull"', 'return "BULL"'))
    assert program.run(WHO="bull", START="same").endswith("BULL\n")


IN_A_RUN = """
@workflow
def outer(who):
    return globals()[who]().options(run_id="r")("why")
print(outer(os.environ["WHO"]))
"""


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_id_of_a_namesake_is_refused(tmp_path, inside):
    """A run id that one workflow has used is refused to another of its name, in a run as well."""
    text = NAMESAKES.replace('start=os.environ["START"]', 'run_id="r"')
    program = Program(tmp_path, text.rpartition("print(")[0] + IN_A_RUN if inside else text)
    assert program.run(WHO="bull").endswith("bull\n")
    assert "belongs to another workflow" in program.run(code=1, WHO="bear")


LIKE_METHODS = """
@step
def answer(who, question):
    return f"{who}: {question}"
class Bull:
    @workflow
    def ask(self, question):
        crash("bull")
        return answer(type(self).__name__, question)
class Bear:
    @workflow
    def ask(self, question):
        crash("bull")
        return answer(type(self).__name__, question)
print(globals()[os.environ["WHO"]]().ask.options(start=os.environ["START"])("why"))
"""


def test_an_edited_method_that_was_like_one_of_another_class_goes_on(tmp_path):
    """Equal code in a method of another name does not make it the one that was executed."""
    program = Program(tmp_path, LIKE_METHODS)
    program.run("bull", WHO="Bull", START="same")
    asking = "class {}:\n    @workflow\n    def ask(self, question):\n".format("Bull")
    program.edit((f'{asking}        crash("bull")\n', asking))
    assert program.run(WHO="Bull", START="same").endswith("Bull: why\n")
