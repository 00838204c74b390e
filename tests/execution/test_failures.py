"""Failures: those that a workflow handles, those that end it, and side effects that raise."""

import asyncio
import threading

import pytest
from flows import aflow_of, flow_of

import stepwise
from stepwise import DidNotHappen, Inconclusive, Landed, StepInDoubtError, step, tool, workflow


@pytest.fixture
def log():
    return []


@pytest.fixture
def once(log):
    """What a step calls to log itself, and to raise ``error`` the first time."""

    def logging(what, error=None):
        log.append(what)
        if error is not None and log.count(what) == 1:
            raise error
        return what

    return logging


@pytest.fixture
def failing(once):
    """A step or tool that logs its name, or what it is given, and fails the first time."""

    def make(name, error=None, decorator=step, **options):
        return decorator(name=name, **options)(lambda what=name: once(what, error and error(what)))

    return make


# -- steps ---------------------------------------------------------------------------------------


def test_a_handled_failure_is_an_outcome(log, failing):
    """A failure that the workflow went on from is raised again on resume, without a new attempt."""
    fetch, store = failing("page", ValueError), failing("store", OSError)

    @workflow(checkpoint_every=100)
    def agent():
        try:
            found = fetch()
        except ValueError as error:
            found = f"no {error}"
        return store(found)

    with pytest.raises(OSError, match="no page"):
        agent()
    assert agent() == "no page"
    assert log == ["page", "no page", "no page"]


def test_a_failure_that_ended_the_run_is_tried_again(log, failing):
    """The step that failed, and every one in the chain of the error, has another attempt."""
    first, second = failing("first", ValueError), failing("second", OSError)

    @workflow
    def agent():
        try:
            return first()
        except ValueError:
            return second()

    with pytest.raises(OSError, match="second"):
        agent()
    assert agent() == "first"
    assert log == ["first", "second", "first"]


def test_a_failure_that_was_handled_before_another_ended_the_run(log, failing):
    """A failure that has nothing to do with what ended the run is its outcome, and stays it."""
    fetch = failing("fetch", ValueError)

    def page():
        try:
            return fetch()
        except ValueError:
            pass
        if log.count("ended") == 0:
            log.append("ended")
            raise OSError
        return "without"

    agent = flow_of(page)
    with pytest.raises(OSError):
        agent()
    assert agent() == "without"
    assert log == ["fetch", "ended"]


def raised_from(how, error):
    """Raise another error that belongs to ``error`` in one way or another."""
    other = KeyError("other")
    if how == "its cause":
        raise RuntimeError from error
    if how == "its context":
        try:
            raise error
        except ValueError:
            raise RuntimeError  # noqa: B904
    if how == "its cause, with another context":
        try:
            raise other
        except KeyError:
            raise RuntimeError from error
    try:
        raise error
    except ValueError:
        raise RuntimeError from other


@pytest.mark.parametrize(
    "how",
    [
        "its cause",
        "its context",
        "its cause, with another context",
        "its context, with another cause",
    ],
)
def test_what_an_error_was_raised_from_is_tried_again(log, failing, how):
    """The step whose error is the cause or the context of what ended the run has another try."""
    fetch = failing("fetch", ValueError)

    @workflow
    def agent():
        error = None
        try:
            return fetch()
        except ValueError as caught:
            error = caught
        return raised_from(how, error)

    with pytest.raises(RuntimeError):
        agent()
    assert agent() == "fetch"
    assert log == ["fetch", "fetch"]


SERVICE = {"down": False}  # no part of a call, as a captured variable would be


def _mapped():
    all_began = threading.Barrier(4)

    @step
    def fetch(number):
        if SERVICE["down"]:
            all_began.wait()
            raise ConnectionError(number)
        return number

    return flow_of(lambda: stepwise.map(fetch, range(4)))


