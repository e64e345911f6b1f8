"""Measure whether a plan computes the same bits in each run.

Engines that add by atomic operations do not always say so. A plan is run on random operands of its own: sums
of equal or of small whole numbers have the same bits in any order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from ..autotune.benchmark import ScratchResults
from ..context import Context
from ..cuda import memory as memories
from ..dtypes import GRAPH_DTYPES
from ..errors import NotInitializedError
from ..plans.base import Plan, tensors_of
from ..shapes.specs import TensorSpec
from .certificates import Certificate, certificate_key, find, keep

RUNS = 20
# In half precision, the rounding of a result hides most differences of its sum: about one element of this
# number has other bits in another run. More runs replace elements, as far as they take this time.
HIDDEN = {"float16": 20_000, "bfloat16": 160_000, "float8_e4m3": 160_000, "float8_e5m2": 160_000}
MAX_RUNS = 2_000
BEFORE = 4  # at most so many runs follow one another without waiting
SECONDS = 0.5
SEED = 20_011
PERIOD = 1_000_003  # elements after which random numbers repeat: a prime, so that rows differ
INTEGERS = ("int32", "int64", "bool")  # lengths, offsets or indices: random ones might be out of bounds


def why_varying(problem: Any, engine: str, plan: Plan, context: Context) -> str:
    """Return why a plan is not deterministic for a problem; empty if it is, or cannot be measured.

    The certificate of this or an earlier process is used if one exists. Otherwise the plan is run 20 times,
    and the host waits for the results; NotInitializedError is raised if the stream is captured.
    """
    specs = list(getattr(problem, "in_order", tensors_of(problem).values()))
    results = len(problem.results)
    if any(spec.dtype in INTEGERS for spec in specs[: len(specs) - results]):
        return ""
    key = certificate_key(context, engine, f"bits of {type(problem).__name__} {problem!r}")
    if (known := find(key)) is None:
        if context.capturing:
            raise NotInitializedError(
                f"whether {engine} is deterministic is to be measured in a call that is captured: make the "
                "same call once before capturing it"
            )
        count, runs = _count_results(problem, specs, results, plan, context)
        verdict = "deterministic" if count == 1 else "varies"
        known = Certificate(verdict, f"{count} different results in {runs} runs")
        keep(key, known)
    return "" if known.verdict == "deterministic" else f"not deterministic: {known.finding}"


def _count_results(
    problem: Any, specs: Sequence[TensorSpec], results: int, plan: Plan, context: Context
) -> tuple[int, int]:
    """Run a plan on random operands until its results differ; return the number of results, and of runs."""
    stream = context.stream
    operands = [
        _random_operand(spec, seed, stream) for seed, spec in enumerate(specs[: -results or None], SEED)
    ]
    try:
        scratch = ScratchResults(problem, [*(start for _, start in operands), *[0] * results], stream)
        found, runs = set[bytes](), 0
        # So many runs should show a difference in one of the results.
        needed = max(HIDDEN.get(spec.dtype, 0) * 3 // max(spec.size, 1) for spec in problem.results)
        wanted, end = max(RUNS, min(needed, MAX_RUNS)), time.monotonic() + SECONDS
        while runs < RUNS or (len(found) == 1 and runs < wanted and time.monotonic() < end):
            # A kernel alone on the device may always take its blocks in one order: others run just before it.
            def run(times: int = 1 + runs % BEFORE) -> None:
                for _ in range(times):
                    plan.run(context, scratch.pointers, 1.0, 0.0)

            contents = scratch.computed_by(run)
            found.add(sha256(b"".join(content.tobytes() for content in contents)).digest())
            runs += 1
        return len(found), runs
    finally:
        context.drop_workspace()


def _random_operand(spec: TensorSpec, seed: int, stream: Any) -> tuple[Any, int]:
    """Return memory with random numbers for a tensor, and the address of its first element."""
    import numpy as np

    low, high = spec.extent
    dtype = GRAPH_DTYPES[spec.dtype].numpy
    numbers = np.random.default_rng(seed).standard_normal(min(high - low, PERIOD), np.float32)
    with np.errstate(all="ignore"):
        content = np.resize(numbers, high - low).astype(dtype)
    buffer = memories.allocate(max(content.nbytes, 1), stream, "a random operand")
    memories.copy_from_host(buffer.handle, content, stream)
    return buffer, buffer.handle - low * content.itemsize
