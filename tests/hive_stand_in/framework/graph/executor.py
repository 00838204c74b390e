"""A stand-in for the few classes of adenhq/hive that ``stepwise.integrations.hive`` builds on."""

import asyncio
from dataclasses import dataclass, field
from typing import Any


@dataclass
class NodeResult:
    success: bool
    output: dict = field(default_factory=dict)
    error: str | None = None


@dataclass
class ExecutionResult:
    success: bool
    output: dict = field(default_factory=dict)
    error: str | None = None
    path: list = field(default_factory=list)
    steps_executed: int = 0
    paused_at: str | None = None
    session_state: dict = field(default_factory=dict)


@dataclass
class Spec:
    id: str
    max_retries: int = 3
    output_keys: list = field(default_factory=list)


@dataclass
class Goal:
    id: str
    description: str = ""


@dataclass
class Graph:
    id: str
    nodes: list
    max_steps: int = 100
    terminal_nodes: list = field(default_factory=list)


class Memory:
    def __init__(self):
        self.data = {}

    def read(self, key):
        return self.data.get(key)

    def write(self, key, value, validate=True):
        self.data[key] = value


@dataclass
class Context:
    memory: Any


@dataclass
class Validation:
    success: bool
    error: str = ""


class Validator:
    def validate_all(self, output, expected_keys):
        bad = [key for key in expected_keys if output.get(key) in (None, "bad")]
        return Validation(not bad, f"bad: {bad}")


class GraphExecutor:
    """The nodes in a row; one that fails, or whose output is not valid, is tried again.

    What it does with session states, pauses and the limit of steps is what hive does.
    """

    def __init__(self, runtime, tool_executor=None, node_registry=None):
        self.tool_executor = tool_executor
        self.node_registry = node_registry or {}
        self.validator = Validator()
        self._pause_requested = asyncio.Event()

    def request_pause(self):
        self._pause_requested.set()

    def _get_node_implementation(self, node_spec, cleanup_llm_model=None):
        return self.node_registry[node_spec.id]

    def _build_context(self, node_spec, memory):
        return Context(memory)

    async def execute(self, graph, goal, input_data=None, session_state=None):
        memory, path, steps = Memory(), [], 0
        state = session_state or {}
        memory.data.update(state.get("memory", {}))
        if not state.get("paused_at"):
            memory.data.update(input_data or {})
        ids = [spec.id for spec in graph.nodes]
        at = ids.index(state.get("paused_at") or state.get("resume_from") or ids[0])

        def ended(error=None, **more):
            saved = {"memory": dict(memory.data), "execution_path": list(path), **more}
            paused_at = saved.pop("paused", None)
            return ExecutionResult(
                error is None, memory.data, error, path, steps, paused_at, session_state=saved
            )

        try:
            while steps < graph.max_steps and at < len(graph.nodes):
                steps += 1
                spec = graph.nodes[at]
                if self._pause_requested.is_set():
                    return ended("Execution paused by user request", paused=spec.id)
                path.append(spec.id)
                for _ in range(spec.max_retries):
                    context = self._build_context(node_spec=spec, memory=memory)
                    node = self._get_node_implementation(spec, None)
                    result = await node.execute(context)
                    if result.success and spec.output_keys:
                        validation = self.validator.validate_all(
                            output=result.output, expected_keys=spec.output_keys
                        )
                        if not validation.success:
                            result = NodeResult(False, error=validation.error)
                    if result.success:
                        break
                else:
                    return ended(result.error, resume_from=spec.id)
                memory.data.update(result.output)
                at += 1
        except Exception as error:
            return ended(str(error), resume_from=spec.id)
        return ended()
