"""Print measures of the package's structure, each with its limit.

python tools/structure.py           # print the table
python tools/structure.py --check   # exit 1 if a measure is worse than KEPT

LIMIT is what the redesign of docs/architecture.md aims at. KEPT is what has been reached: no change may make
it worse.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cudnn_ct"
DOCTOR = ROOT / "cudnn_doctor"  # part of the same wheel, and of the lines
sys.path.insert(0, str(ROOT))

DOORS = ("torch", "jax", "cupy")  # counted apart
# New operations are counted apart as well: KEPT is about the code that existed before them. These are the
# operations that only versions with libcudnn_ext have, with their rules, references and selftest. Modules
# that serve only new operations belong to them, until an older operation uses them. `_composed` finds those
# that are made of other operations.
NEW_OPERATIONS = (
    *("ops/causal_conv.py", "ops/fft_causal_conv.py", "ops/gnn/"),
    *("shapes/causal_conv.py", "shapes/gnn.py", "reference/causal_conv.py", "reference/gnn.py"),
    *("plans/stream_call.py", "cli/selftest_graphs.py"),
)
# Folders and modules whose subject are versions, engines and GPUs: kinds of nodes have the version that
# brought them, and the loader has the range of supported versions.
ABOUT_CUDNN = (
    "legal/",
    "graph/",
    "shapes/graph/",
    "cli/",
    "_bindings/",
    "read/installation.py",
    "read/versions.py",
)
NAMES = re.compile(
    r"(?<![\d.])9\.\d{1,2}(?:\.\d)?(?![\d.])|\bengine \d+|\b[ABHLTV]\d{2,3}\b|\bsm_?\d\d"
    r"|\b(?:Volta|Turing|Ampere|Ada|Hopper|Blackwell)\b"
)
EXAMPLE = re.compile(r"such as [^,;]*")


class Measure(NamedTuple):
    """A measure of the structure: smaller is better."""

    name: str
    limit: int
    kept: int
    value: Callable[[], int]


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="name what is counted")
    options = parser.parse_args()
    worse = []
    print(f"{'measure':58} {'now':>7} {'kept':>7} {'limit':>7}")
    for name, limit, kept, value in MEASURES:
        now = value()
        print(f"{name:58} {now:7,} {kept:7,} {limit:7,}")
        worse += [name] if now > kept else []
    if options.verbose:
        print(*(f"{name}: {', '.join(map(str, found))}" for name, found in _details()), sep="\n")
    if options.check and worse:
        print(f"worse than before: {', '.join(worse)}")
    return int(options.check and bool(worse))


def _details() -> Iterator[tuple[str, list[str]]]:
    yield "modules that name versions, engines or GPUs", sorted(_naming())
    yield "rows that no operation obeys", _disobeyed()
    yield "classes that wrap a plan", sorted(_classes(_wraps_a_plan))
    yield "candidate sources", sorted(_classes(_is_source))
    yield "largest circle of imports", sorted(_largest_circle())


# --- facts -------------------------------------------------------------------------------------------------


def _schemas() -> int:
    """Return the number of data files with rows about engines or versions."""
    count = 0
    for path in [*PACKAGE.rglob("*.json"), *PACKAGE.rglob("*.toml"), *DOCTOR.rglob("*.json")]:
        text = path.read_text(encoding="utf-8")
        count += path.suffix == ".toml" or bool(re.search(r'"(engines|effect)":', text))
    return count


def _naming() -> set[str]:
    """Return the modules whose code, not their docstrings, names a version, an engine or a GPU."""
    found = set()
    for path in (*PACKAGE.rglob("*.py"), *(DOCTOR / "read").rglob("*.py")):
        name = path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else DOCTOR).as_posix()
        if not name.startswith((*ABOUT_CUDNN, *DOORS)) and any(_named(ast.parse(path.read_text()))):
            found.add(name)
    return found


def _named(tree: ast.Module) -> Iterator[bool]:
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docs:
            if isinstance(node.value, str):
                yield bool(NAMES.search(EXAMPLE.sub("", node.value)))
            elif isinstance(node.value, int):
                yield 90_000 <= node.value < 100_000
        if isinstance(node, ast.Compare):
            text = ast.unparse(node)
            yield "capab" in text and bool(re.search(r"\([1-9]\d*, \d+\)", text))


def _disobeyed() -> list[str]:
    """Return the rows with a bad effect for which no engine or call is rejected, and no graph rewritten."""
    rows = json.loads((PACKAGE / "facts.json").read_text(encoding="utf-8"))["facts"]
    bad = ("wrong", "crash", "hang")
    return [row["name"] for row in rows if row.get("effect") in bad and row["kind"] in ("warn", "inform")]


# --- classes -----------------------------------------------------------------------------------------------


def _classes(condition: Callable[[ast.ClassDef], bool]) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE).as_posix()}:{node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and condition(node)
    ]


def _wraps_a_plan(node: ast.ClassDef) -> bool:
    """Return whether a class is a plan that runs another one, as its ``run`` shows."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "run":
            if [one.arg for one in method.args.args[1:3]] != ["context", "pointers"]:
                continue
            calls = (one.func for one in ast.walk(method) if isinstance(one, ast.Call))
            if any(isinstance(one, ast.Attribute) and one.attr == "run" for one in calls):
                return True
    return False


