"""The text of a definition, equal for equal code, and the names that the definition reads.

Comments, layout, docstrings, annotations of variables and the names of local variables do not
count: a local variable is written as a number, in the order of its first use.  The text is the same
under every version of Python, as fields that are empty are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepwise._rewrite.source import FUNCTIONS, Definition, children, f_string_parts, walk

CLASSES = (ast.ClassDef,)
IMPORTS = (ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)
_LEFT_OUT = ("ctx", "kind", "type_comment", "type_params", "returns")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_CONDITIONS = ("test", "subject", "pattern", "guard")
_ITSELF = "@"  # replaces the definition's own name; no identifier equals it


class CodeRead:
    """The text of a definition, and what the definition reads.

    Args:
        node: the definition.
        own: the name of the definition, if it does not count.
        instance: true if the first parameter is the instance or the class of a method.
        left_out: returns whether the decorator of a name does not count.

    Attributes:
        names: names that are not bound inside, each with the attributes read of it
            (``prompts.SYSTEM``).
        annotated: names in annotations, which are no part of the text.
        attributes: all attributes that are read, of whatever value.
        of_self: the attributes that are read of the instance or the class.
        defaults: the text of the defaults of a function's parameters.
        imports: names that an ``import`` inside binds: the module, the name in it, the level.
    """

    def __init__(
        self,
        node: Definition,
        *,
        own: str = "",
        instance: bool = False,
        left_out: Callable[[str], bool] | None = None,
    ) -> None:
        self.names: dict[str, None] = {}
        self.annotated: dict[str, None] = {}
        self.attributes: set[str] = set()
        self.of_self: set[str] = set()
        self.imports: dict[str, tuple[str, str, int]] = {}
        self._own, self._instance = own, instance
        self._left_out = left_out or str.isspace  # by default none
        self._scopes: list[dict[str, str]] = []
        self._count = 0
        self._self = ""
        self.defaults = ""
        self.node = node
        self.text = self._definition(node)

    def _definition(self, node: Definition) -> str:
        if isinstance(node, FUNCTIONS):
            return self._function(node, is_whole=True)
        if isinstance(node, ast.ClassDef):
            return self._class_head(node)
        return self._write(node)

    def signature(self, *, annotations: bool) -> str:
        """Return the text of a function's parameters: names, kinds, defaults."""
        arguments, parts = self.node.args, [self.defaults]
        for field in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(arguments, field) or []
            for each in found if isinstance(found, list) else [found]:
                said = self._write(each.annotation) if annotations and each.annotation else ""
                parts.append(f"{field} {each.arg}: {said}")
        returns = getattr(self.node, "returns", None)
        if annotations and returns is not None:
            parts.append(self._write(returns))
        return "\n".join(parts)

    # -- nodes -----------------------------------------------------------------------------------

    def _write(self, node: Any) -> str:
        if isinstance(node, list):
            return "[" + ",".join([text for text in map(self._write, node) if text]) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        kind = type(node).__name__
        writer = getattr(self, f"_write_{kind.lower()}", None)
        if writer is not None:
            text: str = writer(node)
            return text
        return f"{kind}({self._fields(node)})"

    def _fields(self, node: ast.AST, without: Iterable[str] = ()) -> str:
        parts = []
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in _LEFT_OUT or name in without:
                continue
            parts.append(f"{name}={self._write(value)}")
        return ",".join(parts)

    def _name(self, name: str) -> str:
        """Return the text of a name, which is a number for a local variable."""
        for scope in reversed(self._scopes):
            if name in scope:
                if not scope[name]:
                    self._count += 1
                    scope[name] = f"${self._count}"
                return scope[name]
        return _ITSELF if name == self._own else name

    def _write_name(self, node: ast.Name) -> str:
        text = self._name(node.id)
        if text == node.id:
            self.names.setdefault(text)
        return text

    def _write_attribute(self, node: ast.Attribute) -> str:
        self.attributes.add(node.attr)
        chain, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            self.attributes.add(root.attr)
            chain.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name):
            if isinstance(root, ast.Call) and getattr(root.func, "id", "") in ("super", "type"):
                self.of_self.update(chain[-1:])
            return ".".join([self._write(root), *reversed(chain)])
        text = self._name(root.id)
        if text == root.id:
            self.names.setdefault(".".join([text, *reversed(chain)]))
        elif text == self._self:
            self.of_self.update(chain[-2:] if chain[-1] == "__class__" else chain[-1:])
        return ".".join([text, *reversed(chain)])

    def _write_constant(self, node: ast.Constant) -> str:
        return repr(node.value)

    def _write_joinedstr(self, node: ast.JoinedStr) -> str:
        parts = [
            repr(part) if isinstance(part, str) else self._write(part)
            for part in f_string_parts(node)
        ]
        return f"JoinedStr({','.join(parts)})"

    # -- statements without a meaning ------------------------------------------------------------

    def _write_pass(self, node: ast.Pass) -> str:
        return ""

    def _write_expr(self, node: ast.Expr) -> str:
        return "" if isinstance(node.value, ast.Constant) else f"Expr({self._write(node.value)})"

    def _write_annassign(self, node: ast.AnnAssign) -> str:
        if self._scopes and self._scopes[-1] is _FIELDS:
            return f"AnnAssign({self._fields(node)})"
        self._annotation(node.annotation)
        if node.value is None:
            return ""
        return self._write(ast.Assign(targets=[node.target], value=node.value))

    def _write_set(self, node: ast.Set) -> str:
        items = [self._write(each) for each in node.elts]
        if all(isinstance(each, ast.Constant) for each in node.elts):
            items.sort()
        return f"Set({','.join(items)})"

    # -- scopes ----------------------------------------------------------------------------------

    def _function(self, node: Any, *, is_whole: bool = False) -> str:
        """Return the text of a function.

        Args:
            is_whole: the function is the definition itself, whose signature is a text of its own.
        """
        decorators = [
            e for e in node.decorator_list if not (is_whole and self._left_out(chain_of(e)))
        ]
        outside = [self._write(decorators)]
        if is_whole:
            self.defaults = self._write([*node.args.defaults, *node.args.kw_defaults])
        else:
            outside += [self._name(node.name), self._write(node.args.defaults)]
            outside.append(self._write(node.args.kw_defaults))
        self._annotation(node.returns)
        body = self._scoped(node, node.body, is_whole=is_whole)
        return f"{type(node).__name__}({','.join(outside)},{body})"

    def _scoped(self, node: Any, body: Any, *, is_whole: bool = False) -> str:
        """Return the text of the parameters and the body of a function or lambda."""
        parameters = _parameters(node.args)
        names = [each.arg for each in parameters]
        scope = dict.fromkeys([*names, *_bound(body if isinstance(body, list) else [body])], "")
        for each in _undeclared(body if isinstance(body, list) else []):
            scope.pop(each, None)
        self._scopes.append(scope)
        for parameter in parameters:
            self._annotation(parameter.annotation)
        kinds = [len(node.args.posonlyargs), len(node.args.args), len(node.args.kwonlyargs)]
        kinds += [bool(node.args.vararg), bool(node.args.kwarg)]
        parts = [str(kinds), *map(self._name, names)]
        if is_whole and self._instance and names:
            self._self = scope[names[0]]
        text = f"{','.join(parts)},{self._write(body)}"
        self._scopes.pop()
        return text

    def _write_functiondef(self, node: Any) -> str:
        return self._function(node)

    _write_asyncfunctiondef = _write_functiondef

    def _write_lambda(self, node: ast.Lambda) -> str:
        defaults = self._write(node.args.defaults), self._write(node.args.kw_defaults)
        return f"Lambda({','.join(defaults)},{self._scoped(node, node.body)})"

    def _write_listcomp(self, node: Any) -> str:
        first = self._write(node.generators[0].iter)  # evaluated outside
        targets = [each.target for each in node.generators]
        self._scopes.append(dict.fromkeys(_bound(targets), ""))
        parts = [first]
        for index, each in enumerate(node.generators):
            without = ("iter",) if index == 0 else ()
            parts.append(self._fields(each, without))
        parts.append(self._fields(node, ("generators",)))
        self._scopes.pop()
        return f"{type(node).__name__}({','.join(parts)})"

    _write_setcomp = _write_dictcomp = _write_generatorexp = _write_listcomp

    def _write_classdef(self, node: ast.ClassDef) -> str:
        return f"{self._name(node.name)} {self._class_head(node, is_whole=True)}"

    def _class_head(self, node: ast.ClassDef, *, is_whole: bool = False) -> str:
        """Return the text of a class, without its methods unless the whole class is asked for."""
        parts = [self._write(node.decorator_list), self._write(node.bases)]
        parts.append(self._write(node.keywords))
        body = [each for each in node.body if is_whole or not isinstance(each, FUNCTIONS)]
        doc = docstring(node)
        if doc and node.bases and any(isinstance(each, ast.AnnAssign) for each in body):
            parts.append(repr(doc))  # a model's description, which is sent along with its schema
        # The annotations of a dataclass or of a model define its fields.
        self._scopes.append(_FIELDS if node.decorator_list or node.bases else _CLASS)
        parts.append(self._write(body))
        self._scopes.pop()
        return f"ClassDef({','.join(parts)})"

    # -- names outside of expressions ------------------------------------------------------------

    def _write_excepthandler(self, node: ast.ExceptHandler) -> str:
        name = self._name(node.name) if node.name else ""
        return f"ExceptHandler({name},{self._fields(node, ('name',))})"

    def _write_matchas(self, node: Any) -> str:
        name = self._name(node.name) if node.name else ""
        return f"{type(node).__name__}({name},{self._fields(node, ('name',))})"

    _write_matchstar = _write_matchas

    def _write_matchmapping(self, node: Any) -> str:
        rest = self._name(node.rest) if node.rest else ""
        return f"MatchMapping({rest},{self._fields(node, ('rest',))})"

    def _write_import(self, node: ast.Import) -> str:
        self.imports.update(imported(node))
        return f"Import({self._fields(node)})"

    def _write_importfrom(self, node: ast.ImportFrom) -> str:
        self.imports.update(imported(node))
        return f"ImportFrom({self._fields(node)})"

    def _annotation(self, node: ast.expr | None) -> None:
        """Note the names in an annotation, also in one that is a text."""
        for each in walk(node) if node is not None else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                try:
                    inner = ast.parse(each.value, mode="eval")
                except (SyntaxError, ValueError):
                    continue
                self._annotation(inner.body)
            elif isinstance(each, ast.Attribute):
                self.annotated.setdefault(ast.unparse(each))
            elif isinstance(each, ast.Name):
                self.annotated.setdefault(each.id)


