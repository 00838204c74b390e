"""The rewrite: a function body that can be entered at any of its statement boundaries.

Statements are numbered in the order of the text.  The rewritten body holds a hidden local ``@t``,
the *target*: 0 in normal running, on resume the number of the last finished statement.  A statement
``k`` that contains a call, ``await`` or ``yield`` becomes::

    if @t < k:
        @t = 0
        <statement>
        if @f.due: @f.save(k, @f.locals())

Statements without calls share the guard of the next one that has some: none is ever executed while
the target is not 0.  A compound statement is numbered after its parts; on resume it is entered
without evaluating its head: ``if`` and ``match`` take the branch that holds the target, ``while``
skips its first test, ``for`` finds its iterator among the restored locals and takes no item for the
first pass, ``with`` evaluates its managers again, ``try`` is entered.

Things that do not work, and were tried or considered:

- Resume points in ``except`` and ``finally``: the exception being handled cannot be put back.
- A ``try/finally`` around each loop to drop its iterator early: CPython allows 20 nested blocks.
  Handlers drop the iterators of the loops inside their ``try`` instead.
- Positions from a round trip through ``ast.unparse``: tracebacks point at lines that are not.
- One text for both modes: whatever the guards cost, they would cost it outside a run as well.

The guard of a group stands on the line of its first statement, and what follows a compound
statement on the line of its head, so that a debugger and a coverage tool see no line that the
original would not have reached.  Imports: points, scope, source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from stepwise.rewrite.points import TRIES, any_calls, calls, opens
from stepwise.rewrite.scope import CHOICE, FRAME, TARGET, hoist, placed, released
from stepwise.rewrite.source import FunctionNode

__all__ = [
    "Point",
    "Transformed",
    "With",
    "transform",
]

_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class Point(NamedTuple):
    """A statement boundary.

    Args:
        position: ``after PATH`` (that statement is done) or ``enter PATH`` (that block begins).
        line: of the statement that is done, or of the block's first one.
        withs: numbers of the ``with`` statements around it.
        loops: hidden iterators of the loops around it.
    """

    position: str
    line: int
    withs: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()


class With(NamedTuple):
    """A ``with`` statement that can be entered.

    Args:
        line: of the file.
        names: that its ``as`` clauses bind.
        released: those of them that nothing outside of it mentions.
    """

    line: int
    names: tuple[str, ...]
    released: tuple[str, ...]


class Transformed(NamedTuple):
    """What became of a function.

    Args:
        declarations: its ``global`` and ``nonlocal`` statements.
        body: the body that can be resumed.
        points: by number, from 1.
        blocks: paths of the branches, by the number that ``visit`` gets, from 0.
        withs: by number, from 0.
        loops: hidden iterators, with the line of their loop.
    """

    declarations: list[ast.stmt]
    body: list[ast.stmt]
    points: dict[int, Point]
    blocks: list[str]
    withs: list[With]
    loops: dict[str, int]


def transform(node: FunctionNode) -> Transformed:
    """Rewrite the body of a function; ``node`` is used up."""
    declarations = hoist(node)
    rewriter = _Rewriter(released(node))
    body = rewriter.block(node.body, "body", _Around())
    return Transformed(
        declarations, body, rewriter.points, rewriter.blocks, rewriter.withs, rewriter.loops
    )


# -- making nodes --------------------------------------------------------------------------------


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)


def _ask(attribute: str, *arguments: ast.expr) -> ast.expr:
    """``@f.attribute(arguments)``."""
    function = ast.Attribute(_load(FRAME), attribute, ast.Load())
    return ast.Call(func=function, args=list(arguments), keywords=[])


def _target(operator: ast.cmpop, number: int) -> ast.expr:
    """``@t < number``."""
    return ast.Compare(_load(TARGET), [operator], [ast.Constant(number)])


def _when_resuming(then: ast.expr, otherwise: ast.expr) -> ast.expr:
    return ast.IfExp(test=_load(TARGET), body=then, orelse=otherwise)


def _unless_resuming(*body: ast.stmt) -> ast.stmt:
    return ast.If(test=ast.UnaryOp(ast.Not(), _load(TARGET)), body=list(body), orelse=[])


def _reset() -> ast.stmt:
    return _set(TARGET, ast.Constant(0))


def _names_bound(targets: Iterable[ast.expr | None]) -> tuple[str, ...]:
    return tuple(
        node.id
        for target in targets
        if target is not None
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


# -- the rewriter --------------------------------------------------------------------------------


class _Around(NamedTuple):
    """What a statement is inside of."""

    withs: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()


class _Rewriter:
    def __init__(self, over: set[str]) -> None:
        self._released = over
        self.points: dict[int, Point] = {}
        self.blocks: list[str] = []
        self.withs: list[With] = []
        self.loops: dict[str, int] = {}

    def point(self, position: str, line: int, around: _Around) -> int:
        number = len(self.points) + 1
        self.points[number] = Point(position, line, around.withs, around.loops)
        return number

    def save(self, number: int) -> ast.stmt:
        """``if @f.due: @f.save(number, @f.locals())``."""
        due = ast.Attribute(_load(FRAME), "due", ast.Load())
        call = ast.Expr(_ask("save", ast.Constant(number), _ask("locals")))
        return ast.If(test=due, body=[call], orelse=[])

    def block(self, stmts: list[ast.stmt], path: str, around: _Around) -> list[ast.stmt]:
        """The statements of a block, each reachable."""
        done: list[ast.stmt] = []
        pending: list[ast.stmt] = []
        for index, stmt in enumerate(stmts):
            here = f"{path}[{index}]"
            if opens(stmt):
                done += self.group(pending, f"{path}[{index - 1}]", around)
                done += self.open(stmt, here, around)
                pending = []
                continue
            pending.append(stmt)
            if calls(stmt) or index == len(stmts) - 1:
                done += self.group(pending, here, around)
                pending = []
        return done

    def group(self, stmts: list[ast.stmt], path: str, around: _Around) -> list[ast.stmt]:
        """Statements under one guard; only the last may contain a call."""
        if not stmts:
            return []
        last = stmts[-1]
        number = self.point(f"after {path}", last.lineno, around)
        body = placed([_reset()], stmts[0]) + stmts
        if calls(last) and not isinstance(last, _LEAVES):
            body += placed([self.save(number)], last)
        return placed([ast.If(test=_target(ast.Lt(), number), body=body, orelse=[])], stmts[0])

    def branch(
        self, stmts: list[ast.stmt], path: str, around: _Around, *, enter: bool
    ) -> list[ast.stmt]:
        """A block of a compound statement; with ``enter`` there is a point before its first."""
        if not stmts:
            return []
        self.blocks.append(path)
        front: list[ast.stmt] = [ast.Expr(_ask("visit", ast.Constant(len(self.blocks) - 1)))]
        if enter:
            number = self.point(f"enter {path}", stmts[0].lineno, around)
            front.append(_unless_resuming(self.save(number)))
        return [*placed(front, stmts[0]), *self.block(stmts, path, around)]

    def last(self) -> int:
        """The number of the last point made."""
        return len(self.points)

    # -- compound statements ---------------------------------------------------------------------

    def open(self, node: ast.stmt, path: str, around: _Around) -> list[ast.stmt]:
        kind = "try" if isinstance(node, TRIES) else type(node).__name__.lower()
        kind = kind.removeprefix("async")
        inside = _target(ast.Lt(), self.last() + 1)  # what is done lies before this statement
        front: ast.stmt = ast.If(test=inside, body=[_reset()], orelse=[])
        body: list[ast.stmt] = getattr(self, f"open_{kind}")(node, path, around)
        number = self.point(f"after {path}", node.lineno, around)
        body = [front, *body, _reset(), self.save(number)]
        return placed([ast.If(test=_target(ast.Lt(), number), body=body, orelse=[])], node)

    def open_if(self, node: ast.If, path: str, around: _Around) -> list[ast.stmt]:
        enter = calls(node.test)
        body = self.branch(node.body, f"{path}.body", around, enter=enter)
        node.test = _when_resuming(_target(ast.LtE(), self.last()), node.test)
        orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=enter)
        node.body, node.orelse = body, orelse
        return [node]

    def open_while(self, node: ast.While, path: str, around: _Around) -> list[ast.stmt]:
        body = self.branch(node.body, f"{path}.body", around, enter=calls(node.test))
        node.test = _when_resuming(_target(ast.LtE(), self.last()), node.test)
        orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=calls(node.test))
        node.body, node.orelse = [*body, _reset()], orelse
        return [node]

    def open_for(self, node: ast.For | ast.AsyncFor, path: str, around: _Around) -> list[ast.stmt]:
        waits = "a" if isinstance(node, ast.AsyncFor) else ""
        number = len(self.loops)
        iterator, item = f"@i{number}", f"@x{number}"
        self.loops[iterator] = node.lineno
        enter = calls(node.iter) or bool(waits)
        inside = _Around(around.withs, (*around.loops, iterator))
        body = self.branch(node.body, f"{path}.body", inside, enter=enter)
        again = ast.IfExp(
            test=_target(ast.LtE(), self.last()),
            body=_ask(f"{waits}again", _load(iterator)),
            orelse=_ask(f"{waits}nothing"),
        )
        orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=enter)
        begin = placed([_unless_resuming(_set(iterator, _ask(f"{waits}iter", node.iter)))], node)
        take = ast.Assign(targets=[node.target], value=_load(item))
        forget = _set(item, ast.Constant(None))
        node.iter = _when_resuming(again, _load(iterator))
        node.body = [*placed([_unless_resuming(take, forget)], node.target), *body, _reset()]
        node.target = ast.copy_location(ast.Name(item, ast.Store()), node.target)
        node.orelse = orelse
        return [*begin, node, _set(iterator, ast.Constant(None))]

    def open_with(
        self, node: ast.With | ast.AsyncWith, path: str, around: _Around
    ) -> list[ast.stmt]:
        number = len(self.withs)
        bound = _names_bound(item.optional_vars for item in node.items)
        self.withs.append(
            With(node.lineno, bound, tuple(name for name in bound if name in self._released))
        )
        enter = any_calls(item.context_expr for item in node.items)
        for index, item in enumerate(node.items):
            manager = _ask("manager", ast.Constant(number), ast.Constant(index), item.context_expr)
            item.context_expr = ast.copy_location(manager, item.context_expr)
        inside = _Around((*around.withs, number), around.loops)
        node.body = self.branch(node.body, f"{path}.body", inside, enter=enter)
        return [ast.Expr(_ask("opening", ast.Constant(number))), node]

    def open_try(self, node: ast.Try, path: str, around: _Around) -> list[ast.stmt]:
        before = len(self.loops)
        node.body = self.branch(node.body, f"{path}.body", around, enter=False)
        left = list(self.loops)[before:]
        for index, handler in enumerate(node.handlers):
            self.blocks.append(f"{path}.handlers[{index}].body")
            front: list[ast.stmt] = [
                _reset(),  # what failed may be a manager or a ``finally``, on the way to the target
                ast.Expr(_ask("visit", ast.Constant(len(self.blocks) - 1))),
            ]
            # The iterators of loops that the exception left would live until the function ends.
            front += [_set(name, ast.Constant(None)) for name in left]
            handler.body = [*placed(front, handler.body[0]), *handler.body]
        node.orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=False)
        if node.finalbody:
            node.finalbody = [*placed([_reset()], node.finalbody[0]), *node.finalbody]
        return [node]

    def open_match(self, node: ast.Match, path: str, around: _Around) -> list[ast.stmt]:
        """First the case is chosen, then its body entered, so that a resume can skip the first."""
        guards = (case.guard for case in node.cases if case.guard is not None)
        enter = calls(node.subject) or any_calls(guards)
        bodies, chosen = [], []
        for index, case in enumerate(node.cases):
            where = f"{path}.cases[{index}].body"
            bodies.append(self.branch(case.body, where, around, enter=enter))
            chosen.append(self.last())
            case.body = placed([_set(CHOICE, ast.Constant(index))], case.pattern)
        by_target: ast.expr = ast.Constant(len(chosen) - 1)
        for index in reversed(range(len(chosen) - 1)):
            by_target = ast.IfExp(
                test=_target(ast.LtE(), chosen[index]),
                body=ast.Constant(index),
                orelse=by_target,
            )
        choose = ast.If(
            test=_load(TARGET),
            body=[_set(CHOICE, by_target)],
            orelse=[_set(CHOICE, ast.Constant(-1)), node],
        )
        dispatch: list[ast.stmt] = []
        for index, body in reversed(list(enumerate(bodies))):
            test = ast.Compare(_load(CHOICE), [ast.Eq()], [ast.Constant(index)])
            dispatch = [ast.If(test=test, body=body, orelse=dispatch)]
        return [choose, *dispatch]
