"""The rewrite: a function body that can be entered at any of its statement boundaries.

Statements are numbered in the order of the text.  The rewritten body has a hidden local ``@t``, the
*target*.  The target is 0 in normal running; on resume, it is the number of the last finished
statement.  (``@t``, ``@f`` and ``@a`` stand here for ``TARGET``, ``FRAME`` and ``ASKS``.)  A
statement ``k`` that contains a call, ``await`` or ``yield`` becomes::

    if @t < k:
        if @a[j] and not @t: @f.save(j, @f.locals())
        @t = 0
        <statement>

Here ``j`` is the point before the statement, and ``@a`` lists at which points the frame wants to be
asked.  So a save also covers the statements between two calls.

Statements without calls share one guard: none is ever executed while the target is not 0.  A
compound statement is numbered after its parts.  On resume it is entered without evaluating its
head:

- ``if`` and ``match`` take the branch that holds the target.
- ``while`` skips its first test.
- ``for`` finds its iterator among the restored locals, and takes no item for the first pass.
- ``with`` evaluates its managers again.
- ``try`` is entered.

Things that do not work, and were tried or considered:

- Resume points in ``except`` and ``finally``: the exception being handled cannot be put back.
- A ``try/finally`` around each loop to drop its iterator early: CPython allows 20 nested blocks.
  Handlers drop the iterators of the loops inside their ``try`` instead.
- Positions from a round trip through ``ast.unparse``: tracebacks would point at wrong lines.
- One text for both modes: the guards would cost time outside a run as well.

The guard of a group takes the line of its first statement.  Code added after a compound statement
takes the line of the statement's head.  So debuggers and coverage tools see no line that the
original would not have reached.

Hidden names begin with ``@``, which no identifier does.  So they cannot clash, and private names'
mangling leaves them alone.  Apart from loop numbers, hidden names consist of characters that no
identifier holds, so that no ``NameError`` suggests them.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepwise._rewrite import statements
from stepwise._rewrite.frame import Point, Reading, Rewritten, With, visited_name
from stepwise._rewrite.source import TRIES, FunctionNode, any_calls, calls, children, opens, walk
from stepwise._runtime.facts import NamedTuple

_FORS = (ast.For, ast.AsyncFor)

# Hidden names.
ENTER, VISIBLE = "@(", "@)"  # functions of this package, in cells
# Local variables.
FRAME, TARGET, VALUES, CHOICE, ASKS = "@[]", "@>", "@{}", "@|", "@?"
# Prefixes before a number: the hidden variables of loops.
_ITERATOR, _ITEM = "@::", "@=="
LISTING = ("locals", "vars", "dir")


def iterator_name(number: int) -> str:
    """Return the name of the hidden variable that holds the iterator of a loop."""
    return f"{_ITERATOR}{number}"


def item_name(number: int) -> str:
    """Return the name of the hidden variable that holds the item a loop has taken."""
    return f"{_ITEM}{number}"


def transform(node: FunctionNode, facts: Rewritten) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Rewrite the body of a function; ``node`` is changed and must not be used again.

    Args:
        facts: receives the points, and all that the rewrite knows of them.

    Returns:
        the ``global`` and ``nonlocal`` statements, and the body that can be resumed.
    """
    declarations = hoist(node)
    made = _Rewriter(facts, released(node), statements.mentions(node))
    body = made.block(node.body, "body", _Around())
    if not isinstance(node.body[-1], (ast.Return, ast.Raise)):
        body += placed(made.save(made.last(), statements.Ahead(ends=True)), node.body[-1])
    return declarations, body


# -- the rewriter --------------------------------------------------------------------------------


