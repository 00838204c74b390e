"""For users of pydantic-ai: agents whose model requests, tools and MCP calls are recorded.

:class:`StepwiseDurability` is a capability, like ``DBOSDurability`` and ``PrefectDurability``.  It
is built on pydantic-ai's interface for engines, ``pydantic_ai.durable_exec``.  pydantic-ai passes
each operation as a coroutine function, with values that distinguish it, and a step of the run
executes the operation.  pydantic-ai is imported when the first capability is made.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import functools
import importlib
import inspect
import typing
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from stepwise._execution.outcomes import ShownValue
from stepwise._runtime import options
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest
from stepwise._values.preview import preview
from stepwise._workflows import host
from stepwise._workflows.host import Step
from stepwise.errors import ConfigurationError, DigestError, NotRecordableError
from stepwise.integrations._model_protocols import MODEL_REQUEST
from stepwise.integrations._supported import does_not_fit, require

__all__ = ["StepwiseDurability"]

if TYPE_CHECKING:
    from pydantic_ai.capabilities import AbstractCapability as _Capability
    from pydantic_ai.tools import AgentDepsT
else:  # pydantic-ai is imported when a capability is made
    AgentDepsT, _Capability = TypeVar("AgentDepsT"), Generic

Body = Callable[[], Awaitable[Any]]
Options = Mapping[str, Any]

_KEY = "stepwise"  # of the options in a tool's metadata
_RUNNING = frozenset({"retries", "retry_on", "backoff", "timeout"})
_EFFECTS = frozenset({"side_effect", "in_doubt", "fails_cleanly", "idempotent"})
_NOT_SENT = frozenset({"metadata"})  # fields of a tool's definition that no model receives
_NOT_SAID = frozenset({"extra_headers", "timeout"})  # secrets and trace ids; a time limit
_VALUES = (str, bytes, int, float, type(None), tuple, frozenset)
_CONTAINERS = (list, dict, set)


def _check(given: Options, allowed: frozenset[str], what: str) -> None:
    for option in given:
        if option not in allowed:
            raise ConfigurationError(
                f"{what} have no option {option!r}; their options are {', '.join(sorted(allowed))}"
            )
    options.check("tool" if allowed >= _EFFECTS else "step", what, given)


# -- the interface of pydantic-ai ----------------------------------------------------------------


class _Interface(NamedTuple):
    """The parts of pydantic-ai that this module uses."""

    durable: Any
    run_context: Any
    tool: Any
    definition: Any
    usage: Any


_EXPECTED = {
    "BaseDurabilityCapability": {"in_durable_context", "get_durable_operation_backend"},
    "CallableOperationBackend": {"execute"},
}
"""The methods that a user of each abstract class has to define."""
_NAMES = (
    "CapabilityOperationId DurabilityEngineSpec EventStreamHandlerId JSON_CODEC ModelRequestId "
    "RoleBasedOperationConfig ToolsetCallToolId ToolsetGetInstructionsId ToolsetGetToolsId "
    "ToolsetValidateToolArgumentsId"
)


@functools.cache
def _interface() -> _Interface:
    """Import pydantic-ai, and check that its interface for engines is the expected one.

    Raises:
        ConfigurationError: pydantic-ai is missing, or does not fit; the error says why.
    """
    require("pydantic_ai")
    try:
        durable = importlib.import_module("pydantic_ai.durable_exec")
        tools = importlib.import_module("pydantic_ai.tools")
        toolsets = importlib.import_module("pydantic_ai.toolsets")
        usage = importlib.import_module("pydantic_ai.usage")
        found = _Interface(
            durable, tools.RunContext, toolsets.ToolsetTool, tools.ToolDefinition, usage.RunUsage
        )
        for name in (*_EXPECTED, *_NAMES.split()):
            getattr(durable, name)
    except (ImportError, AttributeError) as error:
        raise does_not_fit("pydantic_ai", str(error)) from error
    for name, expected in _EXPECTED.items():
        asked = set(getattr(durable, name).__abstractmethods__)
        if asked != expected:
            reason = f"{name} asks its engine for {sorted(asked)} instead of {sorted(expected)}"
            raise does_not_fit("pydantic_ai", reason)
    given = set(inspect.signature(durable.CallableOperationBackend.execute).parameters)
    ours = set(inspect.signature(_Backend.execute).parameters)
    if given != ours:
        reason = f"it executes an operation with {sorted(given)} instead of {sorted(ours)}"
        raise does_not_fit("pydantic_ai", reason)
    return found


@functools.cache
def _with_base(cls: type) -> Any:
    """Return a class of capabilities with pydantic-ai's own class as its last base."""
    durable = _interface().durable
    if issubclass(cls, durable.BaseDurabilityCapability):
        return cls
    spec = durable.DurabilityEngineSpec(
        engine_name="stepwise",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=durable.JSON_CODEC,
        serialization_failure=_not_recordable,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": _entered_by_steps(),
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=_KEY,
    )
    bases = (cls, _Durability, durable.BaseDurabilityCapability)
    return type(cls.__name__, bases, {"__module__": cls.__module__, "engine_spec": spec})


