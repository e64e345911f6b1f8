"""Measure the first call of operations whose engines are compiled, without and with a stored plan.

    PYTHONPATH=. python benchmarks/plans.py
    PYTHONPATH=. python benchmarks/plans.py --json plans.json

Needs a GPU. Each time is one call in a new process, in milliseconds, from the call to the end of its kernels;
another call has created the handle. ``compiled`` has no cache, ``stored`` the cache of an earlier process.
``imported`` has a file that `cudnn-ct compile` made without the GPU, from its description; ``verified`` is
the same with ``verify=True``. ``error`` is the largest difference between the results of the imported and
the compiled plan, relative to the largest element. Of three processes, the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
SEED = 7

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
        "layer_norm", [((4096, 1024), "bfloat16"), ((1024,), "float32"), ((1024,), "float32")],
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
        ct.asarray(rng.standard_normal(shape, np.float32), dtype, layout="nhwc" if len(shape) == 4 else None)
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


def measured(name: str, folder: Path, cache: str, file: str = "", verify: bool = False) -> tuple[float, Any]:
    """Return the milliseconds of the first call in a new process, and its result."""
    output = folder / "result.npy"
    environ = {
        **os.environ,
        "CUDNN_CT_ALGO_CACHE": cache,
        "CUDNN_CT_PLAN_CACHE": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, "--file", file, "--output", str(output)]
        + (["--verify"] if verify else []),
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode or "ignored" in done.stderr:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["ms"]), np.load(output)


def row(name: str, folder: Path, description: Path) -> dict[str, Any]:
    """Measure one case."""
    store, plans, script = folder / "store", folder / "plans.file", folder / "program.py"
    compiled, expected = min(
        (measured(name, folder, "off") for _ in range(ROUNDS)), key=lambda one: float(one[0])
    )
    measured(name, folder, str(store))
    stored = min(measured(name, folder, str(store))[0] for _ in range(ROUNDS))
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from benchmarks.plans import program\nprogram({name!r})\n"
    )
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "cudnn_ct", "compile", script, "--gpu", description, "-o", plans],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    offline = time.perf_counter() - start
    found = [measured(name, folder, "off", str(plans)) for _ in range(ROUNDS)]
    verified = measured(name, folder, "off", str(plans), verify=True)[0]
    error = max(float(np.max(np.abs(one - expected)) / np.max(np.abs(expected))) for _, one in found)
    return {
        "case": name,
        "compiled": compiled,
        "stored": stored,
        "imported": min(ms for ms, _ in found),
        "verified": verified,
        "compile_offline": offline * 1e3,
        "bytes": plans.stat().st_size,
        "error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", help="also write the rows to this file")
    for name in ("--child", "--file", "--output"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--verify", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.file, options.verify, options.output)
        return
    rows = []
    columns = ("compiled", "stored", "imported", "verified", "compile_offline")
    print(f"{'first call, ms':36}" + "".join(f"{name:>16}" for name in columns) + "     bytes   error")
    with tempfile.TemporaryDirectory() as temporary:
        description = Path(temporary) / "gpu.json"
        export = [sys.executable, "-m", "cudnn_ct", "device", "--export", str(description)]
        subprocess.run(export, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for number, name in enumerate(cases()):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            rows.append(row(name, folder, description))
            times = "".join(f"{rows[-1][column]:16.1f}" for column in columns)
            print(f"{name:36}{times}{rows[-1]['bytes']:10,}{rows[-1]['error']:8.1g}", flush=True)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"schema": 1, "cudnn": str(ct.version()), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
