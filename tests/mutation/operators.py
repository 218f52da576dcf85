"""What a mutation is: one small change of an expression or a statement, made in the source's text.

Only the changed piece is written anew, so that every other line keeps its number and its text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.exchange import EXCHANGED_NAMES, OTHER_BINARY, OTHER_COMPARISONS

Change = tuple[str, ast.AST, str]


def changes_of(node: ast.AST) -> Iterator[Change]:
    """Every change of this one node: (kind, the node to replace, its new text)."""
    for operator in OPERATORS:
        for place, text in operator(node):
            yield operator.__name__, place, text


def compare(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    for other in OTHER_COMPARISONS.get(type(node.ops[0]), ()):
        yield node, _expression(ast.Compare(node.left, [other()], node.comparators))


def arithmetic(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
        if other := OTHER_BINARY.get(type(node.op)):
            yield node, _expression(ast.BinOp(node.left, other(), node.right))
    elif isinstance(node, ast.AugAssign) and (other := OTHER_BINARY.get(type(node.op))):
        yield node, ast.unparse(ast.AugAssign(node.target, other(), node.value))


def boolean(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, _expression(ast.BoolOp(other, node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, _expression(node.operand)


def condition(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The other branch, where the condition is no comparison of which a sharper change is made."""
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(
        node.test, (ast.Name, ast.Attribute, ast.Call)
    ):
        yield node.test, _expression(ast.UnaryOp(ast.Not(), node.test))


def sign(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, _expression(node.operand)


def constant(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield node, str(not value)
    elif isinstance(value, int):
        yield node, str(value + 1)
        if value:
            yield node, f"({value - 1})"
    elif isinstance(value, float):
        yield node, f"({value + 1.0!r})"
        if value:
            yield node, f"({-value!r})"
            yield node, "0.0"


def exchange(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """min for max, any for all, and their like, as names, functions of a module and methods."""
    if not isinstance(node, ast.Call):
        return
    called = node.func
    if isinstance(called, ast.Name) and called.id in EXCHANGED_NAMES:
        yield called, EXCHANGED_NAMES[called.id]
    elif isinstance(called, ast.Attribute) and called.attr in EXCHANGED_NAMES:
        yield called, ast.unparse(ast.Attribute(called.value, EXCHANGED_NAMES[called.attr]))


def removal(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A statement left out: a call, an assignment to a part of something, a raise."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
    to_part = isinstance(node, ast.Assign) and isinstance(
        node.targets[0], (ast.Attribute, ast.Subscript)
    )
    if is_call or to_part or isinstance(node, (ast.AugAssign, ast.Raise)):
        yield node, "pass"


def returned(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if not isinstance(node, ast.Return) or node.value is None:
        return
    if not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield node, "return None"


def bounds(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A slice that begins one later or ends one earlier."""
    if not isinstance(node, ast.Slice):
        return
    one = ast.Constant(1)
    if node.upper is not None:
        upper = ast.BinOp(node.upper, ast.Sub(), one)
        yield node, ast.unparse(ast.Slice(node.lower, upper, node.step))
    if node.lower is not None:
        lower = ast.BinOp(node.lower, ast.Add(), one)
        yield node, ast.unparse(ast.Slice(lower, node.upper, node.step))


def keyword(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A call without one of the arguments that it gives by name."""
    if not isinstance(node, ast.Call):
        return
    for left_out in node.keywords:
        if left_out.arg is not None:
            kept = [each for each in node.keywords if each is not left_out]
            yield node, ast.unparse(ast.Call(node.func, node.args, kept))


OPERATORS = (
    compare,
    arithmetic,
    boolean,
    condition,
    sign,
    constant,
    exchange,
    removal,
    returned,
    bounds,
    keyword,
)


def _expression(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
