"""The levels of docs/architecture.md, compared with the imports of the sources."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import cudnn_ct

PACKAGE = Path(cudnn_ct.__file__).parent
DOCTOR = "cudnn_doctor"  # the package next to it, which counts as one part
READERS = (DOCTOR, f"{DOCTOR}.read")  # its version and its readers: every level may import them

# A module imports from the lines above, or from names before it in its line. Packages count as one name.
LEVELS = (
    (
        *(
            "_bindings",
            "_algorithm_names",
            "errors",
            "_hints",
            "dtypes",
            "typing",
        ),
        *("_caches", "_config", "_handle", "shapes", "gradients"),
    ),
    (*("_dlopen", "_lib", "_cublaslt", "facts", "_cache_files"),),
    (
        *("cuda", "array", "array_shapes", "array_creation", "raw_memory", "descriptors"),
        *("context", "availability", "_raw"),
    ),
    ("plans", "graph", "autotune", "legal", "certify", "algo_cache"),
    ("ops", "captures"),
    (
        "__init__",
        "_info",
        "cli",
        "dnn",
        "cupy",
        "jax",
        "explanations",
        "testing",
        "torch",
        "doctor",
        "__main__",
    ),
)
ORDER = {name: place for place, name in enumerate(name for level in LEVELS for name in level)}

# The two libraries next to the levels, and the parts of the package that each may import.
BESIDE = {
    "reference": {"_hints", "dtypes", "shapes", "errors", "typing"},
    DOCTOR: set[str](),
}


class Import(NamedTuple):
    """An import: the importing module, and the imported one, which begins with a dot inside the package.

    Lazy imports run in functions, or only for type checkers.
    """

    by: str
    of: str
    lazy: bool = False
    line: int = 0


def module_names() -> dict[str, Path]:
    """Return the dotted names below the package with their files; packages are named without ``__init__``.

    The names of the doctor begin with that of its package.
    """
    found = {}
    for root, prefix in ((PACKAGE, ""), (PACKAGE.with_name(DOCTOR), f"{DOCTOR}.")):
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[f"{prefix}{name}".removesuffix(".__init__")] = path
    return found


MODULES = module_names()


def imports_of(name: str, path: Path) -> Iterator[Import]:
    full = "cudnn_ct" if name == "__init__" else name if part(name) == DOCTOR else f"cudnn_ct.{name}"
    package = full if path.name == "__init__.py" else full.rpartition(".")[0]
    for node, lazy in walk(ast.parse(path.read_text(encoding="utf-8")), False):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            found = [one if one.removeprefix("cudnn_ct.") in MODULES else base for one in inner]
        else:
            continue
        for one in dict.fromkeys(found):
            inside = part(one) in ("cudnn_ct", DOCTOR)
            of = f".{one.removeprefix('cudnn_ct').removeprefix('.') or '__init__'}" if inside else one
            yield Import(name, of, lazy, node.lineno)


def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all statements below, and whether each runs later than the import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # has no statements, and is most of a tree
            continue
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield child, lazy
        yield from walk(child, lazy or in_function or for_types)


@cache
def imports() -> list[Import]:
    return [found for name, path in MODULES.items() for found in imports_of(name, path)]


def outside() -> list[Import]:
    return [found for found in imports() if not found.of.startswith(".")]


def part(name: str) -> str:
    return name.removeprefix(".").partition(".")[0]


def allowed(found: Import) -> bool:
    by, of = part(found.by), part(found.of)
    if found.by.startswith(f"{DOCTOR}.read"):
        return not found.of.startswith(".") or found.of.startswith(f".{DOCTOR}.read")
    if not found.of.startswith(".") or by == of or found.of[1:].startswith(READERS[1]):
        return True
    if of == DOCTOR and by != "reference":
        # `_lib` needs the doctor for the notes of an exception, and for `available`.
        return found.of[1:] == DOCTOR or by in LEVELS[-1] or (by == "_lib" and found.lazy)
    if by in BESIDE:
        return of in BESIDE[by]
    if by in LEVELS[-1]:  # the uppermost level may import everything when it is used
        return found.lazy or of in BESIDE or ORDER[of] < ORDER[by]
    return of in ORDER and ORDER[of] < ORDER[by]


def test_every_module_belongs_to_a_level() -> None:
    assert {part(name) for name in MODULES} <= {*ORDER, *BESIDE}


def test_modules_import_from_lower_levels_or_from_their_left() -> None:
    assert [found for found in imports() if not allowed(found)] == []


def test_modules_import_in_no_circle() -> None:
    """Imports in functions and those for types count, too."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in imports():
        if found.of.startswith("."):
            graph[found.by].add(found.of[1:])
    TopologicalSorter(graph).prepare()


def test_modules_have_at_most_400_lines() -> None:
    generated = ("_bindings", "reference._signatures")
    written = {name: path for name, path in MODULES.items() if not name.startswith(generated)}
    assert [name for name, path in written.items() if len(path.read_text("utf-8").splitlines()) > 400] == []


def test_libraries_beside_the_levels_need_only_numpy_and_the_standard_library() -> None:
    known = sys.stdlib_module_names
    used = {(part(found.by), part(found.of)) for found in outside() if part(found.by) in BESIDE}
    assert {(by, of) for by, of in used if of not in known} <= {("reference", "numpy")}


def test_cuda_libraries_are_imported_only_by_the_cuda_folder() -> None:
    importers = {found.by for found in imports() if found.of.startswith(("cuda.core", "cuda.bindings"))}
    assert importers <= {"cuda.driver"}
    users = {found.by for found in imports() if found.of == ".cuda.driver"}
    names = ("backlog", "event", "graph", "interop", "lifetime", "memory", "movable", "replay", "stream")
    assert users <= {f"cuda.{name}" for name in names}


def test_package_imports_no_array_library_but_numpy() -> None:
    others = {"torch", "cupy", "jax", "numba", "tensorflow"}
    found = [one for one in outside() if part(one.of) in others]
    assert [one for one in found if part(one.by) != part(one.of)] == []  # cudnn_ct.torch imports torch


def test_libraries_are_opened_in_one_place() -> None:
    openers = {"CDLL", "PyDLL", "cdll", "pydll", "LoadLibrary"}
    found = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if openers & {getattr(node, "id", ""), getattr(node, "attr", ""), *aliases(node)}
    }
    assert found == {"_dlopen", "cudnn_doctor.probe"}  # the latter runs in a child process


def aliases(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def test_the_architecture_page_names_the_modules_that_others_use() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"\w+", page.split("```")[1]))
    folders = ("cuda.", "plans.", "graph.", "captures.", "ops._", f"{DOCTOR}.read.")
    shared = [name for name in MODULES if "." not in name or name.startswith(folders)]
    assert {name.rpartition(".")[2] for name in shared} - named == set()
