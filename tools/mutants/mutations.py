"""The faults that `mutants.py` plants: one small change of a file's syntax tree at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
TWINS = {"min": "max", "amin": "amax", "clamp_min": "clamp_max", "any": "all", "sum": "mean", "cumsum": "cumprod"}
TWINS |= {"zeros": "ones", "zeros_like": "ones_like", "log1p": "log", "expm1": "exp", "add_": "sub_", "mul_": "div_"}
TWINS |= {name + "_": other + "_" for name, other in TWINS.items() if name.startswith(("clamp", "log1", "expm"))}
TWINS |= {other: name for name, other in TWINS.items()} | {"sigmoid": "tanh", "logsigmoid": "sigmoid"}
DROPPED = {"detach", "clone", "contiguous", "neg_", "neg", "abs", "copy", "double", "float", "square", "reciprocal_"}
TESTS = (ast.If, ast.While, ast.IfExp, ast.Assert)


@dataclass(frozen=True)
class Mutant:
    """One change of a file: its line, how it reads, and the lines that a test must reach to see it.

    `name` is the same as long as the changed expression is: the line may move. A changed default is seen by who reaches
    its function; what stands in none (`on_import`), by who reaches any function of the file.
    """

    file: str
    number: int
    name: str
    line: int
    seen_at: range
    on_import: bool
    is_default: bool


@dataclass(frozen=True)
class Site:
    """A place in a tree and what to put there."""

    path: tuple[ast.AST, ...]
    node: ast.AST
    change: str
    put: Callable[[], None]


def mutants(file: str, source: str) -> list[Mutant]:
    """Return every mutant of a file."""
    out: list[Mutant] = []
    seen: dict[str, int] = {}
    for number, site in enumerate(_sites(ast.parse(source))):
        where = ".".join(n.name for n in site.path if isinstance(n, ast.FunctionDef | ast.ClassDef))
        name = f"{file} {where or 'module'}: {site.change}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name += f" ({seen[name]})"
        statement = next(n for n in (site.node, *reversed(site.path)) if isinstance(n, ast.stmt))
        end = statement.end_lineno if not hasattr(statement, "body") else getattr(site.node, "end_lineno", None)
        seen_at = range(statement.lineno, (end or statement.lineno) + 1)
        functions = [n for n in site.path if isinstance(n, ast.FunctionDef)]
        is_default = bool(functions) and isinstance(statement, ast.FunctionDef)
        if is_default:
            seen_at = range(functions[0].body[0].lineno, (functions[0].end_lineno or 0) + 1)
        elif not functions:
            inner = next((n for n in site.path if isinstance(n, ast.Lambda)), None)
            seen_at = range(1, 1 << 16) if inner is None else range(inner.lineno, (inner.end_lineno or 0) + 1)
        out.append(Mutant(file, number, name, statement.lineno, seen_at, not functions, is_default))
    return out


def unharmed(file: str) -> Mutant:
    """Return the mutant of a file that is no fault: the tests must pass with it."""
    return Mutant(file, -1, f"{file} as it is", 1, range(1, 1 << 16), True, False)


def planted(source: str, number: int) -> ast.Module:
    """Return the tree of `source` with mutant `number` in it."""
    tree = ast.parse(source)
    if number < 0:
        return tree
    for i, site in enumerate(_sites(tree)):
        if i == number:
            site.put()
            return ast.fix_missing_locations(tree)
    raise ValueError(f"there are fewer than {number} mutants")


def _sites(node: ast.AST, path: tuple[ast.AST, ...] = ()) -> Iterator[Site]:
    """Yield the places in a tree, from the outside in."""
    inner = (*path, node)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "exc", "msg"):
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            for new in _changes(node, field, child):
                whole = [*value[:i], new, *value[i + 1 :]] if isinstance(value, list) else new
                wide = isinstance(child, ast.Constant) and isinstance(node, ast.expr | ast.keyword)
                pair = (node, _with(node, **{field: whole})) if wide else (child, new)
                change = f"{_argument(node, field, i)}{_shown(pair[0])} → {_shown(pair[1])}"
                yield Site(inner, child, change, partial(setattr, node, field, whole))
            yield from _sites(child, inner)


def _is_text(child: ast.AST) -> bool:
    """Return whether this is a docstring, a message, an import or the list of public names."""
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True
    if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name) and child.targets[0].id == "__all__":
        return True
    return isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr)


def _changes(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may become."""
    for op in OPERATORS.get(type(getattr(node, "op", None)), ()):
        yield _with(node, op=op())
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in OPERATORS[type(op)]:
                yield _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        for value in _other_values(node.value):
            yield _with(node, value=value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()
    elif isinstance(node, ast.With) and not any(item.optional_vars for item in node.items):
        yield ast.If(ast.Constant(True), node.body, [])
    is_test = (isinstance(parent, TESTS) and field == "test") or field == "ifs" or isinstance(parent, ast.BoolOp)
    if is_test and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Subscript):
        yield ast.UnaryOp(ast.Not(), node)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    for i, keyword in enumerate(node.keywords):
        if keyword.arg:
            yield _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in TWINS:
            yield _with(node, func=_with(node.func, attr=TWINS[node.func.attr]))
        if node.func.attr in DROPPED:
            yield node.func.value
    elif isinstance(node.func, ast.Name) and node.func.id in TWINS:
        yield _with(node, func=_with(node.func, id=TWINS[node.func.id]))


def _other_values(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1 if value + 1 != value else 2 * value
    elif isinstance(value, str):
        yield value + "?"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _argument(node: ast.AST, field: str, i: int) -> str:
    """Return the name of the argument whose default is changed."""
    if not isinstance(node, ast.arguments):
        return ""
    names = node.kwonlyargs if field == "kw_defaults" else node.args[-len(node.defaults) :]
    return f"{names[i].arg}="


def _shown(node: ast.AST) -> str:
    """Return the first line of a node's source, short."""
    if isinstance(node, ast.With):
        text = ", ".join(ast.unparse(item) for item in node.items)
        return f"with {text}"
    if isinstance(node, ast.If):
        return "no with"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 110 else text[:109] + "…"
