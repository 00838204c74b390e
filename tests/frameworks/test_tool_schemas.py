"""A tool has the same schema with and without our decorators, in every framework."""

import functools
import inspect
import linecache
import pathlib
import re
import sys
import types
import typing
import warnings

import pytest

pytest.importorskip("pydantic")

from stepwise import step, tool

SOURCE = pathlib.Path(__file__).with_name("tool_functions.py")
DECORATORS = {
    "step": step,
    "tool": tool,
    "side effect": tool(side_effect=True, in_doubt="retry"),
    "options": tool(retries=2, name="other", ignore=()),
    "tool that asks": tool(side_effect=True, approve=True),
}


def load(annotations):
    """The functions, their annotations as values or as text."""
    module = types.ModuleType(f"tool_functions_{annotations}")
    future = "from __future__ import annotations\n" if annotations == "text" else ""
    path = SOURCE.with_name(f"{module.__name__}.py")  # no such file: its lines are in linecache
    text = future + SOURCE.read_text(encoding="utf-8")
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


def plain(value):
    """What can be compared of a schema."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def python(function):
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        function.__name__,
        function.__qualname__,
        function.__module__,
        inspect.getdoc(function),
        str(inspect.signature(function)),
        repr(hints),
        inspect.iscoroutinefunction(function),
        inspect.getsource(function),
    ]


def pydantic_validation(function):
    import pydantic

    return pydantic.TypeAdapter(function).json_schema()


def pydantic_ai(function):
    from pydantic_ai import Tool

    found = Tool(function).tool_def
    return {
        name: getattr(found, name)
        for name in ("name", "description", "parameters_json_schema", "strict", "return_schema")
        if hasattr(found, name)
    }


def pydantic_ai_numpy(function):
    from pydantic_ai import Tool

    found = Tool(function, docstring_format="numpy", require_parameter_descriptions=True).tool_def
    return [found.description, found.parameters_json_schema]


def langchain(function):
    from langchain_core.tools import tool as langchain_tool

    made = langchain_tool(function)
    return [made.name, made.description, made.tool_call_schema.model_json_schema(), made.args]


def langchain_docstring(function):
    from langchain_core.tools import tool as langchain_tool

    made = langchain_tool(parse_docstring=True)(function)
    return [made.description, made.tool_call_schema.model_json_schema()]


def langchain_structured(function):
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    given = {"coroutine" if inspect.iscoroutinefunction(function) else "func": function}
    made = StructuredTool.from_function(**given)
    return [made.name, made.description, convert_to_openai_tool(made)]


def langchain_openai(function):
    from langchain_core.utils.function_calling import convert_to_openai_tool

    return convert_to_openai_tool(function)


def agents(function):
    from agents import function_tool

    made = function_tool(function)
    return [made.name, made.description, made.params_json_schema, made.strict_json_schema]


def agents_lenient(function):
    from agents import function_tool

    made = function_tool(function, strict_mode=False)
    return [made.name, made.description, made.params_json_schema, made.strict_json_schema]


def smolagents(function):
    import smolagents

    with warnings.catch_warnings():  # decorators other than its own: the same tool
        warnings.simplefilter("ignore", UserWarning)
        made = smolagents.tool(function)
    return [made.name, made.description, made.inputs, made.output_type]


def anthropic(function):
    from anthropic import beta_async_tool, beta_tool

    made = (beta_async_tool if inspect.iscoroutinefunction(function) else beta_tool)(function)
    return made.to_dict()


def has_beta_tool():
    import anthropic

    return hasattr(anthropic, "beta_tool")


def litellm(function):
    from litellm.utils import function_to_dict

    return function_to_dict(function)


FRAMEWORKS = {
    python: (),
    pydantic_validation: (),
    pydantic_ai: ("pydantic_ai",),
    pydantic_ai_numpy: ("pydantic_ai",),
    langchain: ("langchain_core",),
    langchain_docstring: ("langchain_core",),
    langchain_structured: ("langchain_core",),
    langchain_openai: ("langchain_core",),
    agents: ("agents",),
    agents_lenient: ("agents",),
    smolagents: ("smolagents",),
    anthropic: ("anthropic",),
    litellm: ("litellm", "numpydoc"),
}
# How many of the functions it takes, at least; else 8.
FEW = {"smolagents": 4, "litellm": 1, "langchain_docstring": 6, "pydantic_ai_numpy": 2}


@functools.cache
def described(framework):
    """Describe a function, or say how it is refused."""

    def describe(function):
        try:
            return plain(framework(function))
        except Exception as error:
            text = re.sub(r" at 0x\w+|<function [^>]*>", "", str(error))
            return f"{type(error).__name__}: {text}"

    return describe


@pytest.mark.parametrize("annotations", ["values", "text"])
@pytest.mark.parametrize("framework", [pytest.param(each, id=each.__name__) for each in FRAMEWORKS])
def test_schemas_of_functions(framework, annotations):
    """Each framework makes the same of a function and of the same function decorated."""
    for module in FRAMEWORKS[framework]:
        pytest.importorskip(module)
    if framework is anthropic and not has_beta_tool():
        pytest.skip("this version of anthropic has no beta_tool")
    functions, describe = load(annotations), described(framework)
    taken, differ = 0, []
    for function in functions.FUNCTIONS:
        expected = describe(function)
        taken += not isinstance(expected, str)
        for name, decorate in DECORATORS.items():
            found = describe(decorate(function))
            if found != expected:
                differ.append((function.__name__, name, expected, found))
    assert differ == []
    assert taken >= FEW.get(framework.__name__, 8)


@pytest.mark.parametrize("framework", [pytest.param(each, id=each.__name__) for each in FRAMEWORKS])
def test_schemas_of_methods(framework):
    """The same for bound methods, static methods and class methods."""
    for module in FRAMEWORKS[framework]:
        pytest.importorskip(module)
    describe = described(framework)
    differ = []
    for name, decorate in DECORATORS.items():
        undecorated, functions = load("values").Station(), load("values")
        for method in functions.METHODS:
            found = inspect.getattr_static(functions.Station, method)
            if isinstance(found, (staticmethod, classmethod)):  # ours below theirs
                decorated = type(found)(decorate(found.__func__))
            else:
                decorated = decorate(found)
            setattr(functions.Station, method, decorated)
        for method in functions.METHODS:
            expected = describe(getattr(undecorated, method))
            given = describe(getattr(functions.Station(), method))
            if given != expected:
                differ.append((method, name, expected, given))
    assert differ == []


# -- parameters that the framework passes itself -------------------------------------------------


def compared(describe, function):
    """A function, described plain and decorated in each way."""
    return [describe(function), *(describe(decorate(function)) for decorate in DECORATORS.values())]


def test_the_context_of_pydantic_ai():
    """Its ``RunContext`` is passed to a decorated tool, and is not in its schema."""
    library = pytest.importorskip("pydantic_ai")

    def weather(context: library.RunContext[str], city: str) -> str:
        """Tell the weather."""
        return f"{context.deps} {city}"

    plainly, *decorated = compared(lambda f: library.Tool(f).tool_def, weather)
    assert all(each == plainly for each in decorated)
    assert set(plainly.parameters_json_schema["properties"]) == {"city"}
    assert library.Tool(tool(weather)).takes_ctx


def test_the_context_of_the_agents_sdk():
    """Its ``RunContextWrapper`` is passed to a decorated tool, and is not in its schema."""
    library = pytest.importorskip("agents")

    def weather(context: library.RunContextWrapper[str], city: str) -> str:
        """Tell the weather."""
        return f"{context.context} {city}"

    plainly, *decorated = compared(agents, weather)
    assert all(each == plainly for each in decorated)
    assert set(plainly[2]["properties"]) == {"city"}


def test_what_langchain_injects():
    """Its configuration and injected arguments are passed to a decorated tool, and hidden."""
    pytest.importorskip("langchain_core")
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import InjectedToolArg
    from langchain_core.tools import tool as langchain_tool

    def weather(
        city: str, user: typing.Annotated[str, InjectedToolArg], config: RunnableConfig
    ) -> str:
        """Tell the weather."""
        return f"{user} {city} {config['configurable']['unit']}"

    plainly, *decorated = compared(langchain, weather)
    assert all(each == plainly for each in decorated)
    assert set(plainly[2]["properties"]) == {"city"}
    made, given = langchain_tool(tool(weather)), {"city": "Oslo", "user": "ann"}
    assert made.invoke(given, {"configurable": {"unit": "K"}}) == "ann Oslo K"


def test_the_runtime_of_langgraph():
    """``ToolRuntime`` is passed to a decorated tool by LangGraph, and is not in its schema."""
    prebuilt = pytest.importorskip("langgraph.prebuilt")

    def weather(city: str, runtime: prebuilt.ToolRuntime) -> str:
        """Tell the weather."""
        return city

    plainly, *decorated = compared(langchain_structured, weather)
    assert all(each == plainly for each in decorated)
    assert set(plainly[2]["function"]["parameters"]["properties"]) == {"city"}


def test_our_decorator_above_that_of_the_framework():
    """What is no function afterwards is refused by our decorator, which names it."""
    library = pytest.importorskip("agents")
    from stepwise import ConfigurationError

    @library.function_tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return city

    with pytest.raises(ConfigurationError, match="FunctionTool"):
        tool(weather)