@functools.cache
def _backend_class() -> Any:
    base = _interface().durable.CallableOperationBackend
    return type("StepwiseBackend", (_Backend, base), {"__module__": __name__})


def _entered_by_steps() -> str:
    """Return the lifecycle of MCP servers: entered by the first step, if pydantic-ai knows that."""
    lifecycles = importlib.import_module("pydantic_ai.durable_exec._spec")
    known = typing.get_args(getattr(lifecycles, "Lifecycle", None))
    return "enter-in-durable-unit" if "enter-in-durable-unit" in known else "enter-always"


def _not_recordable(error: Exception) -> NotRecordableError:
    return NotRecordableError(
        f"what a tool or model returned cannot be recorded: {error}. Return plain data, a "
        "dataclass or a pydantic model",
    )


# -- the capability ------------------------------------------------------------------------------


class _Durability:
    """The methods that pydantic-ai calls, which override its own."""

    name: str
    _options: Mapping[str, Options]
    _backend: Any = None

    @property
    def in_durable_context(self) -> bool:
        """True inside a run."""
        return host.is_in_run()

    def get_durable_operation_backend(self) -> Any:
        """Return the backend that executes the operations of this agent as steps."""
        if self._backend is None:
            config = _interface().durable.RoleBasedOperationConfig(
                model=self._options["model"],
                event={},
                capability={},
                tool={},
                resolve_tool=self._options_of,
            )
            self._backend = _backend_class()(namer=_Namer(self.name), config=config)
        return self._backend

    def for_agent(self, agent: Any) -> Any:
        self._backend = None  # a copy of this object is bound, under the agent's name
        return cast("Any", super()).for_agent(agent)

    def get_default_run_id(self) -> str | None:
        """Return the recorded id of the agent's run: tools may use it as an idempotency key."""
        return _plain_step(_run_id, f"{self.name}: run id")() if host.is_in_run() else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id derived from the id of the agent's run."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, run_id)) if host.is_in_run() else None

    async def get_run_start_time(self, run_id: str) -> dt.datetime | None:
        """Return the recorded start, at which ``agent.run(timeout=...)`` begins to count."""
        if not host.is_in_run():
            return None
        started = _plain_step(_start_time, f"{self.name}: start time")(run_id)
        return dt.datetime.fromisoformat(started)

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """Run the agent; warn if it may belong to a run that the code cannot see."""
        if not host.is_in_run():
            host.warn_if_unseen(f"agent {self.name!r}")
        return await cast("Any", super()).wrap_run(ctx, handler=handler)

    def _options_of(self, operation_id: Any, tool: Any, tool_name: str) -> Any:
        """Return the options of a tool's step, or ``False`` if its calls are not recorded here."""
        durable = _interface().durable
        is_call = isinstance(operation_id, durable.ToolsetCallToolId)
        kind = getattr(operation_id, "toolset_kind", "mcp")
        given = self._options["mcp" if kind == "mcp" else "tool"]
        metadata = (tool.tool_def.metadata or {}) if tool is not None else {}
        own = metadata.get(_KEY, {})
        if _records_itself(tool, own):
            return False if is_call else {}
        if own is False:
            return False
        if not isinstance(own, Mapping):
            raise ConfigurationError(
                f"metadata[{_KEY!r}] of the tool {tool_name!r} is {own!r}: it must be a dict of "
                "options of stepwise.tool, or False"
            )
        if not is_call:
            return {}
        _check({**given, **own}, _RUNNING | _EFFECTS, f"tool {tool_name!r}")
        return {**given, **own}