def _names_bound(targets: Iterable[ast.expr | None]) -> tuple[str, ...]:
    return tuple(
        node.id
        for target in targets
        if target is not None
        for node in walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


class _Around(NamedTuple):
    """The blocks that surround a statement."""

    withs: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()
    caught: bool = False  # inside a ``try`` whose handler or ``finally`` calls something

    def sees(self, ahead: statements.Ahead | None) -> statements.Ahead | None:
        """Return the code ahead, marked as escaping if an exception would reach a call."""
        return (ahead or statements.Ahead())._replace(escapes=True) if self.caught else ahead


class _Rewriter:
    def __init__(self, facts: Rewritten, over: set[str], mentioned: Counter[str]) -> None:
        self._facts = facts
        self._released = over
        self._mentioned = mentioned
        self._opened: dict[ast.stmt, tuple[int, str, ast.expr]] = {}  # each loop's ``with``

    def point(self, position: str, line: int, around: _Around) -> int:
        number = len(self._facts.points) + 1
        self._facts.points[number] = Point(position, line, around.withs, around.loops)
        return number

    def save(self, number: int | None, ahead: statements.Ahead | None) -> list[ast.stmt]:
        """Return ``if @a[number] and not @t: @f.save(number, @f.locals())``.

        Args:
            number: the last point; ``None`` if nothing was executed before.
            ahead: the code executed from there; ``None`` if it does not matter.
        """
        if number is None and ahead is not None:
            self._facts.ahead.setdefault(0, ahead)
        if number is None or ahead is None:
            return []
        self._facts.ahead[number] = ahead
        asked = ast.Subscript(load(ASKS), ast.Constant(number), ast.Load())
        test = ast.BoolOp(ast.And(), [asked, ast.UnaryOp(ast.Not(), load(TARGET))])
        call = ast.Expr(ask("save", ast.Constant(number), ask("locals")))
        return [ast.If(test=test, body=[call], orelse=[])]

    def visit(self) -> ast.stmt:
        """Return the store that marks the newest block as entered; a store is cheap in loops."""
        return store(visited_name(len(self._facts.blocks) - 1), ast.Constant(value=True))

    def key(self, stmt: ast.stmt) -> str | int:
        """Return the key of the loop or ``with`` statement that is rewritten next."""
        if isinstance(stmt, TRIES):
            return self.key(stmt.body[0])  # type: ignore[attr-defined]
        is_loop = isinstance(stmt, _FORS)
        loops, withs = len(self._facts.loops), len(self._facts.withs)
        return iterator_name(loops) if is_loop else withs

    def block(
        self, stmts: list[ast.stmt], path: str, around: _Around, before: int | None = None
    ) -> list[ast.stmt]:
        """Return the statements of a block, each reachable on resume.

        Args:
            before: the point before the first statement, if the point can save.
        """
        done: list[ast.stmt] = []
        pending: list[ast.stmt] = []
        for index, stmt in enumerate(stmts):
            here = f"{path}[{index}]"
            piecemeal = opens(stmt)
            if not piecemeal and not calls(stmt):
                pending.append(stmt)
                continue
            if pending:
                done += self.group(pending, f"{path}[{index - 1}]", around, before)
                before, pending = self.last(), []
            if piecemeal:
                done += self.open(stmt, here, around, before)
            else:
                done += self.group([stmt], here, around, before)
            before = self.last()
        return done + self.group(pending, f"{path}[{len(stmts) - 1}]", around, before)

    def group(
        self, stmts: list[ast.stmt], path: str, around: _Around, before: int | None
    ) -> list[ast.stmt]:
        """Return statements under one guard; if there are several, none contains a call."""
        if not stmts:
            return []
        saves = self.save(before, around.sees(statements.ahead_of(stmts)))
        number = self.point(f"after {path}", stmts[-1].lineno, around)
        body = [*placed([*saves, reset()], stmts[0]), *stmts]
        return placed([ast.If(test=target(ast.Lt(), number), body=body, orelse=[])], stmts[0])

    def branch(
        self, stmts: list[ast.stmt], path: str, around: _Around, *, enter: bool
    ) -> list[ast.stmt]:
        """Return a block of a compound statement, with a point at its start if one is needed.

        Args:
            enter: the head of the statement calls something.
        """
        if not stmts:
            return []
        self._facts.blocks.append(path)
        front = [self.visit()]
        number = None
        if enter or around.sees(statements.ahead_of(stmts[:1])) is not None:
            number = self.point(f"enter {path}", stmts[0].lineno, around)
        return [*placed(front, stmts[0]), *self.block(stmts, path, around, number)]

    def body(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        path: str,
        around: _Around,
        *,
        enter: bool,
        iterator: str = "",
    ) -> list[ast.stmt]:
        """Return the body of a loop, which ends where another pass may begin."""
        body = self.branch(node.body, f"{path}.body", around, enter=enter)
        end = self.save(self.last(), statements.each_pass(node, iterator))
        return [*body, *placed(end, node), *placed([reset()], node)]

    def last(self) -> int:
        """Return the number of the last point made."""
        return len(self._facts.points)

    # -- compound statements ---------------------------------------------------------------------

    def open(
        self, node: ast.stmt, path: str, around: _Around, before: int | None
    ) -> list[ast.stmt]:
        kind = "try" if isinstance(node, TRIES) else type(node).__name__.lower()
        kind = kind.removeprefix("async")
        saves = self.save(before, around.sees(statements.ahead_of([node], self.key(node))))
        inside = target(ast.Lt(), self.last() + 1)  # no target inside this statement: run all of it
        front: ast.stmt = ast.If(test=inside, body=[*saves, reset()], orelse=[])
        body: list[ast.stmt] = getattr(self, f"open_{kind}")(node, path, around)
        number = self.point(f"after {path}", node.lineno, around)
        body = [front, *body, reset()]
        return placed([ast.If(test=target(ast.Lt(), number), body=body, orelse=[])], node)

    def open_if(self, node: ast.If | ast.While, path: str, around: _Around) -> list[ast.stmt]:
        enter = calls(node.test)
        if isinstance(node, ast.While):
            body = self.body(node, path, around, enter=enter)
        else:
            body = self.branch(node.body, f"{path}.body", around, enter=enter)
        node.test = when_resuming(target(ast.LtE(), self.last()), node.test)
        orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=enter)
        node.body, node.orelse = body, orelse
        return [node]

    open_while = open_if

    def open_for(self, node: ast.For | ast.AsyncFor, path: str, around: _Around) -> list[ast.stmt]:
        waits = "a" if isinstance(node, ast.AsyncFor) else ""
        number = len(self._facts.loops)
        iterator, item = iterator_name(number), item_name(number)
        self._facts.loops[iterator] = node.lineno
        enter = calls(node.iter) or bool(waits)
        inside = around._replace(loops=(*around.loops, iterator))
        body = self.body(node, path, inside, enter=enter, iterator=iterator)
        begin = placed([self.begin(node, iterator, waits)], node)
        again = ast.IfExp(
            test=target(ast.LtE(), self.last()),
            body=ask(f"{waits}again", load(iterator)),
            orelse=ask(f"{waits}nothing"),
        )
        orelse = self.branch(node.orelse, f"{path}.orelse", around, enter=enter)
        take = ast.Assign(targets=[node.target], value=load(item))
        forget = store(item, ast.Constant(None))
        node.iter = when_resuming(again, load(iterator))
        node.body = [*placed([unless_resuming(take, forget)], node.target), *body]
        node.target = ast.copy_location(ast.Name(item, ast.Store()), node.target)
        node.orelse = orelse
        return [*begin, node, store(iterator, ast.Constant(None))]

    def begin(self, node: ast.For | ast.AsyncFor, iterator: str, waits: str) -> ast.stmt:
        """Return the statement that makes a loop's iterator; a resume runs it only if it must."""
        within, iterable = None, copy.deepcopy(node.iter)
        if node in self._opened:
            within, name, opening = self._opened[node]
            iterable = statements.with_file(iterable, name, opening)
        # Python raises the error for a non-iterable where it asks for the iterator: keep that line.
        place = node.iter if sys.version_info >= (3, 13) else node
        first = ast.copy_location(ask(f"{waits}iter", node.iter), place)
        head = None if waits else statements.head_of(iterable)
        if head is None:
            return unless_resuming(store(iterator, first))
        if head.opens:
            code = compile(ast.Expression(iterable), "<the head of a loop>", "eval")
            self._facts.files[iterator] = Reading(code, within)
        self._facts.heads[iterator] = head
        first = ask("counted", ast.Constant(iterator), first, ask("locals"))
        inside = target(ast.LtE(), self.last())
        anew = ast.BoolOp(ast.And(), [inside, ask("anew", load(iterator))])
        test = ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), load(TARGET)), anew])
        return ast.If(test=test, body=[store(iterator, first)], orelse=[])

    def open_with(
        self, node: ast.With | ast.AsyncWith, path: str, around: _Around
    ) -> list[ast.stmt]:
        number = len(self._facts.withs)
        bound = _names_bound(item.optional_vars for item in node.items)
        self._facts.withs.append(
            With(node.lineno, bound, tuple(name for name in bound if name in self._released))
        )
        enter = any_calls(item.context_expr for item in node.items)
        reading = statements.loop_over_file(node, self._mentioned)
        if reading is not None:
            opening = copy.deepcopy(node.items[0].context_expr)
            self._opened[reading] = number, bound[0], opening
        for index, item in enumerate(node.items):
            manager = ask("manager", ast.Constant(number), ast.Constant(index), item.context_expr)
            item.context_expr = ast.copy_location(manager, item.context_expr)
        inside = around._replace(withs=(*around.withs, number))
        node.body = self.branch(node.body, f"{path}.body", inside, enter=enter)
        return [ast.Expr(ask("opening", ast.Constant(number))), node]

    def open_try(self, node: ast.Try, path: str, around: _Around) -> list[ast.stmt]:
        before = len(self._facts.loops)
        self._facts.blocks.append(f"{path}.body")
        visit = self.visit()
        # The first statement has no point before it: the point before ``try`` serves.
        ends = any_calls(node.finalbody)
        inside = around._replace(caught=around.caught or ends or any_calls(node.handlers))
        body = self.block(node.body, f"{path}.body", inside)
        node.body = [*placed([visit], node.body[0]), *body]
        left = list(self._facts.loops)[before:]
        for index, handler in enumerate(node.handlers):
            self._facts.blocks.append(f"{path}.handlers[{index}].body")
            front: list[ast.stmt] = [
                reset(),  # a manager or a ``finally`` may have failed on the way to the target
                self.visit(),
            ]
            # Without these stores, the iterators of loops that the exception left would live on
            # until the function ends.
            front += [store(name, ast.Constant(None)) for name in left]
            handler.body = [*placed(front, handler.body[0]), *handler.body]
        inside = around._replace(caught=around.caught or ends)
        node.orelse = self.branch(node.orelse, f"{path}.orelse", inside, enter=False)
        if node.finalbody:
            node.finalbody = [*placed([reset()], node.finalbody[0]), *node.finalbody]
        return [node]

    def open_match(self, node: ast.Match, path: str, around: _Around) -> list[ast.stmt]:
        """Choose the case first, then enter its body, so that a resume can skip the choice."""
        guards = (case.guard for case in node.cases if case.guard is not None)
        enter = calls(node.subject) or any_calls(guards)
        bodies, chosen = [], []
        for index, case in enumerate(node.cases):
            where = f"{path}.cases[{index}].body"
            bodies.append(self.branch(case.body, where, around, enter=enter))
            chosen.append(self.last())
            case.body = placed([store(CHOICE, ast.Constant(index))], case.pattern)
        by_target: ast.expr = ast.Constant(len(chosen) - 1)
        for index in reversed(range(len(chosen) - 1)):
            by_target = ast.IfExp(
                test=target(ast.LtE(), chosen[index]),
                body=ast.Constant(index),
                orelse=by_target,
            )
        choose = ast.If(
            test=load(TARGET),
            body=[store(CHOICE, by_target)],
            orelse=[store(CHOICE, ast.Constant(-1)), node],
        )
        dispatch: list[ast.stmt] = []
        for index, body in reversed(list(enumerate(bodies))):
            test = ast.Compare(load(CHOICE), [ast.Eq()], [ast.Constant(index)])
            dispatch = [ast.If(test=test, body=body, orelse=dispatch)]
        return [choose, *dispatch]


