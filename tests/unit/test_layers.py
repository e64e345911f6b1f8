"""The picture of docs/architecture.md, held against the imports that are in the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cudnn_ct

PACKAGE = Path(cudnn_ct.__file__).parent

# A module imports from lower lines, or from its left on its own line. Names are of modules or of packages,
# whose inner order is theirs.
LEVELS = (
    ("_bindings", "errors", "dtypes", "typing", "_config", "_handle", "shapes"),
    ("_elf", "_files", "_find", "_libraries", "_installation", "_dlopen", "_lib", "_raw", "_info"),
    ("cuda", "array", "array_creation", "descriptors", "context"),
    ("plans", "graph", "autotune", "algo_cache"),
    ("ops",),
    ("__init__", "cli", "dnn", "testing", "__main__"),
)
ORDER = {name: place for place, name in enumerate(name for level in LEVELS for name in level)}
LEVEL = {name: number for number, level in enumerate(LEVELS) for name in level}
TOP = len(LEVELS) - 1

# Beside the levels, and what of the package each may know.
BESIDE = {
    "reference": {"dtypes", "shapes", "errors"},
    "doctor": {"errors", "_elf", "_files", "_find", "_libraries", "_installation"},
}
# Imported by `_lib` alone: reasons for exceptions and for `available`.
ADVISED, ADVISER = "_lib", "doctor"

OPENERS = {"CDLL", "PyDLL", "cdll", "pydll", "LoadLibrary"}


class Import(NamedTuple):
    """One import: by which module, of which (within the package if it begins with a dot), where."""

    by: str
    of: str
    line: int
    lazy: bool

    @property
    def part(self) -> str:
        """The first name of the importing module: its place on the map."""
        return self.by.split(".")[0]

    @property
    def inside(self) -> str | None:
        """The place on the map of the imported module; None outside the package."""
        return self.of[1:].split(".")[0] if self.of.startswith(".") else None

    def __str__(self) -> str:
        return f"{self.by} (line {self.line}) imports {self.of}"


def modules() -> dict[str, Path]:
    """Dotted names under the package, with their files; a package is named without ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imports_of(name: str, path: Path) -> Iterator[Import]:
    is_package = path.name == "__init__.py"
    inside = [] if name == "__init__" else name.split(".")
    here = inside if is_package else inside[:-1]
    for node, lazy in walk(ast.parse(path.read_text(encoding="utf-8")), False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, _relative(alias.name), node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [base])])
            elif base == "cudnn_ct" or base.startswith("cudnn_ct."):
                base = base.removeprefix("cudnn_ct").removeprefix(".")
            else:
                yield Import(name, base, node.lineno, lazy)
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                yield Import(name, f".{inner if inner in MODULES else base or '__init__'}", node.lineno, lazy)


def _relative(dotted: str) -> str:
    if dotted == "cudnn_ct":
        return ".__init__"
    return dotted.removeprefix("cudnn_ct") if dotted.startswith("cudnn_ct.") else dotted


def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below, and whether each runs later than the import: in a function, or for type checkers."""
    for child in ast.iter_child_nodes(node):
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield child, lazy
        yield from walk(child, lazy or in_function or for_types)


IMPORTS = [found for name, path in MODULES.items() for found in imports_of(name, path)]


def allowed(found: Import) -> bool:
    part, of = found.part, found.inside
    if of is None or of == part:
        return True
    if part in BESIDE:
        return of in BESIDE[part]
    if LEVEL[part] == TOP:  # what a person types may name everything once it is asked for
        return found.lazy or of in BESIDE or ORDER[of] < ORDER[part]
    if part == ADVISED and found.of == f".{ADVISER}":
        return found.lazy
    return of in ORDER and ORDER[of] < ORDER[part]


def test_every_module_is_on_the_map() -> None:
    assert {name.split(".")[0] for name in MODULES} <= {*ORDER, *BESIDE}


def test_modules_import_downwards_or_from_their_left() -> None:
    assert [str(found) for found in IMPORTS if not allowed(found)] == []


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (Import("array", ".cuda.stream", 1, False), True),
        (Import("cuda.stream", ".array", 1, False), False),
        (Import("cuda.stream", ".array", 1, True), False),
        (Import("shapes", "._lib", 1, True), False),
        (Import("graph.plan", ".ops.conv", 1, False), False),
        (Import("ops.conv", ".reference", 1, False), False),
        (Import("ops.conv", ".ops.pool", 1, False), True),
        (Import("ops.conv", ".__init__", 1, True), False),
        (Import("_lib", "._elf", 1, False), True),
        (Import("_lib", ".doctor.finding", 1, True), False),
        (Import("_lib", ".doctor", 1, False), False),
        (Import("_lib", ".doctor", 1, True), True),
        (Import("_info", ".doctor", 1, True), False),
        (Import("context", ".doctor", 1, True), False),
        (Import("_elf", ".doctor", 1, True), False),
        (Import("doctor.checks", "._installation", 1, False), True),
        (Import("doctor.checks", "._lib", 1, True), False),
        (Import("doctor.checks", ".shapes", 1, False), False),
        (Import("reference.conv", ".shapes", 1, False), True),
        (Import("reference.conv", ".array", 1, True), False),
        (Import("__init__", ".dnn", 1, True), True),
        (Import("__init__", ".dnn", 1, False), False),
        (Import("cli", ".reference", 1, False), True),
    ],
    ids=str,
)
def test_the_rule_itself(found: Import, good: bool) -> None:
    assert allowed(found) is good


def test_imports_are_all_seen(tmp_path: Path) -> None:
    path = tmp_path / "conv.py"
    path.write_text(
        "import numpy\nfrom .. import errors\nfrom ..cuda.stream import Stream\n"
        "def f():\n    import cudnn_ct\n    from cudnn_ct.doctor import checks\n    from . import missing\n"
    )
    seen = [(found.of, found.lazy) for found in imports_of("ops.conv", path)]
    assert seen == [
        ("numpy", False), (".errors", False), (".cuda.stream", False),
        (".__init__", True), (".doctor.checks", True), (".ops", True),
    ]  # fmt: skip


def test_beside_the_levels_only_numpy_and_the_standard_library() -> None:
    """The modules that the doctor shares with the loader are held to the doctor's rule."""
    for part in (*BESIDE, *BESIDE["doctor"]):
        others = {"numpy"} if part == "reference" else set()
        for found in IMPORTS:
            if found.part == part and found.inside is None:
                assert found.of.split(".")[0] in sys.stdlib_module_names | others, str(found)


def test_cuda_libraries_are_imported_only_by_the_cuda_folder() -> None:
    importers = {found.by for found in IMPORTS if found.of.startswith(("cuda.core", "cuda.bindings"))}
    assert importers <= {"cuda.driver"}
    users = {found.by for found in IMPORTS if found.of == ".cuda.driver"}
    assert users <= {"cuda.device", "cuda.stream", "cuda.event", "cuda.memory", "cuda.interop"}


def test_no_array_library_but_numpy_is_imported_by_name() -> None:
    others = {"torch", "cupy", "jax", "numba", "tensorflow"}
    assert [str(found) for found in IMPORTS if found.of.split(".")[0] in others] == []


def test_libraries_are_opened_in_one_place() -> None:
    openers = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if OPENERS & {getattr(node, "id", None), getattr(node, "attr", None), *_aliases(node)}
    }
    assert openers == {"_dlopen", "doctor.probe"}  # the latter runs in a child process


def _aliases(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
