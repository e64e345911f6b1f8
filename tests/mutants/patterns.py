"""Syntax patterns of the mutants.

A pattern is a function from a syntax node to pairs: the part of the source to replace, and its replacement.
Patterns name words of the package (``after_write``, ``beta``, ``key``) and neither files nor lines, so that
they survive a change of the structure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["KINDS", "LEFT_OUT", "Mutant", "mutants_of", "mutants_of_package"]

# The bindings are generated; the references are what tests compare with.
LEFT_OUT = ("_bindings", "reference")
DOCTOR = "cudnn_doctor"

KEY_NAME = re.compile(r"(^|[_.])key$", re.IGNORECASE)
KEY_LOOKUPS = {"get", "setdefault"}
CANONICAL = {
    "canonical", "canonical_strides", "contiguous", "four_axes", "packed", "representable",
    "settled", "two_axes", "pad_to_two_axes", "collapse", "folded",
}  # fmt: skip
SIZES = {"hidden_size": "output_size", "output_size": "hidden_size"}
FACTOR = re.compile(r"^(alpha|beta)\d?$")
ORDERING = {
    "after_use", "after_write", "before_read", "before_write", "note", "order", "record", "record_use",
    "record_write", "restore", "restore_device", "synchronize", "synchronize_device", "wait",
    "wait_for_readers", "wait_for_writer", "wait_stream",
}  # fmt: skip
ORDERED = {"in_order", "ordered"}
ORDERLESS = {"len", "max", "min"}
KEEPING = {
    "append", "callback", "finalize", "remember", "keep_alive", "pin", "register_at_fork", "release",
    "retain", "work_on", "set_stream",
}  # fmt: skip
EXITS = {"_exit", "exit", "fail"}
LIMIT = re.compile(r"^(MOST|MAX|LARGEST|LONGEST|INT_MAX|LEAST|MIN)(_[A-Z0-9_]+)?$|_(LIMIT|MAX|MIN)$")

LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.Import, ast.ImportFrom)

Edit = tuple[ast.AST, ast.AST, str]  # from the start of one node to the end of another: the new text


class Mutant(NamedTuple):
    """One fault: the bytes from ``start`` to ``end`` of a file become ``new``."""

    path: str  # below the package; that of the doctor begins with its name
    line: int
    start: int
    end: int
    kind: str
    function: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """Kind, file, function and change, without the line: explanations and ``--only`` search it."""
        return f"{self.kind} {self.path} {self.function}: {self.old} -> {self.new}"

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class Facts(NamedTuple):
    """Facts about all modules that patterns look up by name."""

    fields: dict[str, list[str]]  # of named tuples and dataclasses
    finalized: set[str]  # classes with __del__
    exit_names: set[str]  # constants that are exit codes

    @classmethod
    def of(cls, trees: list[ast.Module]) -> Facts:
        """Collect them."""
        facts = cls({}, set(), set())
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                if "NamedTuple" in names:
                    facts.fields[node.name] = [one.target.id for one in node.body if _is_field(one)]
                if any(isinstance(one, ast.FunctionDef) and one.name == "__del__" for one in node.body):
                    facts.finalized.add(node.name)
            elif isinstance(node, ast.Call) and _name(node.func) in EXITS:
                facts.exit_names.update(_name(one) for one in node.args if _name(one).isupper())
            elif isinstance(node, ast.FunctionDef) and node.name in EXITS:
                facts.exit_names.update(_name(one) for one in node.args.defaults if _name(one).isupper())
        return facts


class Scope(NamedTuple):
    """The place of a node: its file, the names around it, and the function that it belongs to."""

    path: str
    names: tuple[str, ...]
    function: ast.FunctionDef | None
    facts: Facts

    def annotation(self, name: str) -> str:
        """The annotation of a parameter of the function, empty if it has none."""
        arguments = self.function.args if self.function else None
        for one in (*arguments.args, *arguments.kwonlyargs) if arguments else ():
            if one.arg == name and one.annotation:
                return ast.unparse(one.annotation)
        return ""


Pattern = Callable[[ast.AST, Scope], Iterator[Edit]]


def mutants_of_package(package: Path) -> list[Mutant]:
    """Find all mutants of a package and the doctor next to it, sorted by file and place."""
    sources = {
        str(path.relative_to(package if path.is_relative_to(package) else package.parent)): path
        for path in (*package.rglob("*.py"), *package.with_name(DOCTOR).rglob("*.py"))
    }
    return mutants_of(
        {
            name: path.read_bytes()
            for name, path in sorted(sources.items())
            if Path(name).parts[0] not in LEFT_OUT
        }
    )


def file_of(package: Path, path: str) -> Path:
    """Return the file of a mutant."""
    return (package.parent if path.startswith(f"{DOCTOR}/") else package) / path


def mutants_of(sources: dict[str, bytes]) -> list[Mutant]:
    """Find all mutants of some modules, given by their paths, sorted by path and place."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    facts = Facts.of(list(trees.values()))
    found: dict[tuple[str, int, int, str], Mutant] = {}
    for path, tree in trees.items():
        starts = _line_starts(sources[path])
        for node, scope in _walk(tree, Scope(path, (), None, facts)):
            for kind, patterns in KINDS.items():
                for first, last, new in (edit for pattern in patterns for edit in pattern(node, scope)):
                    start = starts[first.lineno - 1] + first.col_offset
                    end = starts[last.end_lineno - 1] + last.end_col_offset
                    old = " ".join(sources[path][start:end].decode().split())
                    mutant = Mutant(path, first.lineno, start, end, kind, ".".join(scope.names), old, new)
                    if old != new:
                        found.setdefault((path, start, end, new), mutant)
    return sorted(found.values(), key=lambda one: (one.path, one.start, one.end, one.new))