def _gathered():
    @step
    async def fetch(number):
        await asyncio.sleep(0)
        if SERVICE["down"]:
            raise ConnectionError(number)
        return number

    agent = aflow_of(lambda: asyncio.gather(*map(fetch, range(4))))
    return lambda: asyncio.run(agent())


@pytest.mark.parametrize("concurrently", [_mapped, _gathered])
def test_what_failed_beside_the_failure_is_tried_again(concurrently, monkeypatch):
    """If calls side by side fail, one error ends the run, and all calls have another attempt."""
    agent = concurrently()
    with monkeypatch.context() as during, pytest.raises(ConnectionError):
        during.setitem(SERVICE, "down", True)
        agent()
    assert agent() == [0, 1, 2, 3]


def test_a_failure_that_another_task_handled_stays_an_outcome(log, failing):
    """A failure in a task that the workflow went on from is not tried again after another error."""
    store = failing("store", OSError)

    @step
    async def fetch(what):
        log.append(what)
        raise ConnectionError(what)

    async def careful():
        try:
            return await fetch("page")
        except ConnectionError:
            return "none"

    @workflow(checkpoint_every=100)
    async def agent():
        found = await asyncio.gather(careful(), careful())
        return store(f"{found[0]} {found[1]}")

    with pytest.raises(OSError, match="none none"):
        asyncio.run(agent())
    assert asyncio.run(agent()) == "none none"
    assert log == ["page", "page", "none none", "none none"]


def test_the_exception_is_the_one_that_was_raised(once):
    """An exception leaves step and workflow as it is: same object, nothing wrapped around it."""
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        flow_of(step(name="work")(lambda: once("work", error)))()
    assert caught.value is error


# -- side effects that raise ---------------------------------------------------------------------


def test_a_side_effect_that_raised_is_in_doubt(log, failing):
    """An exception out of a side effect proves nothing: the next attempt stops and asks."""
    agent = flow_of(failing("post", OSError, tool, side_effect=True))
    with pytest.raises(OSError, match="post"):
        agent()
    with pytest.raises(StepInDoubtError, match="does not prove that nothing happened"):
        agent()
    assert log == ["post"]


def test_a_clean_failure_is_tried_again(log, failing):
    """An exception in ``fails_cleanly`` says that nothing happened: the call is made again."""
    options = {"side_effect": True, "fails_cleanly": ConnectionRefusedError}
    agent = flow_of(failing("post", ConnectionRefusedError, tool, **options))
    with pytest.raises(ConnectionRefusedError):
        agent()
    assert agent() == "post"
    assert log == ["post", "post"]


@pytest.mark.parametrize("where", ["in the program", "in the environment", "by nobody"])
def test_the_store_of_the_commands(where, tmp_path, monkeypatch, failing):
    """The commands that a doubt prints name the store where a shell would open another one."""
    url = f"disk:{tmp_path}/runs"
    if where == "in the program":
        stepwise.configure(store=url)
    elif where == "in the environment":
        monkeypatch.setenv("STEPWISE_STORE", url)
    flow = flow_of(failing("send", OSError, tool, side_effect=True))
    with pytest.raises(OSError):
        flow()
    with pytest.raises(StepInDoubtError) as caught:
        flow()
    assert (f" --store {url}" in str(caught.value)) == (where == "in the program")


def test_an_idempotent_side_effect_is_retried_with_its_key(log):
    """Each attempt of an idempotent tool, in this process and the next, has the same key."""
    keys = []

    @tool(side_effect=True, idempotent=True, retries=1, backoff=0, in_doubt="retry")
    def post():
        keys.append(stepwise.current_step().idempotency_key)
        if len(keys) < 4:
            raise OSError
        return "posted"

    agent = flow_of(post)
    with pytest.raises(OSError):
        agent()
    assert agent() == "posted"
    assert len(keys) == 4
    assert len(set(keys)) == 1


# -- side effects that raise ---------------------------------------------------------------------


