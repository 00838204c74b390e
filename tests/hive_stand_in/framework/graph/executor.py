"""A stand-in for the few classes of adenhq/hive that ``stepwise.integrations.hive`` builds on."""

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
    """The nodes in a row; one that fails, or whose output is not valid, is tried again."""

    def __init__(self, runtime, tool_executor=None, node_registry=None):
        self.tool_executor = tool_executor
        self.node_registry = node_registry or {}
        self.validator = Validator()

    def _get_node_implementation(self, node_spec, cleanup_llm_model=None):
        return self.node_registry[node_spec.id]

    async def execute(self, graph, goal, input_data=None, session_state=None):
        memory, path = Memory(), []
        memory.data.update(input_data or {})
        try:
            for spec in graph.nodes:
                path.append(spec.id)
                for _ in range(spec.max_retries):
                    node = self._get_node_implementation(spec, None)
                    result = await node.execute(Context(memory))
                    if result.success and spec.output_keys:
                        validation = self.validator.validate_all(
                            output=result.output, expected_keys=spec.output_keys
                        )
                        if not validation.success:
                            result = NodeResult(False, error=validation.error)
                    if result.success:
                        break
                else:
                    return ExecutionResult(False, memory.data, result.error, path)
                memory.data.update(result.output)
        except Exception as error:
            return ExecutionResult(False, memory.data, str(error), path)
        return ExecutionResult(True, memory.data, None, path)