def _is_source(node: ast.ClassDef) -> bool:
    names = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return node.name.endswith("Source") and bool(names & SOURCES)


SOURCES = {"CandidateSource", "GraphSource", "LegacySource", "ReducedSource"}

# --- imports, lines and calls ------------------------------------------------------------------------------


def _largest_circle() -> set[str]:
    """Return the modules of the largest circle of imports, lazy ones included."""
    from tests.unit.test_layers import MODULES, imports_of

    edges = {
        name: {one.of[1:] for one in imports_of(name, path) if one.of.startswith(".")} & set(MODULES)
        for name, path in MODULES.items()
    }
    reach = {name: _reachable(name, edges) for name in edges}
    circles = [{other for other in reach[name] if name in reach[other]} for name in edges]
    return max(circles, key=len)


def _reachable(name: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        new = edges[todo.pop()] - found
        found |= new
        todo += new
    return found


def _composed() -> list[str]:
    """Return the modules of composed operations, and their rules and references of the same name."""
    texts = {path: path.read_text(encoding="utf-8") for path in (PACKAGE / "ops").rglob("*.py")}
    found = [path for path, text in texts.items() if re.search(r"\bof_calls\b", text)]
    beside = [f"{folder}/{path.name}" for folder in ("shapes", "reference") for path in found]
    return [*(path.relative_to(PACKAGE).as_posix() for path in found), *beside]


def _lines() -> int:
    """Return the lines written by hand, less the doors to other libraries and the new operations."""
    # The first two are generated, the third has a row for each operation.
    apart = ("_bindings/", "reference/_signatures.py", "__init__.py", *DOORS, *NEW_OPERATIONS, *_composed())
    own = [
        path for path in PACKAGE.rglob("*.py") if not path.relative_to(PACKAGE).as_posix().startswith(apart)
    ]
    others = [path for folder in (ROOT / "cudnn_ct_dnn", DOCTOR) for path in folder.rglob("*.py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (*own, *others))


def _calls() -> dict[str, int]:
    """Return the Python calls of a first and of a warm convolution on the fakes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


_PROGRAM = """
import gc, json, sys
gc.disable()  # its callbacks are calls
import cudnn_ct as ct
from tests.fake.installed import cudnn_installed, host_installed
PACKAGES = ("cudnn_ct", "cudnn_doctor")
count = 0
def counted(frame, event, argument):
    global count
    count += event == "call" and any(f"/{name}/" in frame.f_code.co_filename for name in PACKAGES)
def calls_of(function):
    global count
    count = 0
    sys.setprofile(counted)
    function()
    sys.setprofile(None)
    return count
installed = host_installed()  # memory of the fake device outlives its use here
host = installed.__enter__()
fakes = cudnn_installed(host)
if fakes.__enter__():
    ct.conv(ct.zeros((1, 2, 5, 5)), ct.zeros((2, 2, 3, 3)))  # modules are loaded, and the context made
    x, w, y = ct.zeros((1, 1, 5, 5)), ct.zeros((1, 1, 3, 3)), ct.zeros((1, 1, 3, 3))
    first = calls_of(lambda: ct.conv(x, w, out=y))
    for _ in range(4):
        ct.conv(x, w, out=y)
    warm = calls_of(lambda: ct.conv(x, w, out=y))
print(json.dumps({"first": first, "warm": warm}))
"""


MEASURES: tuple[Measure, ...] = (
    Measure("files of facts", 1, 1, _schemas),
    Measure("modules that name a version, an engine or a GPU", 0, 0, lambda: len(_naming())),
    Measure("rows that no operation obeys", 0, 0, lambda: len(_disobeyed())),
    Measure("classes that wrap a plan", 1, 1, lambda: len(_classes(_wraps_a_plan))),
    Measure("candidate sources", 2, 2, lambda: len(_classes(_is_source))),
    Measure("files in the largest circle of imports", 0, 0, lambda: len(_largest_circle())),
    Measure("Python calls of a first conv on the fakes", 1_000, 982, lambda: _calls()["first"]),
    Measure("Python calls of a warm conv", 16, 14, lambda: _calls()["warm"]),
    Measure("lines by hand, less doors and new operations", 48_500, 56_239, _lines),
)


if __name__ == "__main__":
    sys.exit(main())