def _walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield the nodes that patterns look at, each with its scope.

    Nodes inside f-strings are skipped: their positions are wrong before Python 3.12.
    """
    if isinstance(node, LEAVES):
        return
    yield node, scope
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node if isinstance(node, ast.FunctionDef) else scope.function
        scope = scope._replace(names=(*scope.names, node.name), function=function)
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, scope)


# --- keys: a part removed from the key of a cache ----------------------------------------------------------


def key_parts(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A part of a key: assigned or appended to one, looked up, or returned by a function of keys."""
    key: ast.AST | None = None
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        key = node.value if KEY_NAME.search(_name(target)) else None
    elif isinstance(node, ast.Return) and scope.function and KEY_NAME.search(scope.function.name):
        key = node.value
    elif isinstance(node, ast.Call) and _name(node.func) in KEY_LOOKUPS and node.args:
        key = node.args[0] if isinstance(node.args[0], ast.Tuple) else None
    elif isinstance(node, ast.Call) and KEY_NAME.search(ast.unparse(node.func).removesuffix(".append")):
        key = ast.Tuple(node.args)
    if isinstance(key, ast.Call) and re.search("Key$", _name(key.func)):
        parts = [*key.args, *[one.value for one in key.keywords]]
    else:
        parts = key.elts if isinstance(key, ast.Tuple | ast.List) else []
    for part in parts:
        if isinstance(part, ast.Constant):
            continue
        yield part, part, "*()" if isinstance(part, ast.Starred) else "None"
        for field in scope.facts.fields.get(scope.annotation(_name(part)), ()):
            yield part, part, f"{ast.unparse(part)}._replace({field}=None)"
    if isinstance(key, ast.JoinedStr):
        for part in key.values:
            if isinstance(part, ast.FormattedValue):
                yield key, key, ast.unparse(ast.JoinedStr([one for one in key.values if one is not part]))


# --- strides -----------------------------------------------------------------------------------------------


def canonical_step_dropped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A function that makes strides usable: its argument in place of its result."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CANONICAL:
        yield from (
            (node, node, ast.unparse(one)) for one in node.args[:1] if not isinstance(one, ast.Starred)
        )