# -- nodes added beside the user's nodes ---------------------------------------------------------


def load(name: str) -> ast.expr:
    """Return the node that reads a variable."""
    return ast.Name(name, ast.Load())


def store(name: str, value: ast.expr) -> ast.stmt:
    """Return the statement ``name = value``."""
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)


def ask(attribute: str, *arguments: ast.expr) -> ast.expr:
    """Return the call ``@f.attribute(arguments)``."""
    function = ast.Attribute(load(FRAME), attribute, ast.Load())
    return ast.Call(func=function, args=list(arguments), keywords=[])


def target(operator: ast.cmpop, number: int) -> ast.expr:
    """Return the comparison ``@t < number``, with the given operator."""
    return ast.Compare(load(TARGET), [operator], [ast.Constant(number)])


def when_resuming(then: ast.expr, otherwise: ast.expr) -> ast.expr:
    """Return the expression ``then if @t else otherwise``."""
    return ast.IfExp(test=load(TARGET), body=then, orelse=otherwise)


def unless_resuming(*body: ast.stmt) -> ast.stmt:
    """Return the statement ``if not @t: body``."""
    return ast.If(test=ast.UnaryOp(ast.Not(), load(TARGET)), body=list(body), orelse=[])


def reset() -> ast.stmt:
    """Return the statement ``@t = 0``."""
    return store(TARGET, ast.Constant(0))


