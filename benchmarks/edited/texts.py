"""Prompts and settings."""

from enum import Enum
from typing import NamedTuple

SYSTEM = "You are a careful assistant."
GREETING = "Good day,"
LIMITS = (10, 100)


class Weights(NamedTuple):
    title: int
    body: int


WEIGHTS = Weights(title=3, body=1)


class Tone(Enum):
    FORMAL = "Sir or Madam"
    CASUAL = "hey"