def given_for_packed(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """The spec with its strides as given, in place of the packed one of its shape and dtype."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".packed") and len(node.args) >= 2:
        shape, dtype = map(ast.unparse, node.args[:2])
        spec = shape.removesuffix(".shape")
        if (shape, dtype) == (f"{spec}.shape", f"{spec}.dtype"):
            yield node, node, spec


def copy_dropped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """``None if ... else target``: the operand is never copied into the layout of the target."""
    if isinstance(node, ast.IfExp) and _is_none(node.body):
        test = ast.unparse(node.test)
        if re.search("target|order|packed|spec|like", test) and not re.search(r"\bis (not )?None", test):
            yield node, node, "None"


def strides_reversed(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Strides in an argument of a call, in the opposite order, unless the function ignores the order."""
    if isinstance(node, ast.Call) and not _raises(node) and _name(node.func) not in ORDERLESS:
        for part in node.args:
            if isinstance(part, ast.Attribute) and part.attr == "strides":
                yield part, part, f"{ast.unparse(part)}[::-1]"


def bytes_for_elements(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A product with the size of an element, without that factor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for part, rest in ((node.left, node.right), (node.right, node.left)):
            if _name(part) == "itemsize":
                yield node, node, f"({ast.unparse(rest)})"


def sizes_exchanged(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """One of two sizes of a network in the place of the other."""
    if isinstance(node, ast.Attribute) and node.attr in SIZES and isinstance(node.ctx, ast.Load):
        yield node, node, f"{ast.unparse(node.value)}.{SIZES[node.attr]}"


# --- factors -----------------------------------------------------------------------------------------------


def factor_fixed(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """An argument alpha that is always 1, an argument beta that is always 0."""
    if isinstance(node, ast.Call) and not _raises(node):
        for part in node.args:
            if FACTOR.match(_name(part)):
                yield part, part, _usual(_name(part))
        for word in node.keywords:
            if word.arg and FACTOR.match(word.arg) and not isinstance(word.value, ast.Constant):
                yield word.value, word.value, _usual(word.arg)


def factors_swapped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Alpha where beta belongs, and the reverse."""
    if isinstance(node, ast.Call) and not _raises(node):
        for one, two in pairwise(node.args):
            if FACTOR.match(_name(one)) and FACTOR.match(_name(two)):
                yield one, two, f"{ast.unparse(two)}, {ast.unparse(one)}"


def factor_of_all_or_none(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A factor that belongs to one case, in both cases or in neither."""
    if isinstance(node, ast.IfExp) and any(FACTOR.match(_name(one)) for one in (node.body, node.orelse)):
        yield node, node, ast.unparse(node.body)
        yield node, node, ast.unparse(node.orelse)


def factor_not_multiplied(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """``alpha *= ...`` dropped."""
    if isinstance(node, ast.AugAssign) and FACTOR.match(_name(node.target)):
        yield node, node, "pass"


def alignment_not_needed(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """An implementation that needs aligned memory, and does not say so."""
    if isinstance(node, ast.keyword) and node.arg == "aligned" and _is_true(node.value):
        yield node.value, node.value, "False"


# --- orderings ---------------------------------------------------------------------------------------------


def ordering_dropped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A statement that orders streams, waits, or notes a use."""
    if _is_statement_of(node, ORDERING) and not scope.path.startswith(DOCTOR):
        yield node, node, "pass"


def operands_unordered(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Work that is ordered by the arrays it reads and writes: none are read, none are written."""
    if isinstance(node, ast.Call) and _name(node.func) in ORDERED:
        for part in node.args[1:3]:
            yield part, part, "()"


def written_unnoted(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A given result that a call with several results does not record."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call):
        parts = [*node.args, *[word.value for word in node.keywords if word.arg == "outs"]]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        names = getattr(node.targets[0], "elts", ())
        parts = [value for name, value in zip(names, node.value.elts, strict=False) if _name(name) == "outs"]
    for part in parts:
        if isinstance(part, ast.Tuple) and any(map(_may_be_none, part.elts)):
            given = [one for one in part.elts if isinstance(one, ast.Attribute)]
            yield from ((one, one, "None") for one in given)


# --- lifetimes ---------------------------------------------------------------------------------------------


def process_unchecked(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A comparison of the process with the one that made an object."""
    if isinstance(node, ast.Compare) and any(
        isinstance(one, ast.Call) and _name(one.func) == "getpid" for one in (node.left, *node.comparators)
    ):
        yield node, node, "False"


def not_kept(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A statement that keeps something alive, lets go of it in time, or binds its end to another's."""
    if _is_statement_of(node, KEEPING) or (
        isinstance(node, ast.Assign) and _name(node.targets[0]) == "atexit"
    ):
        yield node, node, "pass"


def owner_left_out(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """The memory itself, in place of the object that gives it back."""
    if isinstance(node, ast.Call) and _name(node.func) in scope.facts.finalized and node.args:
        yield node, node, ast.unparse(node.args[0])


# --- exit codes --------------------------------------------------------------------------------------------


def exit_code_changed(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A number that a function of exit codes returns, or that an exit is given."""
    part: ast.AST | None = None
    if isinstance(node, ast.Return) and scope.function and _gives_exit_code(scope):
        part = node.value
    elif isinstance(node, ast.Call) and _name(node.func) in EXITS:
        part = next((one for one in reversed(node.args) if _is_code(one)), None)
    elif isinstance(node, ast.Assign) and _name(node.targets[0]) in scope.facts.exit_names:
        part = node.value
    if isinstance(part, ast.BoolOp):
        for one in part.values:
            yield part, part, ast.unparse(one)
    elif isinstance(part, ast.IfExp):
        yield part, part, ast.unparse(part.body)
        yield part, part, ast.unparse(part.orelse)
    elif part is not None and (_is_code(part) or isinstance(part, ast.Name)):
        yield part, part, "1" if getattr(part, "value", None) == 0 else "0"


# --- limits ------------------------------------------------------------------------------------------------


def limit_dropped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A comparison with a limit whose excess raises or stops."""
    if isinstance(node, ast.If) and any(isinstance(one, ast.Raise | ast.Return) for one in node.body):
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare) and any(LIMIT.search(_name(one)) for one in part.comparators):
                yield part, part, "False"


KINDS: dict[str, tuple[Pattern, ...]] = {
    "keys": (key_parts,),
    "strides": (
        canonical_step_dropped,
        given_for_packed,
        copy_dropped,
        strides_reversed,
        bytes_for_elements,
        sizes_exchanged,
        alignment_not_needed,
    ),
    "factors": (factor_fixed, factors_swapped, factor_of_all_or_none, factor_not_multiplied),
    "orderings": (ordering_dropped, operands_unordered, written_unnoted),
    "lifetimes": (process_unchecked, not_kept, owner_left_out),
    "exit codes": (exit_code_changed,),
    "limits": (limit_dropped,),
}


# --- helpers -----------------------------------------------------------------------------------------------


def _name(node: ast.AST) -> str:
    """The last name of a reference: ``c`` of ``a.b.c``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _usual(factor: str) -> str:
    return "1" if factor.startswith("alpha") else "0"


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _may_be_none(node: ast.AST) -> bool:
    return _is_none(node) or (isinstance(node, ast.IfExp) and _is_none(node.body))


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _gives_exit_code(scope: Scope) -> bool:
    function = scope.function
    assert function
    in_command = scope.path.split("/")[0] in ("cli", DOCTOR, "__main__.py")
    returns = function.returns is not None and ast.unparse(function.returns) == "int"
    named = re.search(r"^(_?main|_?print|exit_code|_?run|command)$", function.name)
    return bool(in_command and returns and named)


def _is_statement_of(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement is a call of a function of one of the names, with or without an underscore.

    ``append`` counts only for lists of a module: other lists own nothing.
    """
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    function = node.value.func
    name = _name(function).lstrip("_")
    if name == "append":
        owner = function.value if isinstance(function, ast.Attribute) else None
        return name in names and isinstance(owner, ast.Name) and owner.id.startswith("_")
    return name in names


def _raises(call: ast.Call) -> bool:
    """Whether a call makes an exception: its arguments are for the message."""
    return _name(call.func).endswith(("Error", "Warning"))


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts
