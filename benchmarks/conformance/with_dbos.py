"""DBOS on SQLite: a workflow of steps, recovered by ``DBOS.launch()``; a gate is ``DBOS.recv``.

Answers carry an idempotency key, as its documentation advises.
"""

from dbos import DBOS, DBOSClient, SetWorkflowID
from world import BAD, FOLDER, KEYED, RUN, TWO_GATES, Waits, effect, main

URL = f"sqlite:///{FOLDER}/store.sqlite"
DBOS(
    config={
        "name": "order",
        "system_database_url": URL,
        "log_level": "CRITICAL",
        "run_admin_server": False,
        "notification_listener_polling_interval_sec": 0.05,
    }
)


def key():
    return f"{DBOS.workflow_id}/{DBOS.step_id}"


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
def reserve() -> list[str]:
    said = effect("reserve", key=key())
    return [None] if BAD else [said]


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
def charge(value: str) -> str:
    return effect("charge", value, key())


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
def notify() -> str:
    return effect("notify", key=key())


@DBOS.workflow()
def order() -> list[str]:
    said = reserve()
    DBOS.set_event("asked", 1)
    said.append(charge(DBOS.recv("approval", timeout_seconds=3600)))
    if TWO_GATES:
        DBOS.set_event("asked", 2)
        DBOS.recv("approval", timeout_seconds=3600)
    said.append(notify())
    return said


def follow(gate=1, workflow=RUN):
    """Wait for the end of the workflow, or for its question with this number."""
    handle = DBOS.retrieve_workflow(workflow)
    while handle.get_status().status in ("PENDING", "ENQUEUED"):
        asked = DBOS.get_event(workflow, "asked", timeout_seconds=0.2)
        answered = FOLDER / f"answered-{workflow}"
        if asked == gate and not (gate == 1 and answered.exists()):
            raise Waits(f"gate {gate}")
    return handle.get_result()


def start():
    DBOS.launch()
    with SetWorkflowID(RUN):
        DBOS.start_workflow(order)
    return follow()


def resume():
    DBOS.launch()  # recovers what is pending
    return follow()


def send(value, workflow=RUN, gate=1):
    client = DBOSClient(system_database_url=URL)
    client.send(workflow, value, "approval", idempotency_key=f"{workflow}, answer {gate}")
    (FOLDER / f"answered-{workflow}").touch()
    return "sent"


def answer(value):
    DBOS.launch()
    send(value)
    return follow(2)


def replay(value):
    return answer(value)


def fork(value):
    DBOS.launch()
    steps = DBOS.list_workflow_steps(RUN)
    at = next(each["function_id"] for each in steps if "recv" in each["function_name"])
    forked = DBOS.fork_workflow(RUN, at).workflow_id
    send(value, forked)
    return follow(2, forked)


main(
    {"start": start, "resume": resume, "answer": answer, "replay": replay, "fork": fork}
    | {"send": send}
)
