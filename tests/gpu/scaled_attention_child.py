"""Checks of attention of float8 on a GPU, for a process of its own: a kernel that hangs ends only that.

python -m tests.gpu.scaled_attention_child plain causal ...

It prints a line when a check begins, and one when it ends: "ok", or "wrong" with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct import testing
from cudnn_ct.cuda import stream as streams
from cudnn_ct.graph.candidates import engine_candidates, engine_plan
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.ops.attention.scaled import SOURCE
from tests.graph_kinds.float8_attention import float8_attention
from tests.scaled_attention_cases import CASES, check, check_values, on_device, operands_of

__all__ = ["CHECKS"]


def exact(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float | None, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return attention in float64 and its statistics, computed by PyTorch."""
    import torch

    of_q, of_k, of_v = (torch.from_numpy(one).cuda() for one in (q, k, v))
    of_k, of_v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (of_k, of_v))
    scores = (q.shape[3] ** -0.5 if scale is None else scale) * (of_q @ of_k.transpose(2, 3))
    if causal:
        future = torch.ones(scores.shape[2:], dtype=torch.bool, device="cuda").triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    y = torch.softmax(scores, -1) @ of_v
    return y.cpu().numpy(), torch.logsumexp(scores, -1).cpu().numpy()


def each_case(name: str) -> None:
    """Check a case, and the plan that ran."""
    check(CASES[name], ct.asarray, exact)
    print(ct.last_plan(), flush=True)


def engines() -> None:
    """Check every engine of the heuristics, with all of its knobs, for some cases."""
    for name in ("plain", "grouped heads", "odd sizes, causal", "large heads", "growing scores"):
        check(CASES[name], ct.asarray, exact)
        plan = ct.last_plan()
        assert plan is not None
        assert plan.candidate is not None
        context = contexts.current(streams.resolve_stream(None))
        rows = [row for find in SOURCE.heuristics(plan.candidate.problem) for row in find(context)]
        names = dict.fromkeys(row.algorithm for row in rows if not row.rejected)
        print(name, *names, sep="; ", flush=True)
        for algo in names:
            check(CASES[name], ct.asarray, exact, algo=algo)


def autotune() -> None:
    """Check calls whose engine is timed."""
    for name in ("plain", "many keys"):
        check(CASES[name], ct.asarray, exact, algo="autotune")
        print(ct.last_plan(), flush=True)


def misaligned() -> None:
    """Check operands and results that are not 16-byte aligned."""

    def shifted(array: np.ndarray) -> Any:
        padded = np.zeros(array.size + 3, array.dtype)
        padded[3:] = array.ravel()
        return ct.asarray(padded)[3:].reshape(array.shape)

    for name in ("plain", "causal", "no scales"):
        check(CASES[name], shifted, exact)


def replays() -> None:
    """Check calls that are replayed: amax starts at 0 in each, and scales are read on the device."""
    given = CASES["plain"]
    arrays, wide, keywords = operands_of(given)
    device, placed = [ct.asarray(one) for one in arrays], on_device(keywords, ct.asarray)
    out = (ct.empty(arrays[0].shape, given.dtype), ct.empty(arrays[0].shape[:3]), ct.full((1,), 1e6))
    result, stats = exact(*wide, scale=None, causal=False)
    with testing.replay_after(1):
        for count in range(12):
            factor = 2.0 ** -(count % 5)
            ct.fill(placed["descale_v"], factor * float(keywords["descale_v"][0]))
            ct.fill(placed["scale_o"], float(keywords["scale_o"][0]) / factor)
            ct.scaled_attention(*device, **placed, return_stats=True, amax=True, out=out)
            y, found, amax = (np.asarray(one.numpy(), np.float64) for one in out)
            check_values(given, [y, found, amax / factor], (result, stats))
    print(ct.last_plan(), flush=True)