class StepwiseDurability(_Capability[AgentDepsT]):  # type: ignore[misc]
    """A capability that records the work of an agent inside a run.

    Give it to the agent: ``Agent(..., name="support", capabilities=[StepwiseDurability()])``.
    Inside a workflow, each model request, each call of a tool, each call or tool listing of an MCP
    server, and each event for ``event_stream_handler`` is a step.  Outside a run nothing changes.

    Args:
        models: further models by name, for ``agent.run(model=...)`` inside a run.
        event_stream_handler: receives the events of the model's stream as they arrive, and the
            events of tools.  Events that were delivered before a crash are not delivered again.
        name: the prefix of the steps' names; by default the name of the agent.
        model_options: options of :func:`stepwise.step` for model requests: ``retries``,
            ``retry_on``, ``backoff``, ``timeout`` (seconds).
        tool_options: options of :func:`stepwise.tool` for the agent's tools: the above, and
            ``side_effect``, ``in_doubt``, ``fails_cleanly``, ``idempotent``.  A single tool may
            have its own options in its metadata: ``metadata={"stepwise": {"side_effect": True}}``,
            or ``{"stepwise": False}`` to leave its calls unrecorded.  A tool decorated with
            ``@tool`` or ``@step`` keeps the options of its decorator.
        mcp_options: the same options for the tools of MCP servers.

    Raises:
        ConfigurationError: pydantic-ai is missing, or its version does not fit; or an option is
            invalid.
    """

    def __new__(cls, **_: Any) -> Any:  # noqa: D102 -- see _with_base
        return object.__new__(_with_base(cast("Any", cls)))

    def __init__(
        self,
        *,
        models: Mapping[str, Any] | None = None,
        event_stream_handler: Callable[..., Awaitable[None]] | None = None,
        name: str | None = None,
        model_options: Options | None = None,
        tool_options: Options | None = None,
        mcp_options: Options | None = None,
    ) -> None:
        _check(model_options or {}, _RUNNING, "model requests")
        _check(tool_options or {}, _RUNNING | _EFFECTS, "tools")
        _check(mcp_options or {}, _RUNNING | _EFFECTS, "MCP tools")
        cast("Any", super()).__init__(
            models=models, event_stream_handler=event_stream_handler, name=name
        )
        given = {"model": model_options, "tool": tool_options, "mcp": mcp_options}
        self._options = {what: each or {} for what, each in given.items()}


def _records_itself(tool: Any, own: Any) -> bool:
    """Return whether the function of a tool is decorated with ``@tool``, ``@step``, ``@workflow``.

    Raises:
        ConfigurationError: the decorator would be bypassed, or its options are given twice.
    """
    function = getattr(_function_of(tool), "function", None)
    if function is None:
        return False
    if host.step_of(function) is None and not hasattr(function, "run_id_for"):
        if not host.steps_around(function):
            return False
        raise ConfigurationError(
            f"pydantic-ai got the function {function.__qualname__!r} without its decorator of "
            "stepwise, whose options would be ignored: write @agent.tool above @tool"
        )
    if own:
        raise ConfigurationError(
            f"the tool {function.__qualname__!r} is recorded by its decorator, and has options in "
            f"metadata[{_KEY!r}] as well: write all of them in one place"
        )
    return True


def _function_of(tool: Any) -> Any:
    """Return pydantic-ai's ``Tool`` behind a tool of a function toolset."""
    tools = getattr(getattr(tool, "toolset", None), "tools", None)
    if not isinstance(tools, Mapping):
        return None
    return tools.get(getattr(tool, "original_name", None) or tool.tool_def.name)


# -- names ---------------------------------------------------------------------------------------


class _Name(NamedTuple):
    operation_name: str
    display_name: str | None = None


class _Namer:
    """The names of the steps.  They are recorded: a new name repeats the work of the old."""

    def __init__(self, agent: str) -> None:
        self.agent = agent

    def operation_name(self, operation_id: Any) -> str:
        return self.invocation_name(operation_id, label=None).operation_name

    def invocation_name(self, operation_id: Any, *, label: str | None) -> _Name:
        durable = _interface().durable
        toolset = getattr(operation_id, "toolset_id", None)
        place = self.agent if toolset in (None, "<agent>") else f"{self.agent}.{toolset}"
        if isinstance(operation_id, durable.ToolsetCallToolId):
            return _Name(f"{place}.{label}")
        if isinstance(operation_id, durable.ToolsetValidateToolArgumentsId):
            return _Name(f"{place}.{label}: arguments")
        if isinstance(operation_id, durable.CapabilityOperationId):
            return _Name(f"{place}: {operation_id.capability_id}.{operation_id.operation}")
        if isinstance(operation_id, durable.ModelRequestId):
            return _Name(f"{place}: model {'stream' if operation_id.streaming else 'request'}")
        for kind, what in (
            (durable.ToolsetGetToolsId, "tools"),
            (durable.ToolsetGetInstructionsId, "instructions"),
            (durable.EventStreamHandlerId, "event"),
        ):
            if isinstance(operation_id, kind):
                return _Name(f"{place}: {what}")
        return _Name(f"{place}: {type(operation_id).__name__}")


