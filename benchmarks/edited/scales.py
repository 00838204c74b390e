"""A helper of helpers."""

BOUND = 12
BONUS = 1


def points(x):
    return x * 2 + BONUS
