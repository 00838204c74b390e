"""Writes random workflow functions: nested statements, mutation, aliasing, closures, failures."""

from __future__ import annotations

import random
import sys
import textwrap


class Writer:
    """Writes one program, the same for the same seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.chance = self.random.random
        self.any = self.random.choice
        self.is_async = self.chance() < 0.35
        self.is_method = self.chance() < 0.2
        self.wait = "await " if self.is_async else ""
        self.define = "async def" if self.is_async else "def"
        self.children = []
        self.number = 0

    def program(self):
        """The source of a module that defines ``prog`` or ``Agent.prog``."""
        parts = []
        if self.chance() < 0.3:
            parts.append(self.helper())
            self.children.append("helper")
        if self.chance() < 0.35:
            parts.append(self.function("child", self.any([2, 4, 6])))
            self.children.append("child")
        if self.chance() < 0.12:
            parts.append(self.recursion())
            self.children.append("down")
        main = self.function("prog", self.any([3, 4, 5, 6, 8, 10, 14]))
        if self.is_method:
            head = ["class Agent:", "    def __init__(self):", "        self.v, self.notes = 0, []"]
            main = "\n".join([*head, "", textwrap.indent(main, "    ")])
        return "\n\n".join([*parts, main]) + "\n"

    # -- functions -------------------------------------------------------------------------------

    def function(self, name, budget):
        self.budget = budget
        self.depth = self.loops = 0
        self.sealed = False  # in a finally or an except*: no break, continue, return
        self.closed = False  # where no run can go on: what is drawn there is drawn again
        self.closures = self.chance() < 0.5
        self.main = name == "prog"
        self.method = self.is_method and self.main
        self.total = self.main and self.chance() < 0.4
        every = self.any([1, 1, 1, 1, 2, 3])
        me = "self, " if self.method else ""
        lines = [f"@workflow(name={name!r}, checkpoint_every={every})"]
        if self.main:
            lines += [f"{self.define} prog({me}a, acc, m, box):", "    b, w = 1, 0"]
        else:
            lines += [
                f"{self.define} {name}(a, acc):",
                "    b, w, m, box = 1, 0, {'k': a}, Box()",
            ]
        lines += ["    global TOTAL"] * self.total
        lines += ["    alias = m"]
        if self.closures:
            lines += [
                "    count = 0",
                "    def bump():",
                "        nonlocal count",
                "        count += 1",
                "        acc.append(count % 3)",
                "        return count",
                "    f = lambda q: (q + count) % 6",
            ]
        while self.budget > 0:
            lines += self.statement("    ")
        total = ", TOTAL" * self.total
        last = f"(a, b, w, list(acc), dict(m), alias is m, box.v{total})" if self.main else "b"
        return "\n".join([*lines, f"    return keep(locals(), {last})"])

    def helper(self):
        """Undecorated: inside of it there are no resume points."""
        return textwrap.dedent(
            f"""\
            {self.define} helper(x, acc):
                acc.append(log('helper', {self.wait}st(x)))
                return {self.wait}st(x + {self.any([0, 1])}) + len(acc)"""
        )

    def recursion(self):
        return textwrap.dedent(
            f"""\
            @workflow
            {self.define} down(n, acc):
                n = n % 3
                acc.append({self.wait}st(n))
                log('down', n)
                below = {self.wait}down(n - 1, acc) if n else 0
                {self.any(["log(below)", f"{self.wait}st(below)"])}
                return keep(locals(), below + n)"""
        )

    # -- expressions -----------------------------------------------------------------------------

    def value(self):
        """An expression for a number, without a step."""
        r = self.random
        values = ["a", "b", "a + 1", "b * 2 % 7", "len(acc)", "acc[-1] if acc else 3", "m['k'] % 9"]
        values += [str(r.randint(0, 5)), str(r.randint(0, 5)), "sum(acc) % 5", "box.v"]
        if self.closures:
            values += ["count", "bump()", "f(a)"]
        if self.method:
            values += ["self.v", "len(self.notes)"]
        if self.total:
            values += ["TOTAL % 7", "TOTAL % 3"]
        return self.any(values)

    def step(self):
        """An expression that calls a step."""
        value, wait = self.value(), self.wait
        kinds = [f"{wait}st({value})"] * 8
        kinds += [
            f"{wait}tl({value})",
            f"{wait}st({wait}st({value}) % 3)",
            f"({wait}st({value}) if {self.test()} else {self.value()})",
            f"sum([{wait}st(q) for q in range({self.any([0, 1, 2])})])",
            f"(w := {wait}st({value}))",
            f"{{'x': {wait}st({value}), 'y': 1}}['x']",
            f"len(str({wait}st({value})))",
        ]
        kinds += [f"{wait}{child}({value}, acc)" for child in self.children for _ in range(3)]
        if self.is_async:
            kinds.append(f"sum(await gather(st({value}), st({self.value()})))")
        else:
            kinds.append(f"sum(st(q) for q in [{value}, 1])")
            kinds.append(f"(lambda q: st(q) + 1)({value})")
        return self.any(kinds)

    def test(self):
        value = self.value()
        return self.any(
            [
                f"({value}) % 2 == 0",
                f"({value}) > 2",
                f"1 < ({value}) <= 4",
                "acc",
                "not acc",
                "m is alias",
                f"(w := ({value})) > 1",
                f"{self.wait}st({value}) % 3 == 1",
                f"{self.wait}st({value}) > 2 and ({self.value()}) < 9",
            ]
        )

    def name(self, letter):
        self.number += 1
        return f"{letter}{self.number}"

    # -- simple statements -----------------------------------------------------------------------

    def block(self, indent):
        lines = []
        for _ in range(self.any([1, 1, 1, 2, 2, 3])):
            lines += self.statement(indent)
        return lines

    def statement(self, indent):
        self.budget -= 1
        kinds = ["step"] * 5 + ["log"] * 2 + ["assign", "mutate", "bind", "define", "draw", "mark"]
        if self.budget > 0 and self.depth < 4:
            kinds += ["if", "if", "for", "for", "while", "try", "try", "with", "match"]
        if self.loops and not self.sealed:
            kinds += ["leave", "leave"]
        if self.depth and not self.sealed and self.chance() < 0.06:
            kinds = ["early"]
        kind = self.any(kinds)
        self.depth += 1
        try:
            lines = getattr(self, f"write_{kind}")()
        finally:
            self.depth -= 1
        return [indent + line for line in lines]

    def write_step(self):
        step = self.step()
        return [
            self.any(
                [
                    step,
                    f"a = {step}",
                    f"b: int = {step}",
                    f"a = b = {step}",
                    f"acc.append({step})",
                    f"acc += [{step}]",
                    f"b += {step}",
                    f"m['k'] = {step}",
                    f"m[{self.wait}st({self.value()})] = {step}",
                    f"box.v = {step}",
                    f"b, c = {step}, {self.step()}",
                    f"a, *rest = [{step}, {self.value()}, 7]",
                    f"assert {step} is not None",
                    *([f"self.v = {step}", f"self.notes.append({step})"] if self.method else ()),
                    *([f"TOTAL = {step}", f"TOTAL += {step}"] * 2 if self.total else ()),
                ]
            )
        ]

    def write_log(self):
        return [f"log({self.random.randint(0, 99)}, {self.value()})"]

    def write_assign(self):
        name, value = self.any("ab"), self.value()
        kinds = [f"{name} = {value}", f"{name} += 1", f"a, b = b, {value}", "box.v += 1"]
        return [self.any([*kinds, *(["TOTAL += 1", f"TOTAL = {value}"] if self.total else ())])]

    def write_mutate(self):
        changes = [
            [f"acc.append({self.value()})"],
            ["alias['z'] = len(m)"],
            ["del acc[-1:]"],
            ["m.pop('z', None)"],
            ["acc = acc[-3:]"],
            ["pair = [acc, m, box]", "pair.append(pair)"],
            ["it = iter([4, 5, 6])", "next(it)"],
            [f"acc.extend([q + a for q in range({self.any([0, 1, 2])})])"],
            [f"acc.extend([w := q for q in range({self.any([1, 2])})])"],
        ]
        if self.method:
            changes += [["self.notes.append(acc)"], ["self.v += 1"], ["self.extra = box"]]
        return self.any(changes)

    def write_bind(self):
        """A variable that comes and goes."""
        name = self.name("t")
        return [f"{name} = [a, b, acc]", self.step(), f"del {name}"]

    def write_draw(self):
        """What a plain statement draws, and a side effect gets."""
        if self.closed:
            return self.write_log()
        d = self.name("d")
        between = self.any([[], [f"{d} += 1"], ["a = a + 1"], [f"log({d} > 0)"]])
        call = f"{self.wait}td({d}, {self.value()})"
        after = self.any(
            [[f"a = {call}"], [f"if {call} > 2:", "    b = a"], [f"acc.append({call})"]]
        )
        return [f"{d} = draw()", *between, *after, f"del {d}"]

    def write_mark(self):
        """A sentinel in a variable, a container, a default; a global."""
        u, mark = self.name("u"), self.any(["UNSET", "ABSENT"])
        return self.any(
            [
                [f"{u} = {mark}", self.step(), f"a = a + ({u} is {mark})"],
                [f"{u} = [{mark}, {{'k': {mark}}}]", self.step()]
                + [f"b = ({u}[0] is {u}[1]['k'] is {mark}) + b"],
                [f"{u} = lambda q={mark}: q is {mark}", self.step(), f"b = b + {u}()"],
            ]
        )

    def write_define(self):
        """Functions and classes of the program's own."""
        g = self.name("g")
        return self.any(
            [
                [f"{g} = lambda q: q + a + {self.value()}", f"b = {g}(1) % 9"],
                [f"def {g}(q, held=[a]):", "    held.append(q)", "    return len(held) + b"]
                + [f"a = {g}(0)", self.step(), f"a = {g}(1)"],
                ["@add_one", f"def {g}(q):", "    return q + b", f"b = {g}({self.value()}) % 9"],
                ["class K:", "    z = a", "    def get(self):", "        return self.z + b"]
                + [f"{g} = K()", self.step(), f"a = {g}.get() % 11"],
                ["import math as mm", "a = mm.floor(a)"],
                ["class K(Box):", f"    x = {'a' if self.is_async else self.step()}", "b = K.x"],
                [f"{self.define} {g}():", "    nonlocal b", f"    b = {self.wait}st(b)"]
                + ["    return b", f"a = {self.wait}{g}()"],
            ]
        )

    def write_leave(self):
        what = self.any(["break", "break", "continue"])
        if self.chance() < 0.3:
            return [f"if {self.test()}:", f"    log('{what}', a)", f"    {what}"]
        return [f"if ({self.value()}) > {self.random.randint(1, 4)}: {what}"]

    def write_early(self):
        value = self.any(["('early', a, b, acc, m)", f"('early', {self.step()})"])
        return [f"return keep(locals(), {value if self.main else self.step()})"]

    # -- compound statements ---------------------------------------------------------------------

    def write_if(self):
        lines = [f"if {self.test()}:", *self.block("    ")]
        if self.chance() < 0.4:
            lines += [f"elif {self.test()}:", *self.block("    ")]
        if self.chance() < 0.5:
            lines += ["else:", *self.block("    ")]
        return lines

    def write_while(self):
        n = self.name("n")
        test = f"({n} := {n} - 1) >= 0"
        if self.chance() < 0.5:
            test += f" and {self.test()}"
        lines = [f"{n} = {self.any([1, 2, 2, 3])}", f"while {test}:"]
        if self.chance() < 0.15:
            lines = [f"{n} = 0", "while True:", f"    if ({n} := {n} + 1) > 2: break"]
        return [*lines, *self.loop_body(), *self.loop_else()]

    def write_for(self):
        i = self.name("i")
        sources = [
            (i, f"range({self.any([1, 2, 3])})"),
            (i, "list(acc[:3])"),
            (i, "acc"),
            (i, "{'p': 1, 'q': 2}"),
            (i, "{3}"),
            (i, "sorted({3, 1})"),
            (i, "reversed([1, 2])"),
            (i, f"[{self.step()}, 2]"),
            (i, "gen(2)"),
            (i, "(q for q in [a, 2])"),
            (i, "map(str, [1, 2])"),
            (i, "'xy'"),
            (f"({i}, _)", "enumerate([5, 6])"),
            (f"({i}, *_)", "zip([1, 2], [3, 4])"),
            ("box.v", "[7, 8]"),
            ("m['k']", "(2, 3)"),
        ]
        if self.is_async:
            sources += [(i, "agen(2)"), (i, "Count(2)"), (i, "Count(2)")] * 3
        target, iterable = self.any(sources)
        wait = "async " if iterable.startswith(("agen", "Count")) else ""
        first = ["    if len(acc) > 9: break"] if iterable == "acc" else []
        body = self.loop_body(closed=iterable.startswith(("gen", "agen", "(q for")))
        return [f"{wait}for {target} in {iterable}:", *first, *body, *self.loop_else()]

    def inside(self, *, closed):
        """A block in which a run may not be able to go on."""
        before, self.closed = self.closed, self.closed or closed
        lines = self.block("    ")
        self.closed = before
        return lines

    def loop_body(self, *, closed=False):
        self.loops += 1
        lines = self.inside(closed=closed)
        self.loops -= 1
        return lines

    def loop_else(self):
        return ["else:", *self.block("    ")] if self.chance() < 0.25 else []

    def write_with(self):
        # No head names what a block may bind anew: on resume a head is evaluated again.
        h = self.name("h")
        managers = [f"Good() as {h}", "Good()", "suppress(LookupError)", f"bad() as {h}"]
        managers += [f"Good(box) as {h}", f"Good() as {h}, suppress(ValueError)", "Good(), bad()"]
        managers += [f"nullcontext([7]) as {h}", f"Good({self.wait}st(3)) as {h}"]
        manager = self.any(managers)
        wait = self.is_async and manager.startswith("Good") and "," not in manager
        lines = [f"{'async ' if wait and self.chance() < 0.8 else ''}with {manager}:"]
        lines += self.inside(closed="bad" in manager or "st(" in manager)
        if "suppress" in manager:
            lines.append(f"    {self.failure()}")
        return lines

    def failure(self):
        """A statement that may raise what is expected of it."""
        if self.sealed:
            return "log('no failure')"
        return self.any(
            [
                f"{self.wait}bm({self.value()})",
                f"raise ValueError({self.value()})",
                f"a = 1 // (({self.value()}) % 2)",
                "acc[99]",
                "m['nobody']",
            ]
        )

    def write_try(self):
        body = self.block("    ")
        if self.chance() < 0.7:
            body.append(f"    {self.failure()}")
        lines = ["try:", *body]
        if self.chance() < 0.25:
            return [*lines, "finally:", *self.seal()]
        star = sys.version_info >= (3, 11) and self.chance() < 0.15
        caught = self.any(["ValueError", "(ValueError, ArithmeticError, LookupError)"])
        lines.append(f"except{'*' if star else ''} {caught} as e:")
        lines += self.seal() if star else self.inside(closed=True)
        lines.append(self.any(["    log('caught', str(e))", "    failed = e", "    raise"]))
        if self.chance() < 0.3:
            lines += ["else:", *self.block("    ")]
        if self.chance() < 0.3:
            lines += ["finally:", *self.seal()]
        return lines

    def seal(self):
        """A block that nothing leaves: that would swallow the exception that plays a crash."""
        before, self.sealed = self.sealed, True
        lines = self.inside(closed=True)
        self.sealed = before
        return lines

    def write_match(self):
        x, y = self.name("x"), self.name("y")
        patterns = [f"(0, {x})", f"({x}, {y}) if {x} > {y}", f"[{x}, *{y}]", f"(1 | 2 as {x}, _)"]
        lines = [f"match ({self.value()}, {self.any([self.value(), self.step()])}):"]
        if self.chance() < 0.25:
            patterns = [f"Box(v={x})", f"{{'k': {x}, **{y}}}", f"[{x}, *_]"]
            lines = [f"match {self.any(['box', 'm', 'acc'])}:"]
        self.random.shuffle(patterns)
        for pattern in patterns[: self.any([1, 2, 3])]:
            lines += [f"    case {pattern}:", *self.block("        ")]
        if self.chance() < 0.6:
            lines += ["    case _:", *self.block("        ")]
        return lines