# -- for debuggers ---------------------------------------------------------------------------------


def announce(body: list[ast.stmt], head: ast.AST) -> None:
    """Make a body call ``arrived`` of its frame at the target, and ``go`` before each statement.

    The call of ``arrived`` stands on the line of ``head``.  So a debugger that ``arrived`` attaches
    meets the line of the statement afterwards, as a new line.  ``go`` is called on that line, when
    the debugger lets the statement begin, with the point before it, or 0 if that cannot save.  The
    end of a ``for`` loop's body is no statement: the loop takes its next item, which
    ``arrived(True)`` says.

    Args:
        head: a node on a line without statements, such as the definition of the function.
    """
    for node in walk(ast.Module(body, [])):
        for name in node._fields:
            block = getattr(node, name)
            if not isinstance(block, list) or not any(map(_is_reset, block)):
                continue
            if isinstance(node, ast.If) and len(block) > 2 and _is_reset(block[-1]):
                del block[-1]  # behind a compound statement: the next statement is the target
            takes = block[-1] if isinstance(node, _FORS) and name == "body" else None
            done: list[ast.stmt] = []
            for stmt in block:
                if _is_reset(stmt):
                    done += _announced(stmt, head, takes=stmt is takes, before=_saved(done[-1:]))
                else:
                    done.append(stmt)
            block[:] = done