def captured() -> None:
    """Check a call that is captured into a CUDA graph, without scales and with all of them."""
    for name in ("no scales", "plain"):
        given = CASES[name]
        arrays, wide, keywords = operands_of(given)
        device, placed = [ct.asarray(one) for one in arrays], on_device(keywords, ct.asarray)
        ct.scaled_attention(*device, **placed, return_stats=True, amax=True)
        call = ct.capture(
            lambda q, k, v, placed=placed: tuple(
                ct.scaled_attention(q, k, v, **placed, return_stats=True, amax=True)
            )
        )
        for _ in range(3):
            found = [np.asarray(one.numpy(), np.float64) for one in call(*device)]
            check_values(given, found, exact(*wide, scale=None, causal=False))


def same_bits() -> None:
    """Check that results are the same bits from run to run."""
    arrays, _, _ = operands_of(CASES["many keys"])
    device = [ct.asarray(one) for one in arrays]
    runs = [ct.scaled_attention(*device, return_stats=True, amax=True) for _ in range(5)]
    for run in runs[1:]:
        for one, first in zip(run, runs[0], strict=True):
            assert one is not None
            assert first is not None
            assert one.numpy().tobytes() == first.numpy().tobytes()


def torch_tensors() -> None:
    """Check operands of PyTorch, whose float8 tensors are read without a copy."""
    import torch

    arrays, wide, keywords = operands_of(CASES["plain"])
    given = [torch.from_numpy(one.view(np.uint8)).cuda().view(torch.float8_e4m3fn) for one in arrays]
    scales = {n: torch.from_numpy(one).cuda() for n, one in keywords.items() if isinstance(one, np.ndarray)}
    found = ct.scaled_attention(*given, **scales, return_stats=True, amax=True)
    numbers = [np.asarray(one.numpy(), np.float64) for one in found]
    check_values(CASES["plain"], numbers, exact(*wide, scale=None, causal=False))


def facts() -> None:
    """Print what cuDNN writes as the largest weight, and into memory that is not zero; nothing is checked."""
    graph = float8_attention(stats=True)
    context = contexts.current(streams.resolve_stream(None))
    rng = np.random.default_rng(0)
    for before in (0.0, 1e6, float("nan")):
        arrays, floats = [], 0
        for tensor in graph.operands:
            shape, dtype = tensor.spec.shape, tensor.spec.dtype
            values = rng.standard_normal(shape) if len(arrays) < 3 else np.full(shape, before)
            if dtype == "float32" and tensor.spec.size == 1 and floats < 6:
                values, floats = np.full(shape, (1, 1, 1, 1 / 64, 64, 8)[floats]), floats + 1
            arrays.append(ct.asarray(np.asarray(values), dtype))
        row = engine_candidates(graph, EngineRules(), context, most=1)[0]
        plan = engine_plan(graph, EngineRules(), row, context, "graph")
        plan.run(context, [one.pointer for one in arrays], 1.0, 0.0)
        q, kt, _ = (one.numpy().astype(np.float64) for one in arrays[:3])
        scores = q @ kt.reshape(q.shape).swapaxes(2, 3) / q.shape[3] ** 0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        largest = (weights / weights.sum(-1, keepdims=True)).max()
        numbers = [float(one.numpy().item()) for one in arrays if one.size == 1][6:]
        print(f"memory {before}: largest weight and amax {numbers}; normalised weight {largest}", flush=True)


CHECKS: dict[str, Callable[[], None]] = {
    "engines": engines,
    "autotune": autotune,
    "misaligned": misaligned,
    "replays": replays,
    "captured": captured,
    "same bits": same_bits,
    "torch tensors": torch_tensors,
    "facts": facts,
}


def main() -> None:
    """Make the checks that the command line names."""
    for name in sys.argv[1:]:
        print(f"begin {name}", flush=True)
        try:
            CHECKS[name]() if name in CHECKS else each_case(name)
            ct.synchronize()
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".splitlines()
            print(f"wrong {name}: {' '.join(lines)[:2000]}", flush=True)
        else:
            print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main()
