"""Containers that can grow while a process runs are listed in docs/reliability.md, with their bounds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudnn_ct

PACKAGE = Path(cudnn_ct.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

if not PAGE.is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)

# Commands, whose processes end; the reference in NumPy; generated tables.
LEFT_OUT = ("cli", "reference", "_bindings")
CACHES = {"cache", "lru_cache", "cached_property"}
CONTAINERS = {
    "dict", "list", "set", "deque", "defaultdict", "OrderedDict", "BoundedDict", "CallCache", "local",
    "Contexts", "ContextVar", "WeakSet", "WeakValueDictionary", "WeakKeyDictionary",
}  # fmt: skip
# Filled while their owner is created or defined, or with an entry per implementation or measurement.
MADE_WITH_THEIR_OWNER = {
    "cudnn_doctor.read.installation.Installation.version",
    *(f"ops._formulas.Formulas.{name}" for name in ("_places", "_steps", "_temporaries")),
    "autotune.candidates.CandidateSet._substitutes",
    "graph.plan.BackendDescriptor._depends_on",
    "graph.native._NativeTensors._tensors",
    "ops.attention.graph.NodeBuilder.nodes",
    "ops.attention.graph._Nodes.operands",
    "plans.program.CallPlan._places",
    "ops.rnn.gradients.RNNReserve.arrays",
    "ops.graph.tensors.GraphTensors._marked",
    "ops.graph.tensors.GraphTensors._names",
    "ops.graph.builder.GraphBuilder._nodes",
    "ops.graph.tensors.GraphTensors._states",
    "ops._implementations.FirstSupported._rejections",
    "autotune.benchmark._Pruner._best",
    "autotune.benchmark._Samples.colds",
    "autotune.benchmark._Samples.loops",
}


def name_of(function: ast.expr) -> str:
    return getattr(function, "id", getattr(function, "attr", ""))


def is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List):
        return ast.unparse(value) in ("{}", "[]")
    if not isinstance(value, ast.Call):
        return False
    made = value.func.func if isinstance(value.func, ast.Call) else value.func  # lru_cache(4096)(function)
    return name_of(made) in CONTAINERS | CACHES


def growing(tree: ast.AST, at: str, owner: str = "") -> Iterator[str]:
    """Yield the functions with a cache, and the containers of a module and of its objects."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from growing(node, f"{at}.{node.name}", f"{at}.{node.name}")
        elif isinstance(node, ast.FunctionDef):
            decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
            if CACHES & {name_of(one) for one in decorators}:
                yield f"{at}.{node.name}"
            for inner in ast.walk(node):
                for target in assigned(inner):
                    if owner and isinstance(target, ast.Attribute) and name_of(target.value) == "self":
                        yield f"{owner}.{target.attr}"
        else:
            for target in assigned(node):
                if isinstance(target, ast.Name):
                    yield f"{at}.{target.id}"


def assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.AnnAssign) and is_container(node.value):
        return node.targets if isinstance(node, ast.Assign) else [node.target]
    return []


def kept() -> set[str]:
    found: set[str] = set()
    # Of the doctor, only the readers are used by the loader.
    others = [PACKAGE.parent / name for name in ("cudnn_ct_dnn", "cudnn_doctor/read")]
    for path in sorted(path for folder in (PACKAGE, *others) for path in folder.rglob("*.py")):
        root = PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in LEFT_OUT:
            found |= set(growing(ast.parse(path.read_text(encoding="utf-8")), ".".join(parts)))
    return found


def rows() -> dict[str, str]:
    """Return the table of the page: names, and their bounds in words."""
    section = PAGE.read_text(encoding="utf-8").partition("### What is remembered")[2].partition("\n#")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", section, re.MULTILINE))


def test_reliability_page_lists_every_cache() -> None:
    assert sorted(kept() - MADE_WITH_THEIR_OWNER - set(rows())) == []


def test_reliability_page_lists_only_existing_caches() -> None:
    assert sorted(set(rows()) - kept()) == []
    assert sorted(MADE_WITH_THEIR_OWNER - kept()) == []
