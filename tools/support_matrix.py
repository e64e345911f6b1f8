"""Write docs/support.md: which operations and graphs cuDNN has engines for, on each GPU.

python tools/support_matrix.py --plan     # plan everything with the installed cuDNN, store it, write the page
python tools/support_matrix.py            # write the page from benchmarks/results/support.json
python tools/support_matrix.py --check    # exit 1 if the page is out of date

--plan needs no GPU and takes minutes. The operations make the calls of `cudnn-ct selftest`, on shapes; the
graphs are the kinds of tests/graph_kinds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "support.md"
RESULTS = ROOT / "benchmarks" / "results" / "support.json"
NOT_ON_SHAPES = ("RNN", "ctc_loss", "dropout")
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tools"))

from performance_docs import put  # noqa: E402


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.plan:
        RESULTS.write_text(json.dumps(planned(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    written = page
    for name, block in blocks(found).items():
        written = put(written, name, block, str(PAGE))
    if options.check:
        return 0 if written == page else 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


# --- planning ----------------------------------------------------------------------------------------------


def planned(
    gpus: tuple[str, ...] = (), operations: tuple[str, ...] = (), kinds: int = 10**9
) -> dict[str, Any]:
    """Return which calls and graphs have engines on which GPU; ``operations`` and ``kinds`` select some."""
    import cudnn_ct as ct
    from cudnn_ct.errors import format_version
    from cudnn_doctor.read.gpus import capabilities

    gpus = gpus or tuple(capabilities())
    rows, legacy = _calls(operations)
    graphs = {f"kind {name}": graph for name, graph in list(_kinds())[:kinds]}
    supported = _supported([*(graph for *_, graph in rows), *graphs.values()], gpus)
    calls: dict[str, dict[str, dict[str, list[int]]]] = {}
    for place, (operation, dtype, _) in enumerate(rows):
        for gpu in gpus:
            cell = calls.setdefault(operation, {}).setdefault(dtype, {}).setdefault(gpu, [0, 0])
            cell[0] += supported[gpu][place]
            cell[1] += 1
    of_kinds = {
        name.removeprefix("kind "): {gpu: supported[gpu][len(rows) + place] for gpu in gpus}
        for place, name in enumerate(graphs)
    }
    return {
        "cudnn": format_version(ct.version()),
        "gpus": list(gpus),
        "operations": calls,
        "legacy": legacy,
        "kinds": of_kinds,
    }


def _calls(operations: tuple[str, ...]) -> tuple[list[tuple[str, str, Any]], list[str]]:
    """Return the graphs of the calls of the selftest, and the operations without any."""
    import cudnn_ct as ct
    from cudnn_ct.cli.selftest_cases import cases

    rows: list[tuple[str, str, Any]] = []
    names: dict[str, bool] = {}
    for case in cases():
        if operations and case.operation not in operations:
            continue
        with_graphs = 0
        if case.operation not in NOT_ON_SHAPES and case.variant != "algo none":
            inputs = case.inputs()
            with ct.record_plans(shapes_only=True) as recorded:
                operands = [_placed(value, case.layout) for value in inputs.operands]
                keywords = {name: _placed(value, case.layout) for name, value in inputs.keywords.items()}
                getattr(ct, case.operation)(*operands, **keywords, **inputs.device_keywords)
            rows += [(case.operation, case.dtype, one) for one in recorded.requests.values()]
            with_graphs = len(recorded)
        names[case.operation] = names.get(case.operation, False) or with_graphs > 0
    return rows, sorted(name for name, found in names.items() if not found)


def _placed(value: Any, layout: Any) -> Any:
    import numpy as np

    import cudnn_ct as ct

    if not isinstance(value, np.ndarray):
        return value
    return ct.asarray(value, layout=layout if 3 <= value.ndim <= 5 else None)


def _kinds() -> Iterator[tuple[str, Any]]:
    from cudnn_ct.graph.recording import PlanRequest
    from tests.graph_kinds import KINDS

    for name, make in KINDS.items():
        yield name, PlanRequest(make())


def _supported(requests: list[Any], gpus: tuple[str, ...]) -> dict[str, list[bool]]:
    from cudnn_ct.cli.program import supported
    from cudnn_ct.graph.recording import RecordedPlans

    recorded = RecordedPlans()
    recorded.requests = {(str(place),): request for place, request in enumerate(requests)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graphs.json"
        recorded.save(file)
        reports = supported(file, gpus)
    return {report["gpu"]: [bool(row["engines"]) for row in report["graphs"]] for report in reports}


# --- the page ----------------------------------------------------------------------------------------------


def blocks(found: dict[str, Any]) -> dict[str, str]:
    """Return the generated parts of the page."""
    from cudnn_ct.graph.gpus import description_of, is_derived

    gpus = found["gpus"]
    heads = [f"{gpu}{'*' if is_derived(gpu) else ''}" for gpu in gpus]
    lines = ["| GPU | name | compute capability | description |", "|---|---|---|---|"]
    for gpu in gpus:
        facts = description_of(gpu)
        how = "derived from public sources" if is_derived(gpu) else "recorded by cuDNN 9.19"
        lines.append(f"| `{gpu}` | {facts['deviceName']} | {facts['deviceVer'] / 100:.1f} | {how} |")
    return {
        "gpus": "\n".join(lines),
        "operations": "\n".join(_operation_rows(found, heads)),
        "kinds": "\n".join(_kind_rows(found, heads)),
    }


def _operation_rows(found: dict[str, Any], heads: list[str]) -> Iterator[str]:
    yield f"With cuDNN {found['cudnn']}:"
    yield ""
    yield f"| operation | dtype | {' | '.join(heads)} |"
    yield "|---|---|" + "---|" * len(heads)
    for operation, dtypes in found["operations"].items():
        for dtype, cells in dtypes.items():
            words = [_word(*cells[gpu]) for gpu in found["gpus"]]
            yield f"| `{operation}` | {dtype} | {' | '.join(words)} |"
    yield ""
    names = ", ".join(f"`{name}`" for name in found["legacy"])
    yield f"Not planned, because their calls have no graph: {names}."


def _word(count: int, total: int) -> str:
    return "yes" if count == total else "no" if not count else f"{count} of {total}"


def _kind_rows(found: dict[str, Any], heads: list[str]) -> Iterator[str]:
    everywhere = [name for name, cells in found["kinds"].items() if all(cells.values())]
    total = len(found["kinds"])
    yield f"With cuDNN {found['cudnn']}, {len(everywhere)} of {total} kinds have engines on all GPUs:"
    yield f"{', '.join(everywhere)}. The other kinds:" if everywhere else "The kinds:"
    yield ""
    yield f"| kind | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(heads)
    for name, cells in found["kinds"].items():
        if name not in everywhere:
            yield f"| {name} | {' | '.join('yes' if cells[gpu] else 'no' for gpu in found['gpus'])} |"


if __name__ == "__main__":
    sys.exit(main())