_CLASS: dict[str, str] = {}  # the scope of a class, whose names are attributes
_FIELDS: dict[str, str] = {}


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [*several, *(each for each in (arguments.vararg, arguments.kwarg) if each is not None)]


def _bound(nodes: Iterable[ast.AST]) -> dict[str, None]:
    """Return the names that nodes bind in their own scope, without those that they import."""
    found: dict[str, None] = {}
    waiting: list[Any] = [*nodes]
    for node in waiting:
        if isinstance(node, _SCOPES):
            if hasattr(node, "name"):
                found.setdefault(node.name)
            walrus = walk(node) if isinstance(node, _COMPREHENSIONS) else ()
            found.update(
                (each.target.id, None) for each in walrus if isinstance(each, ast.NamedExpr)
            )
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.setdefault(node.id)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.setdefault(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.setdefault(node.rest)
        waiting += children(node)
    return found


def _undeclared(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that a function declares to be another scope's."""
    waiting = [*body]
    for node in waiting:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        if not isinstance(node, _SCOPES):
            waiting += children(node)


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str, int]]:
    """Return the names that an ``import`` binds: the module, the name in it, the level."""
    found = {}
    for each in node.names:
        if isinstance(node, ast.ImportFrom):
            found[each.asname or each.name] = node.module or "", each.name, node.level
        elif each.asname:
            found[each.asname] = each.name, "", 0
        else:
            root = each.name.partition(".")[0]
            found[root] = root, "", 0
    return found


