"""Measure the first call of operations whose engines are compiled, without and with a stored plan.

    PYTHONPATH=. python benchmarks/plans.py                             # on a GPU
    PYTHONPATH=. python benchmarks/plans.py --jobs 7 --json plans.json  # cases in parallel, on many cores
    PYTHONPATH=. python benchmarks/plans.py --compile DIR --gpu h200    # anywhere: only writes plans to DIR
    PYTHONPATH=. python benchmarks/plans.py --plans DIR                 # on the GPU: imports these plans

Each time is one call in a new process, in milliseconds, from the call to the end of its kernels; another
call has created the handle. ``compiled`` has no cache, ``stored`` the cache of an earlier process.
``imported`` has a file that `cudnn-ct compile` made without the GPU, from its description; ``verified`` is
the same with ``verify=True``. ``offline`` is the time of that command. ``error`` is the largest difference
between the results of the imported and the compiled plan, relative to the largest element. The fastest of
``--rounds`` processes counts. Rows that are measured at once share the GPU and the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[1]
SEED = 7
COLUMNS = ("compiled", "stored", "imported", "verified", "offline")

# Each case: the shapes and dtypes of its operands, and the call. Rows of functions that a version lacks are
# left out.
CASES: dict[str, tuple[str, list[tuple[tuple[int, ...], str]], Callable[..., Any]]] = {
    "relu of 2**24 elements": (
        "activation", [((64, 256, 32, 32), "float16")], lambda x: ct.activation(x)),
    "gradient of relu of 2**24 elements": (
        "activation_backward", [((64, 256, 32, 32), "float16")] * 3,
        lambda dy, x, y: ct.activation_backward(dy, x, y)),
    "norm of rows, 2**24 elements": (
        "reduce", [((4096, 4096), "float16")], lambda x: ct.reduce(x, op="norm2", axis=1)),
    "mean of columns, 2**24 elements": (
        "reduce", [((4096, 4096), "float16")], lambda x: ct.reduce(x, op="norm1", axis=0)),
    "matmul + bias + gelu": (
        "matmul", [((2048, 1024), "bfloat16"), ((1024, 2048), "bfloat16"), ((2048,), "bfloat16")],
        lambda a, b, c: ct.matmul(a, b, bias=c, activation="gelu")),  # type: ignore[attr-defined, unused-ignore]
    "layer norm": (
        "layer_norm", [((4096, 1024), "bfloat16"), ((1024,), "bfloat16"), ((1024,), "bfloat16")],
        lambda x, w, b: ct.layer_norm(x, w, b)),  # type: ignore[attr-defined, unused-ignore]
    "attention": (
        "attention", [((2, 8, 512, 64), "bfloat16")] * 3,
        lambda q, k, v: ct.attention(q, k, v)),  # type: ignore[attr-defined, unused-ignore]
}  # fmt: skip


def cases() -> list[str]:
    """Return the names of the cases whose function exists."""
    return [name for name, (function, _, _) in CASES.items() if hasattr(ct, function)]


def program(name: str) -> Any:
    """Make the call of a case; return its result, or the first of them."""
    _, specs, call = CASES[name]
    rng = np.random.default_rng(SEED)
    arrays = [
        ct.asarray(
            rng.standard_normal(shape, np.float32),
            dtype,
            layout="nhwc" if len(shape) == 4 and name != "attention" else None,
        )
        for shape, dtype in specs
    ]
    if type(arrays[0]) is ct.DeviceArray:  # not on shapes
        ct.synchronize()
    start = time.perf_counter()
    result = call(*arrays)
    first = result[0] if isinstance(result, tuple) else result
    return first, start


def child(name: str, file: str, verify: bool, output: str) -> None:
    """Time the first call of a case in this process, and write its time and its result."""
    ct.pool(ct.zeros((1, 1, 2, 2)), window=2)  # creates the handle
    imported = ct.import_plans(file, verify=verify) if file else 0
    first, start = program(name)
    ct.synchronize()
    seconds = time.perf_counter() - start
    np.save(output, first.astype("float32").numpy())
    print(json.dumps({"ms": seconds * 1e3, "imported": imported}))


def python(*arguments: object, **environ: str) -> str:
    """Run Python in a child process, and return its standard output."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode or "ignored" in done.stderr:
        raise RuntimeError(done.stderr[-2000:].strip() or f"exit code {done.returncode}")
    return done.stdout


