"""A random program with several objects, of one seed, and what may be expected of it."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from functools import cached_property

INSTANCES = ("plain", "plain", "dataclass", "frozen", "slots", "attrs", "pydantic")
CARRIERS = (*INSTANCES, "subclasses", "classes", "factory", "factory", "loop", "partial", "bound")
CARRIERS += ("names", "children", "child methods")
CHANCES = {
    "client": 0.3,
    "time": 0.3,
    "random": 0.07,
    "history": 0.5,
    "count": 0.3,
    "mode": 0.25,
    "level": 0.15,
    "notes": 0.2,
    "nested": 0.15,
}
MAY_HAVE = {
    "frozen": {"client", "time", "random", "history"},
    "factory": {"client", "time", "random", "history", "count"},
    "loop": {"client", "time", "random", "history"},
    "partial": {"client"},
    "bound": {"client", "time", "random"},
    "names": set(),
    "children": {"client", "time", "random"},
    "child methods": {"client", "time", "random", "mode"},
    "pydantic": {"time", "random", "history", "count", "mode", "level", "notes", "nested"},
}
TIMES = {
    "uuid.uuid4()": "uuid",
    "uuid.uuid4().hex": "uuid",
    "str(uuid.uuid4())": "uuid",
    "time.time()": "time",
    "time.time_ns()": "time",
    "datetime.datetime.now()": "datetime",
    "datetime.datetime.now().isoformat()": "datetime",
    "time.ctime()": "time",
}
ONE_AFTER_ANOTHER = ("seq", "set", "plugins")
BESIDE_EACH_OTHER = {
    False: ("threads", "pool", "map"),
    True: ("gather", "gather", "helpers", *(["group"] if sys.version_info >= (3, 11) else [])),
}


@dataclass(frozen=True)
class Object:
    """One of the objects of a program: what it is configured with, and the account behind it."""

    config: int
    client: str  # the expression that makes it
    who: str

    @property
    def visible(self):
        return self.config, self.client[:6]


@dataclass(frozen=True)
class Statement:
    """Calls that a statement of the workflow makes: (object, function, question) of each."""

    form: str
    calls: tuple
    setting: tuple = ()  # (object, mode) that the workflow sets before
    replayed: bool = False  # it stands in a block that cannot be entered again

    @property
    def beside(self):
        return self.form not in ONE_AFTER_ANOTHER


@dataclass(frozen=True)
class Program:
    """A drawn program."""

    seed: str
    carrier: str
    has: frozenset
    objects: tuple
    statements: tuple
    place: str  # of the objects: local, global, lazy, or the workflow is a method and self has them
    is_async: bool
    moment: str = "time.time()"
    posts_change: frozenset = frozenset()

    @cached_property
    def source(self):
        from identity.writer import Writer

        return Writer(self).text()

    @property
    def size(self):
        calls = sum(len(each.calls) for each in self.statements)
        return 10 * calls + 4 * len(self.statements) + 3 * len(self.objects) + len(self.has)

    # -- what nobody can tell apart ---------------------------------------------------------------

    @property
    def shared(self):
        """All objects that hold a client hold one and the same."""
        return len({each.client for each in self.objects}) <= 1 and "SHARED" in str(self.objects)

    @property
    def twins(self):
        """Two objects look alike and hold clients of their own."""
        if "client" not in self.has or self.shared or self.carrier in ("subclasses", "classes"):
            return False
        seen = [each.visible for each in self.objects]
        return len(set(seen)) < len(seen)

    @property
    def category(self):
        """What the rule promises of it: see ``judge.PROMISED``."""
        if self.twins:
            return "twins"
        if "level" in self.has:
            return "a body configures"
        if "random" in self.has:
            return "random attribute"
        return "ordinary"

    @property
    def may_ask(self):
        """A recorded side effect may be another's: of an object that is not there yet, say."""
        return self.place == "lazy" or "notes" in self.has

    @property
    def ordered(self):
        """No object is called twice in one statement whose calls are beside each other."""
        return all(
            len({call[0] for call in each.calls}) == len(each.calls)
            for each in self.statements
            if each.beside
        )

    @property
    def one_by_one(self):
        """No two calls are ever in flight at once."""
        return not any(each.beside and len(each.calls) > 1 for each in self.statements)


def draw(seed):
    """The program of a seed."""
    chance = random.Random(f"identity {seed}")
    carrier = chance.choice(CARRIERS)
    if carrier == "pydantic" and chance.random() < 0.7:  # its import takes long
        carrier = "plain"
    allowed = MAY_HAVE.get(carrier, set(CHANCES))
    has = frozenset(n for n, p in CHANCES.items() if chance.random() < p and n in allowed)
    is_async = chance.random() < 0.5
    objects = _objects(chance, has, carrier)
    place = _place(chance, carrier, has)
    if place == "global":  # what the workflow sets there is not restored
        has -= {"mode", "notes"}
    return Program(
        str(seed),
        carrier,
        has,
        objects,
        tuple(_statements(chance, has, carrier, len(objects), is_async)),
        place,
        is_async,
        chance.choice(list(TIMES)),
        frozenset(n for n, p in (("count", 0.7), ("history", 0.3)) if chance.random() < p) & has,
    )


def _place(chance, carrier, has):
    if carrier in ("names", "classes", "loop"):
        return "global"
    places = ["local", "local", "global", "lazy"]
    if not has & {"time", "random"}:  # they would make each start a run of its own
        places.append("self")
    return chance.choice(places)


def _objects(chance, has, carrier):
    count, alike = chance.choice([1, 2, 2, 3, 4]), chance.random() < 0.2
    shared = chance.random() < 0.5
    made = chance.choice(("Client", "Connection"))
    objects = []
    for number in range(count):
        config = 0 if alike else chance.randrange(3)
        if carrier in ("subclasses", "classes", "names"):
            config = number
        who = "c0" if shared else f"c{chance.randrange(2)}"
        client = "None"
        if "client" in has:
            client = "SHARED" if shared else f'ledger.{made}("{who}")'
        objects.append(Object(config, client, who if "client" in has else "-"))
    return tuple(objects)


def _statements(chance, has, carrier, count, is_async):
    replayed = [chance.random() < 0.6] * 4
    if chance.random() < 0.4:
        replayed = [chance.random() < 0.5 for _ in range(4)]
    functions = ["ask", "ask", "post", "post"] + ["switch"] * ("level" in has)
    for number in range(chance.choice([1, 2, 2, 3])):
        setting = ()
        if "mode" in has and chance.random() < 0.5:
            setting = (chance.randrange(count), chance.randrange(1, 3))
        function, questions = chance.choice(functions), chance.choice([1, 1, 2])
        forms = ONE_AFTER_ANOTHER
        if function != "switch" and chance.random() < 0.55:
            forms = BESIDE_EACH_OTHER[is_async]
        form = chance.choice(forms)
        if form in ("set", "plugins"):
            calls = [(each, function, 0) for each in range(count)]
        elif form == "map":
            calls = [(chance.randrange(count), function, each % 2) for each in range(3)]
            calls = [(calls[0][0], *call[1:]) for call in calls]
        else:
            others = functions if form == "seq" else ["ask", "post"]
            calls = [
                (
                    chance.randrange(count) if chance.random() < 0.4 else each % count,
                    function if chance.random() < 0.8 else chance.choice(others),
                    chance.randrange(questions),
                )
                for each in range(chance.choice([1, 2, 2, 3, 4]))
            ]
        yield Statement(form, tuple(calls), setting, replayed[number])
