"""Pairs of calls, ours and PyTorch's, on the same random data: compared, then timed in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]
Call = Callable[[], Any]

LOOP = 0.02  # seconds of a loop of calls, about
WARM = 24  # calls before the measurement: replays begin after some


class Pair(NamedTuple):
    """Two calls and the largest difference of their results, relative to the largest element.

    ``host`` asks for host time, with an idle device before a loop, instead of time on the device. No call of
    this kind is faster than ``floor``. That of host time is found: the launch of our graph. ``told`` returns
    more of the row after the times, such as the names of algorithms.
    """

    ours: Call
    theirs: Call
    near: float | None = 2e-2
    host: bool = False
    floor: Call | None = None
    told: Callable[[], Row] | None = None


def rows_of(pairs: dict[str, Callable[[], Pair]], rounds: int) -> Iterator[Row]:
    """Yield a row for each pair; one that fails has the reason."""
    for name, make in pairs.items():
        try:
            yield {"row": name, **measured(make(), rounds)}
        except Exception as error:
            yield {"row": name, "error": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def measured(pair: Pair, rounds: int) -> Row:
    """Compare the results of a pair, and time its calls in turns."""
    import torch

    with torch.inference_mode():
        far = 0.0 if pair.near is None else distance(pair)
        if pair.near is not None and not far <= pair.near:
            return {"far": far, "error": f"results differ by {far:.3g}"}
        for call in (pair.ours, pair.theirs):
            for _ in range(WARM):
                call()
        torch.cuda.synchronize()
        timer = host_time if pair.host else gpu_time
        calls = max(3, min(400, round(LOOP / (timer(pair.theirs, 3) * 1e-6))))
        times = [(timer(pair.ours, calls), timer(pair.theirs, calls)) for _ in range(rounds)]
        row = {
            "ratio": statistics.median(one / two for one, two in times),
            "ours_us": statistics.median(one for one, _ in times),
            "theirs_us": statistics.median(two for _, two in times),
            "far": far,
        }
        if floor := launch_alone() if pair.host else pair.floor:
            floor()
            row["floor_us"] = statistics.median(timer(floor, calls) for _ in range(rounds))
            row["floor"] = row["floor_us"] / row["theirs_us"]
        return row | (pair.told() if pair.told else {})


def launch_alone() -> Call | None:
    """Return the launch of the graph that a call launched last, without the rest of the call."""
    from cudnn_ct.cuda.movable import MovableGraph
    from cudnn_ct.cuda.replay import Replay

    launched = [one for one in gc.get_objects() if type(one) is Replay and one.recent]
    for one in launched:
        one.recent = False  # those of other pairs
    if not launched:
        return None
    launch = launched[-1].launch
    if not isinstance(graph := getattr(launch, "__self__", None), MovableGraph):
        return launch
    pointers = graph._last

    def moved() -> int:
        graph._last = ()  # as if the pointers were new
        return graph.launch(pointers)

    return moved


def copying(nbytes: int) -> Call:
    """Return a copy that reads and writes as many bytes in total."""
    import torch

    source, target = (torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: target.copy_(source)


def distance(pair: Pair) -> float:
    """Return the largest difference of the first results, relative to the largest element of theirs.

    Both may write to the same memory, so the first result is copied before the second call.
    """
    import torch

    one = first(pair.ours()).double().clone()
    two = first(pair.theirs()).double()
    torch.cuda.synchronize()
    return float((one.reshape(two.shape) - two).abs().max() / two.abs().max().clamp_min(1e-30))


def first(result: Any) -> Any:
    """Return a result as a tensor, the first one of a tuple."""
    import torch

    one = result[0] if isinstance(result, tuple | list) else result
    return one if isinstance(one, torch.Tensor) else torch.from_dlpack(one)


def host_time(call: Call, calls: int) -> float:
    """Return the microseconds that the host needs for a call; the device is idle before."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / calls * 1e6


def gpu_time(call: Call, calls: int) -> float:
    """Return the microseconds of a call between events, by the slower of host and device."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls * 1e3


def drawn_tensor(shape: tuple[int, ...], dtype: str = "float32", *, channels_last: bool = False) -> Any:
    """Return a tensor of random numbers on the device."""
    import torch

    tensor = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    return tensor.to(memory_format=torch.channels_last) if channels_last else tensor