def measured(
    name: str, folder: Path, cache: str, file: Path | str = "", *, verify: bool = False
) -> tuple[float, Any]:
    """Return the milliseconds of the first call in a new process, and its result."""
    output = folder / "result.npy"
    command = [__file__, "--child", name, "--file", file, "--output", output]
    environ = {"CUDNN_CT_ALGO_CACHE": cache, "CUDNN_CT_PLAN_CACHE": "1"}
    found = json.loads(python(*command, *(["--verify"] if verify else []), **environ).splitlines()[-1])
    if file and not found["imported"]:
        raise RuntimeError(f"{file} has no plan for this GPU")
    return float(found["ms"]), np.load(output)


def file_of(name: str) -> str:
    """Return the name of the file with the plans of a case."""
    return re.sub("[^a-z0-9]+", "-", name) + ".plans"


def compile_case(name: str, gpu: str | Path, folder: Path) -> float:
    """Write the plans of a case for a GPU to a folder; return the milliseconds."""
    script = folder / f"{file_of(name)}.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from benchmarks.plans import program\nprogram({name!r})\n"
    )
    start = time.perf_counter()
    python("-m", "cudnn_ct", "compile", script, "--gpu", gpu, "-o", folder / file_of(name))
    milliseconds = (time.perf_counter() - start) * 1e3
    script.unlink()
    return milliseconds


def row(name: str, folder: Path, plans: Path, description: Path | None, rounds: int) -> dict[str, Any]:
    """Measure one case with its file in the folder ``plans``, which is compiled if a description is given."""
    store, file = str(folder / "store"), plans / file_of(name)
    compiled = [measured(name, folder, "off") for _ in range(rounds)]
    expected = compiled[0][1]
    measured(name, folder, store)
    stored = [measured(name, folder, store)[0] for _ in range(rounds)]
    offline = compile_case(name, description, plans) if description else None
    imported = [measured(name, folder, "off", file) for _ in range(rounds)]
    error = max(float(np.max(np.abs(one - expected)) / np.max(np.abs(expected))) for _, one in imported)
    return {
        "case": name,
        "compiled": min(ms for ms, _ in compiled),
        "stored": min(stored),
        "imported": min(ms for ms, _ in imported),
        "verified": measured(name, folder, "off", file, verify=True)[0],
        "offline": offline,
        "bytes": file.stat().st_size,
        "error": error,
    }


def measure(options: argparse.Namespace) -> int:
    """Measure all cases, print and write each row as soon as it is measured; return how many failed."""
    rows: list[dict[str, Any]] = []
    failed = 0
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        plans, description = Path(options.plans or temporary), None
        if not options.plans:
            description = Path(temporary) / "gpu.json"
            python("-m", "cudnn_ct", "device", "--export", description)
        print(f"{'first call, ms':36}" + "".join(f"{name:>10}" for name in COLUMNS) + "     bytes   error")
        futures = {}
        for name in cases():
            folder = Path(temporary) / file_of(name).removesuffix(".plans")
            folder.mkdir()
            futures[pool.submit(row, name, folder, plans, description, options.rounds)] = name
        for future in as_completed(futures):
            try:
                found = future.result()
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{futures[future]:36}{str(error).splitlines()[-1]}", flush=True)
                continue
            rows.append(found)
            numbers = (found[name] for name in COLUMNS)
            times = "".join(f"{'-':>10}" if ms is None else f"{ms:10.1f}" for ms in numbers)
            print(f"{found['case']:36}{times}{found['bytes']:10,}{found['error']:8.1g}", flush=True)
            if options.json:
                report = {"schema": 2, "cudnn": str(ct.version()), "jobs": options.jobs, "rows": rows}
                Path(options.json).write_text(json.dumps(report, indent=1))
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--jobs", type=int, default=1, help="cases that are measured at once (default: 1)")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each time (default: 2)")
    parser.add_argument("--plans", metavar="DIR", help="import the files that --compile wrote to DIR")
    parser.add_argument("--compile", metavar="DIR", help="compile the plans of --gpu to DIR, without a GPU")
    parser.add_argument("--gpu", default="h200", help="a GPU of `cudnn-ct compile` (default: h200)")
    for name in ("--child", "--file", "--output"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--verify", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.file, options.verify, options.output)
    elif options.compile:
        folder = Path(options.compile)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            names = cases()
            for name, ms in zip(
                names, pool.map(lambda one: compile_case(one, options.gpu, folder), names), strict=True
            ):
                print(f"{ms:8.0f} ms  {folder / file_of(name)}", flush=True)
    else:
        sys.exit(min(measure(options), 1))


if __name__ == "__main__":
    main()
