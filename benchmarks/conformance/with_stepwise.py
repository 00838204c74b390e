"""stepwise: a script that is run again.  A gate is a signal; with two gates, the tools ask."""

import contextlib

from world import BAD, FOLDER, KEYED, RUN, TWO_GATES, Asks, Refused, Waits, effect, ledger, main

import stepwise
from stepwise import DidNotHappen, Landed, current_step, tool, workflow

stepwise.configure(store=f"disk:{FOLDER}/store", suspend_after=0)


def landed(call):
    """Ask the receiver whether it has an effect with this key."""
    found = [each for each in ledger() if each["key"] == call.idempotency_key]
    if not found:
        return DidNotHappen
    said = f"{found[0]['name']} {found[0]['value']}".strip()
    return Landed([said] if call.name == "reserve" else said)


effectful = tool(side_effect=True, in_doubt=landed if KEYED else "raise")
asked = tool(side_effect=True, in_doubt=landed if KEYED else "raise", approve=TWO_GATES)


@effectful
def reserve() -> list[str]:
    said = effect("reserve", key=current_step().idempotency_key)
    return [None] if BAD else [said]


@asked
def charge(value: str) -> str:
    return effect("charge", value, current_step().idempotency_key)


@asked
def notify() -> str:
    return effect("notify", key=current_step().idempotency_key)


@workflow
def order() -> list[str]:
    said = reserve()
    value = "yes" if TWO_GATES else stepwise.wait_for("approval", type=str)
    said.append(charge(value))
    said.append(notify())
    return said


def resume(run_id=RUN):
    try:
        return order.options(run_id=run_id)()
    except stepwise.RunSuspended as error:
        raise Waits(str(error)) from error
    except (stepwise.RunBusyError, stepwise.RunOwnedError, stepwise.LeaseLostError) as error:
        raise Refused(str(error)) from error
    except stepwise.StepInDoubtError as error:
        raise Asks(str(error)) from error


def answer(value):
    run = stepwise.get_run(RUN)
    if TWO_GATES:
        (question,) = run.questions
        (FOLDER / "ticket").write_text(f"{question.step} {question.ticket}")
        question.approve()
    else:
        deliver(run, value)
    return resume()


def deliver(run, value):
    with contextlib.suppress(stepwise.RunEndedError):
        run.send("approval", value, key="the answer")


def replay(value):
    run = stepwise.get_run(RUN)
    if TWO_GATES:
        number, ticket = (FOLDER / "ticket").read_text().split()
        with contextlib.suppress(stepwise.StepwiseError):  # it says that this ticket was answered
            run.approve(int(number), ticket)
    else:
        deliver(run, value)
    return resume()


def fork(value):
    run = stepwise.get_run(RUN)
    asked = next(each for each in run.steps if each.name == "stepwise.wait_for")
    return resume(run.fork(results={asked.number: value}).id)


main({"start": resume, "resume": resume, "answer": answer, "replay": replay, "fork": fork})
