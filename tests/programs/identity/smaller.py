"""Makes a program in which something goes wrong smaller, as long as it still does."""

from __future__ import annotations

from dataclasses import replace

from identity.judge import Trials

BASIC = {"group": "gather", "helpers": "gather", "pool": "threads", "plugins": "set"}


def smaller(verdict, kind, before=""):
    """The smallest verdict found in which that went wrong, too."""
    shrinking = True
    while shrinking:
        shrinking = False
        for program in _candidates(verdict.program):
            found = _goes_wrong(program, kind, before)
            if found is not None:
                verdict, shrinking = found, True
                break
    return verdict


def _goes_wrong(program, kind, before):
    try:
        trials = Trials(program, before)
    except AssertionError:  # it is no program any more
        return None
    for lines in [(), *((line,) for line in trials)]:
        verdict = trials.kill(*lines)
        if kind in verdict.broken:
            return verdict
    return None


def _candidates(program):
    statements = program.statements
    for index, statement in enumerate(statements):
        others = statements[:index], statements[index + 1 :]
        for less in _less(statement):
            yield replace(program, statements=(*others[0], *less, *others[1]))
    for name in sorted(program.has):
        has = program.has - {name}
        objects = program.objects
        if name == "client":
            objects = tuple(replace(each, client="None", who="-") for each in objects)
        yield replace(program, has=has, posts_change=program.posts_change & has, objects=objects)
    used = {call[0] for each in statements for call in each.calls}
    last = len(program.objects) - 1
    if last > 0 and last not in used | {each.setting[0] for each in statements if each.setting}:
        yield replace(program, objects=program.objects[:-1])
    if program.place in ("lazy", "self"):
        yield replace(program, place="local")
    if program.carrier in ("dataclass", "attrs", "slots", "pydantic", "subclasses"):
        place = "local" if program.carrier == "subclasses" else program.place
        yield replace(program, carrier="plain", place=place)


def _less(statement):
    """What could stand in the place of a statement."""
    yield ()
    if statement.form not in ("set", "plugins"):
        for index in range(len(statement.calls)):
            if len(statement.calls) > 1:
                calls = statement.calls[:index] + statement.calls[index + 1 :]
                yield (replace(statement, calls=calls),)
    elif len(statement.calls) > 1:
        yield (replace(statement, calls=statement.calls[:-1]),)
    if statement.setting:
        yield (replace(statement, setting=()),)
    if statement.replayed:
        yield (replace(statement, replayed=False),)
    if statement.form in BASIC:
        yield (replace(statement, form=BASIC[statement.form]),)
    if statement.form == "gather" and len(statement.calls) == 1:
        yield (replace(statement, form="seq"),)
