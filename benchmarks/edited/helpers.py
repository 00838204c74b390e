"""Helpers of the steps."""

from scales import BOUND, points


def clean(text):
    """Return a text without the spaces around it."""
    return text.strip().lower()


def grade(x):
    return "good" if points(x) >= BOUND else "bad"


def shout(text, times=1):
    return text.upper() + "!" * times


def unused(x):
    return x
