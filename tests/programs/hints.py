"""Reads the annotations of everything public, and prints what cannot be read, or is not public.

A program of its own, since every version of Python reads annotations in its own way.
"""

import importlib.util
import inspect
import typing

MODULES = ["errors", "agent", "graph", "stores", "testing"]
MODULES += ["notebook"] if importlib.util.find_spec("IPython") is not None else []
OURS = {"Run.__init__", "StepRecord", "StepRecord.__init__", "Workflow.__init__"}
"""What only stepwise itself makes: these take what users never see."""
INSIDE = {
    "Batch",
    "CheckpointManager.newest_first",
    "CheckpointManager.save_if_possible",
    "Workflow.definition",
}
"""What only stepwise calls; what a store gets, which is as good as bytes."""


def public():
    """Every public object with its name."""
    modules = ["stepwise", *(f"stepwise.{name}" for name in MODULES)]
    for module in map(importlib.import_module, modules):
        for name in module.__all__:
            yield name, getattr(module, name)


def parts(name, value):
    """A function, or a class with its methods and properties."""
    if inspect.isfunction(value) or inspect.isclass(value):
        yield name, value
    for inner, held in vars(value).items() if inspect.isclass(value) else ():
        if inner == "__init__" or not inner.startswith("_"):
            function = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
            if inspect.isfunction(function):
                yield f"{name}.{inner}", function


def classes(hint):
    """The classes that an annotation names."""
    if isinstance(hint, type):
        yield hint
    for inner in typing.get_args(hint):
        for each in inner if isinstance(inner, list) else [inner]:
            yield from classes(each)


def main():
    """Print a line for each mistake, and how much was read."""
    exported = {value for _, value in public() if isinstance(value, type)}
    count = 0
    for name, value in [part for each in public() for part in parts(*each)]:
        try:
            hints = typing.get_type_hints(value)
        except Exception as error:  # whatever an annotation raises
            print(f"{name}: {error!r}")
            continue
        count += 1
        named = {each for hint in hints.values() for each in classes(hint)}
        own = {each for each in named if each.__module__.startswith("stepwise")}
        if name not in OURS | INSIDE:
            print(*(f"{name}: {each} is not public\n" for each in own - exported), end="", sep="")
    print("read" if count > 250 else f"only {count} were read")


main()
