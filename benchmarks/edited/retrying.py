"""Decorators."""

import functools


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        value = function(*args, **kwargs)
        return value + 1

    return wrapper


def patient(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for _ in range(times):
                value = function(*args, **kwargs)
            return value

        return wrapper

    return decorate
