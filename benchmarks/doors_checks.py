"""Checks that `doors.py` runs: gradients and vmap of all rows, devices, sigpy's convolutions, raw memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from doors_stacks import Row, about, reason, turns

__all__ = ["CHECKS", "pointer"]

ROOT = Path(__file__).resolve().parents[1]
SIGPY = ROOT / "tests" / "gpu" / "test_sigpy.py"
NEAR = {"float64": 1e-6, "float32": 2e-3, "float16": 0.03}


def rows(*, shard: int, shards: int, **_: Any) -> Iterator[Row]:
    """Yield a row for each case of an operation: whether gradients, vmap and shard_map are right."""
    import jax
    import numpy as np

    import cudnn_ct as ct
    from tests.jax_cases import CASES, check_gradients, mapped

    jax.config.update("jax_enable_x64", True)
    ct.config.allow_tf32 = False
    yield about()

    def check_mapped(case: Any, split: bool = False) -> None:
        found, expected = (np.asarray(one, np.float64) for one in mapped(case, split))
        far = np.abs(found - expected).max() / np.abs(expected).max()
        assert far < NEAR[case.dtype], f"the largest difference is {far:.3g}"

    for case in CASES[shard::shards]:
        checks = {
            "bad_gradient": check_gradients,
            "bad_vmap": check_mapped,
            "bad_split": partial(check_mapped, split=True),
        }
        row: Row = {"row": str(case), **dict.fromkeys(checks, 0)}
        for field, check in checks.items():
            try:
                check(case)
            except Exception as error:
                row[field] = 1
                row["error"] = f"{row.get('error', '')} {field}: {reason(error)}".strip()
        yield row


def devices(**_: Any) -> Iterator[Row]:
    """Yield the difference of a function that is split over all devices from the same on one."""
    from tests.jax_cases import SHARDED

    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, check=False)
    if done.returncode:
        yield {"row": "shard_map", "error": done.stderr[-300:]}
        return
    found = json.loads(done.stdout.splitlines()[-1])
    yield {"row": f"shard_map over {found['devices']} devices", "far": max(found["far"])}


def sigpy(**_: Any) -> Iterator[Row]:
    """Yield the outcomes of the tests of sigpy's convolutions."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", str(SIGPY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", last)
    count = dict.fromkeys(("passed", "failed", "skipped", "errors"), 0)
    count |= {word.replace("error", "errors"): int(number) for number, word in found}
    row: Row = {"row": "sigpy", **count}  # "error" would be a row that failed
    row["bad"] = count["failed"] + count["errors"] if count["passed"] else None
    if row["bad"] or not row["passed"]:
        row["error"] = done.stdout[-600:] + done.stderr[-300:]
    yield row


def pointer(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the time of ``ct.from_pointer``."""
    try:
        import cudnn_ct as ct

        memory = ct.zeros((2, 3, 8, 8))
        address, shape = memory.pointer, memory.shape
        call = lambda: ct.from_pointer(address, shape, "float32", owner=memory)  # noqa: E731
        call()
        yield {"row": "ct.from_pointer", "ours_us": turns(call, rounds, 2000)}
    except Exception as error:
        yield {"row": "ct.from_pointer", "error": reason(error)}


CHECKS: dict[str, Callable[..., Iterator[Row]]] = {"rows": rows, "devices": devices, "sigpy": sigpy}