# -- a module ------------------------------------------------------------------------------------


def bindings(body: Iterable[ast.stmt]) -> dict[str, list[Definition]]:
    """Return the statements of a block that bind each name; ``*`` for ``from m import *``.

    The conditions under which a statement is executed count, too.
    """
    found: dict[str, list[Definition]] = {}
    waiting: list[Any] = [*body]
    for node in waiting:
        names: Iterable[str] = ()
        if isinstance(node, (*FUNCTIONS, *CLASSES)):
            names = [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = imported(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = _bound(targets)
        else:
            inside = [each for block in _BLOCKS for each in getattr(node, block, ())]
            decides = [e for field in _CONDITIONS if (e := getattr(node, field, None)) is not None]
            for name in bindings(inside) if decides else ():
                found.setdefault(name, []).extend(decides)
            waiting += inside
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def chain_of(node: ast.AST) -> str:
    """Return a name with attributes (``models.Order``), without calls; empty for anything else."""
    names: list[str] = []
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def docstring(node: Definition) -> str:
    """Return the docstring of a function or class; empty if it has none."""
    return ast.get_docstring(node) or ""


def decorators(node: Definition) -> list[str]:
    """Return the names of the decorators of a definition, or of the function that makes it."""
    given = getattr(node, "decorator_list", None)
    if given is None:
        value = getattr(node, "value", None)
        given = [value] if isinstance(value, ast.Call) else []
    return [chain_of(each) for each in given]


def bases(node: ast.ClassDef) -> list[str]:
    """Return the names of the bases of a class."""
    return [name for name in map(chain_of, node.bases) if name]


def literal(node: Definition, default: Any) -> Any:
    """Return the value of an assignment of a literal, or ``default`` for anything else."""
    try:
        return ast.literal_eval(node.value)
    except (AttributeError, TypeError, ValueError, MemoryError, RecursionError):
        return default


def members(node: ast.ClassDef) -> Mapping[str, list[Definition]]:
    """Return the statements that bind the attributes of a class."""
    return bindings(node.body)
