"""Writes random agents: state objects with aliases and clients, and steps that change them."""

from __future__ import annotations

import random
import textwrap

PRELUDE = """\
@step
def ch(state, operation, x):
    return change(state, operation, x)

@step
def two(one, other, x):
    quietly(one, 'deep', x)
    return change(other, 'append', x)

@step
def items_of(items, x):
    items[0] = x
    return change({'items': items, 'table': {}}, 'reverse', x)

@step
def tell(x):
    return told(x)

@step
def ask(tag, x):
    return model(tag, x)

@tool(side_effect=True, in_doubt='retry')
def pay(x):
    return paid(x)
"""

AGENT = """\
class Agent:
    def __init__(self, state):
        self.state = state
        self.team = {'lead': [state]}

    @step
    def touch(self, operation, x):
        return change(self.state, operation, x)

    @step
    def ask_lead(self, x):
        CHANGES
        return summary(self.team['lead'][0]) + told(x)
"""


class StateWriter:
    """Writes one program, the same for the same seed.

    Args:
        features: ``changes``: steps change state in place; ``clients``: state objects hold clients;
            ``retries``: outer steps fail once.
        kinds: the kinds of state objects.
        operations: the names of what a step may do to one.
    """

    def __init__(self, seed, features, kinds, operations):
        self.random = random.Random(seed)
        self.chance = self.random.random
        self.any = self.random.choice
        self.features = features
        self.kinds = [*kinds]
        self.operations = [*operations] if "changes" in features else ["look"]
        self.is_method = self.chance() < 0.35
        self.crews = self.random.randint(1, 2) if "retries" in features else 0
        self.number = 0
        self.given, self.given_client = self.kind()

    def kind(self):
        """A kind of state object, and the model of its client, if it holds one."""
        if "clients" in self.features and self.chance() < 0.4:
            return self.any(["own", "data", "bags", "random"]), self.any(["small", "large"])
        return self.any(self.kinds), None

    def program(self):
        """The source of a module that defines ``prog`` or ``Agent.prog``."""
        parts = [PRELUDE, *(self.crew(number) for number in range(self.crews))]
        main = self.main()
        if self.is_method:
            changes = "self.lead = x" if "changes" in self.features else "pass"
            main = AGENT.replace("CHANGES", changes) + "\n" + textwrap.indent(main, "    ")
        return "\n\n".join([*parts, main]) + "\n"

    def crew(self, number):
        """An outer step that fails once, since the model answered garbage."""
        calls = [self.any(["x = tell(x)", "x = pay(x)"]) for _ in range(self.any([1, 2, 3]))]
        calls.insert(self.random.randint(0, len(calls)), "x = checked(ask(tag, x))")
        lines = ["@step(retries=2, backoff=0)", f"def crew{number}(state, tag, x):"]
        lines += [f"    {each}" for each in calls]
        if "changes" in self.features:  # after the last call that can fail
            lines.append("    quietly(state, 'append', x)")
        return "\n".join([*lines, "    return x % 50"])

    def main(self):
        every = self.any([1, 1, 2, 3, 1000])
        me = "self, " if self.is_method else ""
        lines = [f"@workflow(name='prog', checkpoint_every={every})", f"def prog({me}a, given):"]
        kind, client = self.kind()
        lines += [
            "    b = 1",
            f"    mine = make({kind!r}, 3, {client!r})",
            "    alias = get(mine, 'items')",
            "    held = {'states': [mine, given], 'items': get(given, 'items')}",
        ]
        if self.chance() < 0.4:
            lines.append("    put(mine, 'peer', given)")
        if self.chance() < 0.3:
            lines.append("    put(given, 'items', alias)")
        if "changes" in self.features and self.chance() < 0.5:
            lines += ["    @step", "    def captured(x):", "        return change(mine, 'deep', x)"]
            self.captured = True
        else:
            self.captured = False
        self.depth = 0
        count = self.any([3, 4, 5, 6, 8])
        for _ in range(count):
            lines += self.statement("    ")
        ends = "(a, b, summary(mine), summary(given), alias is get(mine, 'items'))"
        return "\n".join([*lines, f"    return keep({{**locals(), 'captured': None}}, {ends})"])

    # -- expressions -----------------------------------------------------------------------------

    def x(self):
        """A number."""
        return self.any(["a", "b", "a % 7", "len(alias)", str(self.random.randint(0, 9))])

    def state(self):
        """A state object, by one of its names."""
        names = ["mine", "mine", "given", "held['states'][0]", "held['states'][1]"]
        return self.any([*names, *(["self.state"] if self.is_method else ())])

    def call(self, x=None):
        """An expression that calls a step."""
        x = x or self.x()
        change = f"ch({self.state()}, {self.any(self.operations)!r}, {x})"
        calls = [change] * 6 + [f"tell({x})"]
        if "changes" in self.features:
            calls += [f"two({self.state()}, {self.state()}, {x})", f"items_of(alias, {x})"]
        if self.captured:
            calls += [f"captured({x})"] * 2
        if self.is_method:
            calls += [f"self.touch({self.any(self.operations)!r}, {x})"] * 2
            calls.append(f"self.ask_lead({x})")
        return self.any(calls)

    # -- statements ------------------------------------------------------------------------------

    def statement(self, indent):
        kinds = ["step"] * 6 + ["comprehension"] * 2 + ["own", "log"]
        kinds += ["crew"] * (3 if self.crews and not self.depth else 0)
        if self.depth < 2:
            kinds += ["loop", "branch"]
        self.depth += 1
        lines = getattr(self, f"write_{self.any(kinds)}")()
        self.depth -= 1
        return [indent + line for line in lines]

    def write_step(self):
        call = self.call()
        return [
            self.any([f"a = {call}", f"b = {call}", f"a += {call}", f"held['x'] = {call}", call])
        ]

    def write_comprehension(self):
        over = self.any(["range(2)", "range(3)", "(4, 5)"])
        call = self.call("q")
        ways = [f"a = sum([{call} for q in {over}])", f"b = sum({call} for q in {over})"]
        ways += [f"held['all'] = [{call} for q in {over}]", f"a = (lambda q: {call})({self.x()})"]
        ways.append(f"held['by'] = {{q: {call} for q in {over}}}")
        return [self.any(ways)]

    def write_crew(self):
        self.number += 1
        crew = f"crew{self.random.randrange(self.crews)}"
        return [f"a = {crew}({self.state()}, 'tag{self.number}', {self.x()})"]

    def write_own(self):
        """What the workflow's own code does to its state."""
        operation = self.any(["append", "deep", "count"])
        ways = [
            f"alias.append({self.x()})",
            f"quietly({self.state()}, {operation!r}, {self.x()})",
            "alias = get(mine, 'items')",
            "del alias[3:]",
            "held['items'] = get(given, 'items')",
        ]
        return [self.any(ways)]

    def write_log(self):
        return [f"log({self.random.randint(0, 99)}, summary({self.state()}))"]

    def write_loop(self):
        self.number += 1
        crews, self.crews = self.crews, 0  # a tag fails once
        head = f"for i{self.number} in {self.any(['range(2)', 'range(3)', '(7, 8)'])}:"
        lines = [head, *self.statement("    ")]
        if self.chance() < 0.5:
            lines += self.statement("    ")
        self.crews = crews
        return lines

    def write_branch(self):
        test = self.any([f"{self.x()} % 2", f"summary({self.state()}) > 40", f"{self.call()} % 2"])
        return [f"if {test}:", *self.statement("    "), "else:", *self.statement("    ")]
