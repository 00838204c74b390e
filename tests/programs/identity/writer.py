"""The text of a drawn program, as a user would write it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

HEAD = """
import asyncio, datetime, functools, os, random, time, uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
import ledger
import stepwise
from stepwise import step, tool, workflow
"""
CHANGED = {"history": "{0}history.append({1})", "count": "{0}count += 1"}


class Writer:
    """Writes one program."""

    def __init__(self, program):
        self.program = program
        self.has = program.has
        self.a = "async " if program.is_async else ""
        self.w = "await " if program.is_async else ""
        self.body = f"{self.w}ledger.{'a' if program.is_async else ''}body"

    def text(self):
        parts = [HEAD.strip()]
        if self.program.shared:
            parts.append(f'SHARED = ledger.Client("{self.program.objects[0].who}")')
        parts += [*self.carrier(), *self.workflow(), "ledger.main(main)"]
        return "\n".join(parts) + "\n"

    # -- what is called ---------------------------------------------------------------------------

    def carrier(self) -> Iterator[str]:
        kind = self.program.carrier
        write = {
            "subclasses": self._subclasses,
            "classes": self._classes,
            "factory": self._factory,
            "loop": self._loop,
            "partial": self._partial,
            "bound": self._bound,
            "names": self._names,
            "children": self._children,
            "child methods": self._child_methods,
        }.get(kind, self._instances)
        yield from write()
        if self.program.place == "global" and kind not in ("loop", "names"):
            yield f"o = {self._all()}"

    def _made(self, each):
        number = self.program.objects.index(each)
        if self.program.carrier == "classes":
            return f"Agent{number}"
        if self.program.carrier == "subclasses":
            return f"Agent{number}({each.client})"
        if self.program.carrier == "names":
            return f"SimpleNamespace(ask=ask{number}, post=post{number})"
        makes = self.program.carrier in ("factory", "partial", "bound", "children")
        return f"{'make' if makes else 'Agent'}({each.config}, {each.client})"

    def _all(self):
        return f"[{', '.join(map(self._made, self.program.objects))}]"

    def _attributes(self):
        """What an instance begins with, beside configuration and client."""
        values = {
            "time": ("made", self.program.moment),
            "random": ("dice", "random.random()"),
            "history": ("history", "[]"),
            "count": ("count", "0"),
            "mode": ("mode", "0"),
            "level": ("level", "0"),
            "notes": ("notes", "[]"),
        }
        return [value for name, value in values.items() if name in self.has]

    def _truth(self, own="self.", config=None):
        config = f"{{{own}config}}" if config is None else config
        who = f"{{ledger.who({own}client)}}" if "client" in self.has else "-"
        mode = f"{{{own}mode}}" if "mode" in self.has else "0"
        return f'f"{config}/{who}/{mode}"'

    def _steps(self, truth, own="self.", first="self, ", above=(), level=None):
        """The functions that are called: a plain step, a side effect and a step that configures."""
        level = level or (f"{own}level" if "level" in self.has else "0")
        for name, decorated in (("ask", "@step"), ("post", "@tool(side_effect=True)")):
            changes = self.has if name == "ask" else self.program.posts_change
            yield from above
            yield decorated
            yield f"{self.a}def {name}({first}question):"
            if own == "" and "count" in self.has:
                yield "    nonlocal count"
            if "history" in changes & self.has:
                yield f"    {own}history.append(question)"
            if name == "ask" and "nested" in self.has:
                yield f"    {self.w}{own}think(question)"
            effect = ", effect=True" if name == "post" else ""
            yield f'    answer = {self.body}("{name}", {truth}, {level}, question{effect})'
            if "history" in changes & self.has:
                yield f'    {own}history.append("a")'
            if "count" in changes & self.has:
                yield f"    {own}count += 1"
            yield "    return answer"
        if "nested" in self.has:
            yield from above
            yield "@step"
            yield f"{self.a}def think({first}question):"
            if "count" in self.has:
                yield f"    {own}count += 1"
            yield f'    return {self.body}("think", {truth}, 0, question)'
        if "level" in self.has:
            yield from above
            yield "@step"
            yield f"{self.a}def switch({first}question):"
            yield f"    {own}level = 7"
            yield f'    return {self.body}("switch", {truth}, 0, question)'

    @property
    def fields(self):
        return [("config", "config"), ("client", "client"), *self._attributes()]

    def _class(self, name, *, slots=False):
        yield f"class {name}:"
        if slots:
            yield f"    __slots__ = ({' '.join(f'{name!r},' for name, _ in self.fields)})"
        yield "    def __init__(self, config, client):"
        yield from (f"        self.{name} = {value}" for name, value in self.fields)

    def _plain(self, truth, first, indent="", prefix=""):
        """Functions that are no steps: what others call."""
        for name, effect in (("ask", ""), ("post", ", effect=True")):
            yield f"{indent}{self.a}def {prefix}{name}({first}question):"
            yield f'{indent}    return {self.body}("{name}", {truth}, 0, question{effect})'

    def _workflows(self, lines, first="", own=""):
        """Child workflows around steps."""
        yield from _indented(
            line.replace("def ask(", "def do_ask(").replace("def post(", "def do_post(")
            for line in lines
        )
        for name in ("ask", "post"):
            yield "    @workflow"
            yield f"    {self.a}def {name}({first}question):"
            yield f"        return {self.w}{own}do_{name}(question)"

    def _instances(self):
        kind = self.program.carrier
        if kind in ("plain", "slots"):
            yield from self._class("Agent", slots=kind == "slots")
        else:
            yield from self._declared(kind)
        yield from _indented(self._steps(self._truth()))

    def _declared(self, kind):
        fields = [each for each in self.fields if kind != "pydantic" or each[0] != "client"]
        heads = {
            "dataclass": ("import dataclasses", "@dataclasses.dataclass", "class Agent:"),
            "frozen": ("import dataclasses", "@dataclasses.dataclass(frozen=True)", "class Agent:"),
            "attrs": ("import attrs", "@attrs.define", "class Agent:"),
            "pydantic": ("import pydantic", "class Agent(pydantic.BaseModel):"),
        }
        yield from heads[kind]
        for name, value in fields:
            if name == value:
                yield f"    {name}: object"
            else:
                made = {
                    "attrs": "attrs.field(factory=lambda: {})",
                    "pydantic": "pydantic.Field(default_factory=lambda: {})",
                }.get(kind, "dataclasses.field(default_factory=lambda: {})")
                yield f"    {name}: object = {made.format(value)}"
        if kind == "pydantic":  # has no positional arguments
            yield "    def __init__(self, config, client):"
            yield "        super().__init__(config=config)"

    def _subclasses(self):
        yield "class Agent:"
        yield "    def __init__(self, client):"
        yield from (
            f"        self.{n} = {v}" for n, v in [("client", "client"), *self._attributes()]
        )
        yield from _indented(self._steps(self._truth()))
        for number, _ in enumerate(self.program.objects):
            yield f"class Agent{number}(Agent):"
            yield f"    config = {number}"

    def _classes(self):
        yield "class Agent:"
        steps = self._steps(self._truth("cls."), own="cls.", first="cls, ", above=["@classmethod"])
        yield from _indented(steps)
        for number, each in enumerate(self.program.objects):
            yield f"class Agent{number}(Agent):"
            yield f"    config, client = {number}, {each.client}"
            yield from (f"    {name} = {value}" for name, value in self._attributes())

    def _factory(self):
        yield "def make(config, client):"
        for name, value in self._attributes():
            yield f"    {name} = {value}"
        truth = self._captured()
        yield from _indented(self._steps(truth, own="", first="", level="0"))
        if "count" in self.has:
            yield "    counted = lambda: count"
        held = [f"{n}={n}" for n in ("history",) if n in self.has]
        held += ["counted=counted"] * ("count" in self.has)
        yield f"    return SimpleNamespace({', '.join(['ask=ask', 'post=post', *held])})"

    def _captured(self):
        """The truth of a closure, which captures all of its attributes."""
        others = [name for name, _ in self._attributes() if name in ("made", "dice")]
        truth = self._truth(own="")
        return f"({truth}, {', '.join(others)})[0]" if others else truth

    def _loop(self):
        yield "o = []"
        listed = ", ".join(f"({each.config}, {each.client})" for each in self.program.objects)
        yield f"for config, client in [{listed}]:"
        extra = "".join(f", {name}={value}" for name, value in self._attributes())
        for line in self._steps(self._truth(own=""), own="", first="", level="0"):
            signature = f"(question, config=config, client=client{extra})"
            yield "    " + line.replace("(question):", f"{signature}:")
        yield "    o.append(SimpleNamespace(ask=ask, post=post))"

    def _partial(self):
        yield from self._plain(self._truth(""), "config, client, ", prefix="plain_")
        yield "def make(config, client):"
        yield "    do_ask = functools.partial(plain_ask, config, client)"
        yield "    do_post = functools.partial(plain_post, config, client=client)"
        yield from _indented(self._outer("do_ask", "do_post"))
        yield "    return SimpleNamespace(ask=ask, post=post)"

    def _outer(self, ask, post):
        yield "@step"
        yield f"{self.a}def ask(question):"
        yield f"    return {self.w}{ask}(question)"
        yield "@tool(side_effect=True)"
        yield f"{self.a}def post(question):"
        yield f"    return {self.w}{post}({'question=question' if 'do_' in post else 'question'})"

    def _bound(self):
        yield from self._class("Plain")
        yield from self._plain(self._truth(), "self, ", indent="    ")
        yield "def make(config, client):"
        yield "    held = Plain(config, client)"
        yield "    ask_it, post_it = held.ask, held.post"
        yield from _indented(self._outer("ask_it", "post_it"))
        yield "    return SimpleNamespace(ask=ask, post=post)"

    def _names(self):
        for number, _ in enumerate(self.program.objects):
            for name, decorator, effect in (
                ("ask", '@step(name="ask")', ""),
                ("post", '@tool(name="post", side_effect=True)', ", effect=True"),
            ):
                yield decorator
                yield f"{self.a}def {name}{number}(question):"
                yield f'    return {self.body}("{name}", "{number}/-/0", 0, question{effect})'
        yield f"o = {self._all()}"

    def _children(self):
        yield "def make(config, client):"
        for name, value in self._attributes():
            yield f"    {name} = {value}"
        yield from self._workflows(self._steps(self._captured(), own="", first="", level="0"))
        yield "    return SimpleNamespace(ask=ask, post=post)"

    def _child_methods(self):
        yield from self._class("Agent")
        yield from self._workflows(self._steps(self._truth()), "self, ", "self.")

    # -- the workflow -----------------------------------------------------------------------------

    def workflow(self):
        main = self._main()
        if self.program.place == "self":
            yield "class Team:"
            yield "    def __init__(self):"
            yield f"        self.o = {self._all()}"
            yield from _indented(main)
            yield "main = Team().main"
        else:
            yield from main

    def _main(self):
        mine = self.program.place == "self"
        yield "@workflow"
        yield f"{self.a}def main({'self' if mine else ''}):"
        yield "    out = {}"
        if mine:
            yield "    o = self.o"
        if self.program.place == "local":
            yield f"    o = {self._all()}"
        elif self.program.place == "lazy":
            yield "    o = {}"
        seen: set[int] = set()
        for number, statement in enumerate(self.program.statements):
            indent = "    "
            if self.program.place == "lazy":
                for each in sorted({call[0] for call in statement.calls} - seen):
                    yield f"    o[{each}] = {self._made(self.program.objects[each])}"
                    seen.add(each)
            if statement.setting and (self.program.place != "lazy" or statement.setting[0] in seen):
                yield f"    o[{statement.setting[0]}].mode = {statement.setting[1]}"
            if statement.replayed:
                yield "    with open(os.devnull):"
                indent = "        "
            yield from (indent + line for line in self._statement(number, statement))
        yield f"    return {{'out': out, 'state': {self._state()}}}"

    def _state(self):
        parts = [f"x.{n}" for n in ("history", "count", "level", "notes") if n in self.has]
        if self.program.carrier == "factory":
            parts = [each.replace("count", "counted()") for each in parts]
        if self.program.carrier == "loop":
            return "[]"
        values = "[x for _, x in sorted(o.items())]" if self.program.place == "lazy" else "o"
        return f"[[{', '.join(parts)}] for x in {values}]" if parts else "[]"

    def _statement(self, number, statement):
        calls = [
            (f"{number}.{i}", f"o[{each}].{function}", f'"q{question}"', each)
            for i, (each, function, question) in enumerate(statement.calls)
        ]
        return getattr(self, f"_{statement.form}")(calls)

    def _noted(self, each, question):
        if "notes" in self.has:
            yield f"o[{each}].notes.append({question})"

    def _seq(self, calls):
        for site, function, question, each in calls:
            yield from self._noted(each, question)
            yield f'out["{site}"] = ledger.got("{site}", {self.w}{function}({question}))'

    def _set(self, calls):
        function, question = calls[0][1].partition(".")[2], calls[0][2]
        number = calls[0][0].partition(".")[0]
        yield f"for i in ledger.order(range({len(calls)})):"
        yield from _indented(self._noted("i", question))
        yield f'    site = f"{number}.{{i}}"'
        yield f"    out[site] = ledger.got(site, {self.w}o[i].{function}({question}))"

    def _plugins(self, calls):
        listed = ", ".join(f'("{site}", {function})' for site, function, _, _ in calls)
        yield f"plugins = dict(ledger.order([{listed}]))"
        yield "for site, plugin in plugins.items():"
        yield f"    out[site] = ledger.got(site, {self.w}plugin({calls[0][2]}))"
        yield "del plugins, plugin"

    def _listed(self, calls):
        listed = ", ".join(f'("{s}", {function}, {question})' for s, function, question, _ in calls)
        return f"[{listed}]"

    def _threads(self, calls):
        yield f"out.update(ledger.in_threads({self._listed(calls)}))"

    def _pool(self, calls):
        yield f"calls = {self._listed(calls)}"
        yield "with ThreadPoolExecutor(4) as pool:"
        yield "    answers = list(pool.map(lambda call: call[1](call[2]), calls))"
        yield "out.update((c[0], ledger.got(c[0], a)) for c, a in zip(calls, answers))"
        yield "del calls"

    def _map(self, calls):
        questions = ", ".join(question for _, _, question, _ in calls)
        sites = [site for site, _, _, _ in calls]
        yield f"answers = stepwise.map({calls[0][1]}, [{questions}])"
        yield f"out.update((s, ledger.got(s, a)) for s, a in zip({sites}, answers))"

    def _gather(self, calls):
        made = ", ".join(f"{function}({question})" for _, function, question, _ in calls)
        yield f"answers = await asyncio.gather({made})"
        sites = [site for site, _, _, _ in calls]
        yield f"out.update((s, ledger.got(s, a)) for s, a in zip({sites}, answers))"

    def _helpers(self, calls):
        made = ", ".join(f'ledger.agot("{s}", {function}({q}))' for s, function, q, _ in calls)
        yield f"answers = await asyncio.gather({made})"
        yield f"out.update(zip({[site for site, _, _, _ in calls]}, answers))"

    def _group(self, calls):
        yield "async with asyncio.TaskGroup() as group:"
        for n, (site, function, question, _) in enumerate(calls):
            yield f'    t{n} = group.create_task(ledger.agot("{site}", {function}({question})))'
        tasks = ", ".join(f'"{site}": t{n}.result()' for n, (site, *_) in enumerate(calls))
        yield f"out.update({{{tasks}}})"
        yield f"del group, {', '.join(f't{n}' for n in range(len(calls)))}"


def _indented(lines):
    return (textwrap.indent(line, "    ") for line in lines)
