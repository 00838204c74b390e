# Functions that are tools, of every make: the test decorates each, and compares the schemas.
import dataclasses
import enum
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import pydantic


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Place(pydantic.BaseModel):
    """A place on a map."""

    name: str = pydantic.Field(description="How it is called.")
    height: float = pydantic.Field(0.0, ge=0)


@dataclasses.dataclass
class Period:
    """Days, from one to another."""

    first: int
    last: int = 7


class Options(TypedDict):
    verbose: bool


def google(city: str, days: int = 3) -> str:
    """Tell the weather.

    It is never certain.

    Args:
        city: The name of the city,
            as it is called there.
        days: How many days.

    Returns:
        A sentence.

    Raises:
        ValueError: No such city.
    """
    return f"{city} {days}"


def numpy(city: str, days: int = 3) -> str:
    """Tell the weather.

    Parameters
    ----------
    city : str
        The name of the city.
    days : int
        How many days.

    Returns
    -------
    str
        A sentence.
    """
    return f"{city} {days}"


def sphinx(city: str, days: int = 3) -> str:
    """Tell the weather.

    :param city: The name of the city.
    :param days: How many days.
    :return: A sentence.
    """
    return f"{city} {days}"


def bare(city, days=3):
    return f"{city} {days}"


def nothing() -> None:
    """Do nothing."""


async def coroutine(city: str, days: int = 3) -> str:
    """Tell the weather.

    Args:
        city: The name of the city.
        days: How many days.
    """
    return f"{city} {days}"


def annotated(
    city: Annotated[str, "The name of the city."],
    height: Annotated[int, pydantic.Field(ge=0, description="In metres.")] = 0,
) -> str:
    """Tell the weather."""
    return f"{city} {height}"


def choices(
    unit: Literal["celsius", "kelvin"],
    kind: Unit = Unit.CELSIUS,
    city: Optional[str] = None,
    day: Union[int, str] = "today",
    hour: "int | None" = None,
) -> str:
    """Tell the weather.

    Args:
        unit: Of the temperature.
        kind: The same, as an enum.
        city: None for here.
        day: A number or a name.
        hour: Of the day.
    """
    return unit


def structured(place: Place, period: Period, options: Options) -> dict[str, Any]:
    """Tell the weather.

    Args:
        place: Where.
        period: When.
        options: How.
    """
    return {}


def nested(places: list[Place], by_day: dict[str, list[float]], pair: tuple[int, str]) -> Place:
    """Compare places.

    Args:
        places: All of them.
        by_day: Temperatures.
        pair: A number and a name.
    """
    return places[0]


def named_only(city: str, *, days: int = 3, unit: Unit) -> str:
    """Tell the weather.

    Args:
        city: The name of the city.
        days: How many days.
        unit: Of the temperature.
    """
    return city


def open_ended(city: str, *more: str, **others: int) -> str:
    """Tell the weather.

    Args:
        city: The name of the city.
        more: Other cities.
        others: Anything.
    """
    return city


class Station:
    """Its methods are tools."""

    def __init__(self, name: str = "Oslo"):
        self.name = name

    def method(self, days: int, unit: Unit = Unit.CELSIUS) -> str:
        """Tell the weather here.

        Args:
            days: How many days.
            unit: Of the temperature.
        """
        return self.name

    @staticmethod
    def static(days: int) -> str:
        """Tell the weather anywhere.

        Args:
            days: How many days.
        """
        return ""

    @classmethod
    def of_class(cls, days: int) -> str:
        """Tell the weather.

        Args:
            days: How many days.
        """
        return ""


FUNCTIONS = (google, numpy, sphinx, bare, nothing, coroutine, annotated, choices, structured)
FUNCTIONS += (nested, named_only, open_ended)
METHODS = ("method", "static", "of_class")