# -- settling what is in doubt -------------------------------------------------------------------


def interrupted(log, **options):
    """A workflow whose side effect was interrupted; what it is asked is logged."""

    @tool(side_effect=True, **options)
    def post(text):
        log.append(stepwise.current_step().idempotency_key)
        if len(log) == 1:
            raise KeyboardInterrupt
        return "posted"

    agent = flow_of(lambda: post("hello"))
    with pytest.raises(KeyboardInterrupt):
        agent()
    return agent


def test_retry_repeats_with_the_recorded_key(log):
    """``in_doubt="retry"`` runs it again, with the key that the first attempt sent outside."""
    agent = interrupted(log, in_doubt="retry")
    assert agent() == "posted"
    assert len(log) == 2
    assert len(set(log)) == 1


def test_skip_returns_none(log):
    """``in_doubt="skip"`` goes on as if it had returned nothing, and remembers that."""
    assert interrupted(log, in_doubt="skip")() is None
    assert len(log) == 1


@pytest.mark.parametrize(
    ("answer", "result", "attempts"),
    [
        (Landed("found"), "found", 1),
        (DidNotHappen, "posted", 2),
        (DidNotHappen(), "posted", 2),
    ],
)
def test_reconcile_is_asked(log, answer, result, attempts):
    """A ``reconcile`` function gets arguments, key and time of the call, and its answer counts."""
    asked = []

    def reconcile(call):
        asked.append(call)
        return answer

    agent = interrupted(log, in_doubt=reconcile)
    assert agent() == result
    assert len(log) == attempts
    (call,) = asked
    assert call.arguments == {"text": "hello"}
    assert call.idempotency_key == log[0]
    assert call.error is None
    assert call.started_at > 0


@pytest.mark.parametrize("answer", [Inconclusive, None, True, OSError("no route")])
def test_reconcile_that_does_not_know_stops_the_run(log, answer):
    """An inconclusive or meaningless answer, or an error, leaves the doubt to a person."""

    def reconcile(call):
        if isinstance(answer, OSError):
            raise answer
        return answer

    said = r"could not tell|instead of Landed|no route"
    with pytest.raises(StepInDoubtError, match=said) as caught:
        interrupted(log, in_doubt=reconcile)()
    assert caught.value.__cause__ is (answer if isinstance(answer, OSError) else None)
    assert len(log) == 1


@pytest.mark.parametrize("codec", ["pickle", "json"])
def test_reconcile_sees_what_a_tool_raised_after_it_changed_its_argument(codec):
    """What a side effect raised reaches its ``reconcile``, although the call changed a list."""
    questions = []

    def reconcile(call):
        questions.append(call.error)
        return Landed("sent")

    @tool(side_effect=True, in_doubt=reconcile)
    def send(letters):
        letters.append("stamp")
        raise ConnectionError("lost")

    agent = flow_of(lambda: send(["letter"]), codec=codec)
    with pytest.raises(ConnectionError):
        agent()
    assert agent() == "sent"
    [error] = questions
    assert (type(error), str(error)) == (ConnectionError, "lost")


# -- what cannot be swallowed --------------------------------------------------------------------


@pytest.mark.parametrize("swallowed", [Exception, BaseException])
def test_a_doubt_cannot_be_swallowed(log, swallowed):
    """Even ``except BaseException`` does not get a run on: every later call raises it again."""
    go_on = step(name="go_on")(lambda: log.append("went on"))

    @tool(side_effect=True)
    def post():
        log.append("post")
        raise KeyboardInterrupt

    @workflow
    def agent():
        for _ in range(2):
            try:
                post()
            except swallowed:
                if log == ["post"]:  # the first attempt: let the Ctrl-C out
                    raise
        go_on()

    with pytest.raises(KeyboardInterrupt):
        agent()
    log.clear()
    with pytest.raises(StepInDoubtError):
        agent()
    assert log == []