def _is_reset(stmt: object) -> bool:
    return (
        isinstance(stmt, ast.Assign)
        and isinstance(stmt.targets[0], ast.Name)
        and stmt.targets[0].id == TARGET
        and isinstance(stmt.value, ast.Constant)
    )


def _saved(stmts: list[ast.stmt]) -> int:
    """Return the number of the point that a statement saves, or 0."""
    for stmt in stmts:
        match stmt:
            case ast.If(
                body=[
                    ast.Expr(
                        ast.Call(
                            ast.Attribute(ast.Name(id=id_), "save"), [ast.Constant(int(number)), *_]
                        )
                    )
                ]
            ) if id_ == FRAME:
                return number
    return 0


def _announced(stmt: ast.stmt, head: ast.AST, *, takes: bool, before: int) -> list[ast.stmt]:
    ends = [ast.Constant(value=True)] if takes else []
    arrived = placed([store(TARGET, ask("arrived", *ends))], head)
    here: list[ast.stmt] = [ast.If(load(TARGET), arrived, [])]
    here += [] if takes else [ast.Expr(ask("go", ast.Constant(before)))]
    return placed(here, stmt) if hasattr(stmt, "lineno") else here


# -- declarations and hidden names -----------------------------------------------------------------


def placed(nodes: Sequence[ast.stmt], like: ast.AST) -> list[ast.stmt]:
    """Give new statements the place of an old node; ``complete`` places the nodes inside them."""
    for node in nodes:
        if not hasattr(node, "lineno"):  # the user's nodes keep their own place
            _put(node, like)
    return list(nodes)


def complete(root: ast.AST) -> None:
    """Give each node without a place the place of the statement around it."""
    start = ast.Pass(lineno=1, col_offset=0)
    todo: list[tuple[Any, ast.AST]] = [(root, start)]
    for node, around in todo:
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            _put(node, around)
        inside = node if isinstance(node, ast.stmt) else around
        todo += [(each, inside) for each in children(node)]


def _put(node: Any, like: Any) -> None:
    """Place a node where another one begins."""
    node.lineno = node.end_lineno = like.lineno
    node.col_offset = node.end_col_offset = like.col_offset


def hoist(node: FunctionNode) -> list[ast.stmt]:
    """Take ``global`` and ``nonlocal`` out of a function; they apply to the whole function anyway.

    The ``pass`` that replaces a declaration takes the line of a neighbour, so that tracers do not
    see an extra line.
    """
    found: list[ast.stmt] = []
    for block in _blocks(node):
        for index in reversed(range(len(block))):
            stmt = block[index]
            if isinstance(stmt, (ast.Global, ast.Nonlocal)):
                found.append(stmt)
                near = block[index + 1 : index + 2] or block[max(index - 1, 0) : index] or [stmt]
                block[index] = placed([ast.Pass()], near[0])[0]
    return found


def released(node: FunctionNode) -> set[str]:
    """Return the names that ``with`` statements bind and no code outside of them mentions."""
    bound: set[str] = set()
    mentioned: set[str] = set()

    def look(node: ast.AST, around: frozenset[str]) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            mentioned.update({node.id} - around)
        inside = around
        if isinstance(node, (ast.With, ast.AsyncWith)):
            targets = [item.optional_vars for item in node.items if item.optional_vars]
            names = {n.id for each in targets for n in walk(each) if isinstance(n, ast.Name)}
            bound.update(names)
            inside = around | names
        for child in children(node):
            look(child, around if isinstance(child, ast.withitem) else inside)

    look(node, frozenset())
    return bound - mentioned


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a function at any depth, except blocks of scopes inside the function."""
    for _, value in ast.iter_fields(node):
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            yield value
        for each in value:
            if isinstance(each, (ast.stmt, ast.excepthandler, ast.match_case)) and not isinstance(
                each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                yield from _blocks(each)
