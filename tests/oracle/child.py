"""A batch of calls in a process of its own: each is announced before it is made, and judged after."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ.setdefault("CUDNN_CT_ALGO_CACHE", "off")

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.ops import _replay
from cudnn_doctor.read.versions import table
from tests.counted import count_replays
from tests.spread import use_gpu

from .algorithms import judge_each
from .children import LOST
from .devices import Device, Fakes, Gpu
from .draw import SHARED, Call, draw
from .judge import Verdict, judge
from .run import at_once
from .without import take_out

EVERY = 100  # calls, after which unreachable objects are collected
THREADS = 4  # calls that are made at once, in one of TOGETHER groups
TOGETHER = 8


def main() -> None:
    """Make the calls that the first line on stdin asks for; write a JSON object for each outcome."""
    asked = json.loads(sys.stdin.readline())
    faulthandler.enable()
    warnings.simplefilter("ignore")  # once: filters must not change while threads run
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    place = partial(on_fakes, asked["fakes"]) if asked["fakes"] else on_gpu
    if not asked["fakes"]:
        use_gpu(asked["process"], count=1)
    _replay.REPEATS = _replay.MOVES = 1  # the second of two calls is a replay, on whatever memory
    count_replays(_replayed)
    take_out([row["name"] for row in table() if row["kind"] == "engine"] if asked["rejected"] else ())
    with place() as (device, answers):
        if device.kind == "gpu" and _lib.load().kind == "jit":
            asked["seconds"] *= 3  # engines are compiled in the call
        gc.collect()
        gc.freeze()  # the libraries: collections between the calls need not look at them
        for numbers in groups(asked, device.kind):
            if asked["end"] is not None and time.monotonic() > asked["end"]:
                break
            judged = each_algorithm if asked["algorithms"] else made
            verdicts = judged(asked, numbers, device, answers, reports)
            for number, verdict in zip(numbers, verdicts, strict=True):
                replays, _replayed[:] = len(_replayed), []
                reports.write(json.dumps({"number": number, "replays": replays, **verdict._asdict()}) + "\n")
                if any(word in verdict.detail for word in LOST):
                    os._exit(3)
            if numbers[0] % EVERY == 0:
                gc.collect()
        reports.flush()
        os._exit(0)


_replayed: list[None] = []  # one for each replay


def groups(asked: dict[str, Any], kind: str) -> Iterator[list[int]]:
    """The numbers of calls that match a pattern, one at a time or as many as are made at once."""
    first, end = asked["numbers"]
    if asked["like"]:
        for number in range(first, end):
            if re.search(asked["like"], str(draw(asked["seed"], number, kind, asked["only"], SHARED))):
                yield [number]
        return
    number = first
    while number < end:
        together = number % (THREADS * TOGETHER) == 0 and number + THREADS <= end
        count = THREADS if together and kind == "gpu" and not asked["algorithms"] else 1
        yield list(range(number, number + count))
        number += count


def made(
    asked: dict[str, Any], numbers: list[int], device: Device, answers: dict[str, Any], reports: Any
) -> list[Verdict]:
    """Make one call, or several in threads of their own at once."""
    calls = [draw(asked["seed"], number, device.kind, asked["only"], SHARED) for number in numbers]
    ct.config.replay = numbers[0] // THREADS % 2 == 0  # half of the calls
    if len(calls) > 1:  # a capture in one thread forbids much to the others
        calls = [call._replace(where=call.where._replace(captured=False)) for call in calls]
    for number, call in zip(numbers, calls, strict=True):
        reports.write(json.dumps({"number": number, "call": str(call)}) + "\n")
    faulthandler.dump_traceback_later(asked["seconds"], exit=True)
    verdicts: list[Verdict] = [Verdict("finding", "the thread ended without a verdict")] * len(calls)

    def judged(place: int) -> None:
        try:
            if len(calls) > 1:
                device.relax()
            verdicts[place] = judge(calls[place], device, answers)
        except Exception:
            verdicts[place] = Verdict("finding", traceback.format_exc()[-1500:])

    if len(calls) == 1:
        judged(0)
    else:
        at_once([partial(judged, place) for place in range(len(calls))])
    faulthandler.cancel_dump_traceback_later()
    return verdicts


def each_algorithm(
    asked: dict[str, Any], numbers: list[int], device: Device, answers: dict[str, Any], reports: Any
) -> list[Verdict]:
    """Make a convolution with each algorithm."""
    (number,) = numbers

    def announce(call: Call, algorithm: str = "") -> None:
        reports.write(json.dumps({"number": number, "call": str(call), "algorithm": algorithm}) + "\n")
        faulthandler.dump_traceback_later(asked["seconds"], exit=True)

    call = draw(asked["seed"], number, device.kind, asked["only"])
    announce(call)
    try:
        return [judge_each(call, device, answers, announce)]
    except Exception:
        return [Verdict("finding", traceback.format_exc()[-1500:])]
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def on_fakes(libraries: str) -> Iterator[tuple[Device, dict[str, Any]]]:
    """On the fake cuDNN with a set of libraries, against plain loops."""
    from tests.fake.cudnn import FakeLibrary
    from tests.fake.installed import cudnn_installed, host_installed

    from .by_loops import ANSWERS

    FakeLibrary.kind = libraries
    with host_installed() as host, cudnn_installed(host) as fake:
        fake.engines = fake.engines or libraries == "jit"
        device = Fakes(host)
        settle = device.settle

        def forget() -> None:
            fake.calls.clear()
            settle()

        device.settle = forget  # type: ignore[method-assign]
        yield device, ANSWERS


@contextmanager
def on_gpu() -> Iterator[tuple[Device, dict[str, Any]]]:
    """On a GPU, against PyTorch in float64."""
    ct.version()  # before PyTorch loads its own cuDNN, which another one cannot follow
    from . import by_torch

    by_torch.DEVICE = "cpu"  # contiguous float64; independent of the state of the device
    yield Gpu(), by_torch.ANSWERS


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this
    main()
