"""An agent of many steps: each gets its meaning from its code in another way."""

import functools
import json
import math
import os
import re
from dataclasses import dataclass, field
from decimal import Decimal

import texts
from helpers import clean, grade, shout
from pydantic import BaseModel, Field
from retrying import logged, patient
from texts import LIMITS, SYSTEM, WEIGHTS, Tone

from stepwise import step, tool, workflow

RATE = 3
VAT = RATE * 7 / 100
NAMES = ("ann", "bob")
KNOWN = frozenset({"eur", "usd"})
PATTERN = re.compile(r"[a-z]+-\d+")
TABLE = {"low": 1, "high": 10}


@step
def literal(x):
    """Return the next number."""
    return x + 1


@step
def compared(x):
    if x > 2:
        return "many"
    return "few"


@step
def ordered(x):
    return divmod(x, 7)


@step
def defaulted(x, times=2):
    return x * times


@step
def keyword(x):
    return json.dumps({"b": x, "a": 1}, sort_keys=True)


@step
def helped(x):
    return clean(f" {x} ")


@step
def helped_twice(x):
    return grade(x)


@step
def constant(x):
    return x * RATE


@step
def derived(x):
    return round(x * VAT, 2)


@step
def named(x):
    return [*NAMES, x]


@step
def known(x):
    return "eur" in KNOWN


@step
def matched(x):
    return PATTERN.findall(f"ab-{x} cd-{x}")


@step
def prompted(x):
    return f"{SYSTEM} {x}"


@step
def prompted_by_module(x):
    return f"{texts.GREETING} {x}"


@step
def limited(x):
    return min(x, *LIMITS)


@step
def weighted(x):
    return x * WEIGHTS.title


@step
def toned(x):
    return Tone.FORMAL.value


class Base:
    factor = 2

    def scale(self, x):
        return x * self.factor

    @property
    def unit(self):
        return "kg"

    @staticmethod
    def sign(x):
        return -x


class Scale(Base):
    offset = 5

    def weigh(self, x):
        return self.scale(x) + self.offset

    @classmethod
    def of(cls, x):
        return cls().weigh(x)

    def __str__(self):
        return "scale"


@step
def weighed(x):
    return Scale().weigh(x)


@step
def weighed_by_class(x):
    return Scale.of(x)


@step
def unit(x):
    return f"{x} {Scale().unit}"


@step
def signed(x):
    return Base.sign(x)


@dataclass
class Order:
    sku: str
    count: int = 1
    tags: list = field(default_factory=list)

    def total(self):
        return self.count * 10


@step
def ordering(x):
    return Order(f"sku-{x}").total()


class Offer(BaseModel):
    price: int = Field(ge=0)
    currency: str = "eur"


@step
def offered(x):
    return Offer(price=x).model_dump()


@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Search the catalogue for a query."""
    return [query] * limit


@tool
def quote(offer: Offer) -> str:
    """Quote an offer to the customer."""
    return f"{offer.price} {offer.currency}"


@step
@logged
def wrapped(x):
    return x + 100


@step
@patient(times=3)
def patient_step(x):
    return x + 200


@step
def squares(x):
    return [n * n for n in range(x) if n % 2 == 0]


@step
def formatted(x):
    return f"{x:>5} of {x + 1!r}"


@step
def sliced(x):
    return list(range(10))[1:x]


@step
def unpacked(x):
    first, *rest = range(x)
    return [first, rest]


@step
def looped(x):
    total = 0
    for n in range(x):
        if n == 4:
            continue
        total += n
    return total


@step
def guarded(x):
    try:
        return int(f"{x}")
    except ValueError:
        return -1
    finally:
        os.environ.get("HOME")


@step
def chosen(x):
    match x:
        case 1:
            return "one"
        case int() if x > 4:
            return "big"
        case _:
            return "other"


@step
def conditional(x):
    return "yes" if x and not x == 3 else "no"


@step
def nested(x):
    def inner(y):
        return y + 7

    return inner(x)


@step
def sorted_by(x):
    return sorted(["bb", "a", "ccc"], key=lambda each: len(each))


@step
def partial(x):
    return functools.partial(shout, times=2)(f"{x}")


@step
def summed(x):
    if (n := x * 2) > 3:
        return n
    return math.floor(x / 2)


@step
def exact(x):
    return str(Decimal("0.1") * x)


@step
def raised(x):
    if x > 1000:
        raise ValueError(f"{x} is too much")
    return x


@step
def asserted(x):
    assert x < 100, "too large"
    return {"x": x, "y": [x, 2]}


@step
async def awaited(x):
    return x + 50


class Agent:
    greeting = "hello"

    @step
    def greet(self, x):
        return f"{self.greeting} {self.polite(x)}"

    def polite(self, x):
        return f"dear {x}"


STEPS = (
    *(literal, compared, ordered, defaulted, keyword, helped, helped_twice, constant, derived),
    *(named, known, matched, prompted, prompted_by_module, limited, weighted, toned, weighed),
    *(weighed_by_class, unit, signed, ordering, offered, wrapped, patient_step, squares),
    *(formatted, sliced, unpacked, looped, guarded, chosen, conditional, nested, sorted_by),
    *(partial, summed, exact, raised, asserted),
)


@workflow
async def agent():
    version = 1
    said = [each(6) for each in STEPS]
    said.append(search("tea"))
    said.append(quote(Offer(price=6)))
    said.append(await awaited(6))
    said.append(Agent().greet(6))
    if os.environ.get("STOP"):
        raise SystemExit(7)
    return [version, said]