# -- the steps -----------------------------------------------------------------------------------


_body: ContextVar[Body] = ContextVar("stepwise_pydantic_ai_body")
_spent: ContextVar[list[Any]] = ContextVar("stepwise_pydantic_ai_spent")

# Functions of the module, without captured variables: only the name distinguishes two steps.


async def _request(*, model: Any, messages: Any, settings: Any, parameters: Any) -> Any:  # noqa: ARG001
    return await _body.get()()


async def _call(*, arguments: Any, prompt: Any = None, deps: Any = None) -> Any:  # noqa: ARG001
    return await _body.get()()


async def _operate(*, arguments: Any) -> Any:  # noqa: ARG001
    return await _body.get()()


def _run_id() -> str:
    return str(uuid.uuid4())


def _start_time(run_id: str) -> str:  # noqa: ARG001
    return dt.datetime.now(dt.timezone.utc).isoformat()


@functools.lru_cache(maxsize=1000)
def _plain_step(function: Callable[..., Any], name: str) -> Step:
    return Step(function, kind="step", name=name)


class _Operation(NamedTuple):
    """One operation, as it is recorded.

    Args:
        function: one of the functions above.
        arguments: its arguments by name.
        context: pydantic-ai's ``RunContext``, if the operation is a call of a tool.
        deps: the object that the call counts as a method of.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    context: Any = None
    deps: Any = None


class _Backend:
    """The methods of the backend, which override pydantic-ai's own."""

    _steps: dict[str, tuple[Options, Step]]

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self._steps = {}

    def bind(self, operation: Any) -> Any:
        """Bind an operation; the usage of tools is counted separately."""
        if isinstance(operation.operation_id, _interface().durable.ToolsetCallToolId):
            operation = dataclasses.replace(operation, handler=_counting(operation.handler))
        return cast("Any", super()).bind(operation)

    async def execute(
        self,
        *,
        operation_id: Any,
        name: str,
        body: Body,
        cache_key: tuple[object, ...],
        config: Any,
    ) -> Any:
        """Execute an operation as a step of the run, or answer it from the journal."""
        spent: list[Any] = []
        tokens = _body.set(functools.partial(_with_usage, body, spent)), _spent.set(spent)
        try:
            if not host.is_in_run():
                recorded = await _body.get()()
                context = None
            else:
                made = _operation(operation_id, cache_key)
                step, context = self._step(made.function, name, config or {}), made.context
                recorded = await host.call(step, (), made.arguments, instance=made.deps)
        finally:
            _body.reset(tokens[0])
            _spent.reset(tokens[1])
        if not (isinstance(recorded, dict) and recorded.keys() == {"value", "usage"}):
            # A person settled a side effect in doubt, and gave the value that the tool returned.
            return {"kind": "tool_return", "result": recorded}
        if recorded["usage"] is not None and context is not None:
            interface = _interface()
            used = interface.durable.JSON_CODEC.load(interface.usage, recorded["usage"])
            context.usage.incr(used)
        return recorded["value"]

    def _step(self, function: Callable[..., Any], name: str, config: Options) -> Step:
        known = self._steps.get(name)
        if known is None or known[0] != config:
            kind, given = _KINDS.get(function, "step"), dict(config)
            if callable(config.get("in_doubt")):
                given["in_doubt"] = functools.partial(_ask, config["in_doubt"])
            made = _OperationStep(function, kind=kind, name=name, **given)
            known = self._steps[name] = config, made
        return known[1]


_SHOWN = 300  # characters of an answer that are shown
_KINDS = {_call: "tool", _request: MODEL_REQUEST}


class _OperationStep(Step):
    """A step whose listing shows the model's answer or the tool's result."""

    def shown_value(self, value: Any) -> ShownValue | None:
        """Return the text of a model's answer, with its usage; or the result of a tool."""
        held = value.get("value") if isinstance(value, dict) else None
        if not isinstance(held, dict):
            return None
        if held.get("kind") == "tool_return":
            return ShownValue(preview(held.get("result")), {})
        if held.get("kind") != "response":
            return None
        parts = [
            part.get("content") or f"{part.get('tool_name')}({preview(part.get('args'))})"
            for part in held.get("parts", ())
        ]
        used, cost = held.get("usage") or {}, (held.get("usage") or {}).get("cost")
        usage = {
            "model": held.get("model_name"),
            "provider": held.get("provider_name"),
            "input_tokens": used.get("input_tokens"),
            "output_tokens": used.get("output_tokens"),
            "cached_input_tokens": used.get("cache_read_tokens") or None,
            "cost_usd": float(cost) if isinstance(cost, (int, float, str)) else None,
        }
        known = {name: each for name, each in usage.items() if each is not None}
        return ShownValue(" ".join(map(str, parts))[:_SHOWN], known)


def _ask(reconcile: Callable[[Any], Any], call: Any) -> Any:
    """Ask whether a tool was called, with the arguments in pydantic-ai's form."""
    return reconcile(dataclasses.replace(call, arguments=call.arguments["arguments"]))


def _counting(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Give a tool a copy of the agent's usage, and record what the tool adds.

    A tool that calls an agent with ``usage=ctx.usage`` adds to the usage.  An answered tool must
    add the same amount, so that usage limits hold after a resume.
    """

    async def counted(params: Any) -> Any:
        before = params.ctx.usage
        own = copy.deepcopy(before)
        before = copy.deepcopy(before)
        context = dataclasses.replace(params.ctx, usage=own)
        result = await handler(dataclasses.replace(params, ctx=context))
        _spent.get().append(own - before)
        return result

    return counted


async def _with_usage(body: Body, spent: list[Any]) -> dict[str, Any]:
    spent.clear()  # of a failed attempt
    value = await body()
    interface = _interface()
    used = [each for each in spent if each != interface.usage()]
    dump = interface.durable.JSON_CODEC.dump
    return {"value": value, "usage": dump(interface.usage, used[0]) if used else None}


# -- identities of operations --------------------------------------------------------------------


def _operation(operation_id: Any, cache_key: tuple[Any, ...]) -> _Operation:
    """Build an operation's step and arguments from the values that distinguish the operation.

    Raises:
        ConfigurationError: this version of pydantic-ai distinguishes operations in another way.
    """
    interface = _interface()
    durable = interface.durable
    context = next((e for e in cache_key if isinstance(e, interface.run_context)), None)
    live = (interface.run_context, interface.tool, interface.definition)
    said = [_without_model(each) for each in cache_key if not isinstance(each, live)]
    if isinstance(operation_id, durable.ModelRequestId):
        if len(said) != 4 or not isinstance(said[1], list):
            raise does_not_fit("pydantic_ai", "a model request is told apart by other things")
        model_id, messages, settings, parameters = said
        names = [operation_id.model_name, *([model_id] if model_id is not None else [])]
        arguments = {
            "model": "/".join(names),
            "messages": messages,
            "settings": dict(_settings(settings or {})),
            "parameters": _without_defaults(parameters),
        }
        return _Operation(_request, arguments)
    if isinstance(
        operation_id, (durable.ToolsetCallToolId, durable.ToolsetValidateToolArgumentsId)
    ):
        if len(said) != 2 or context is None:
            raise does_not_fit("pydantic_ai", "a call of a tool is told apart by other things")
        arguments = {"arguments": said[1]}
        tool = next((each for each in cache_key if isinstance(each, interface.tool)), None)
        if not _reads_context(tool):
            return _Operation(_call, arguments, context)
        # Two runs of an agent may call one tool with equal arguments, for two customers.
        if isinstance(context.prompt, str):
            arguments["prompt"] = context.prompt
        deps = context.deps
        if isinstance(deps, (*_VALUES, *_CONTAINERS)) and not _is_digestible(deps):
            deps = None
        elif isinstance(deps, _VALUES):
            arguments["deps"], deps = deps, None
        return _Operation(_call, arguments, context, deps)
    return _Operation(_operate, {"arguments": said[0] if len(said) == 1 else said})


def _reads_context(tool: Any) -> bool:
    """Return whether a call of a tool may depend on the dependencies of the agent's run."""
    function = _function_of(tool)
    if function is not None:
        return bool(function.takes_ctx)
    if tool is None:  # of a dynamic toolset
        return True
    return getattr(tool.toolset, "process_tool_call", None) is not None


def _without_model(said: Any) -> Any:
    """Return a request context without its model, which is a live object."""
    if not hasattr(said, "model_request_parameters"):
        return said
    return [
        said.messages,
        dict(_settings(said.model_settings or {})),
        said.model_request_parameters,
    ]


def _settings(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name not in _NOT_SAID and _is_digestible(value):
            yield name, value


def _without_defaults(value: Any) -> Any:
    """Return the non-default fields of a dataclass, so that new fields repeat no work."""
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    said = {}
    for field in dataclasses.fields(value):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        held = getattr(value, field.name)
        if field.name not in _NOT_SENT and (default is dataclasses.MISSING or held != default):
            said[field.name] = _without_defaults(held)
    return {type(value).__name__: said}


def _is_digestible(value: Any) -> bool:
    try:
        digest.digest(value)
    except DigestError:
        return False
    return True
