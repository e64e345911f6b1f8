"""Compare ways to run a call on other memory, on one GPU: execute its plan, or move its kernels.

    python benchmarks/moved_kernels.py

A plan is captured three times with different pointers. Where the parameters of a kernel differ, they must
contain a pointer, with the same distance in all captures. New pointers are written to these places, and the
kernels are launched: by `cuLaunchKernelEx`, or by a captured graph whose nodes have got the new parameters.
Columns are the nodes of the graph, whether all differences are explained, whether the results are those of
the plan, and microseconds of host time: the plan, a replay with the same pointers, and both ways.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import driver as cuda
from cudnn_ct.cuda import graph as graphs
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import Stream

CALLS, ROUNDS = 100, 15
DISTANCES = (4096 * 7, 4096 * 1031)  # of the pointers of further captures, times the place of the pointer
POINTER, SIZE = 1, 2  # of the buffer of parameters that a launch may take instead of single ones


class _Params(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *[(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")],
        *[(name, ctypes.c_void_p) for name in ("params", "extra", "kern", "ctx")],
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_ubyte * 64))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *[(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")],
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


COPIED = (1, 2, 4, 5, 14)  # access policy, cooperative, cluster, its scheduling, shared memory


class Kernel(NamedTuple):
    """A kernel node: its own parameters, those of the kernel as bytes, and whether these are one buffer."""

    node: Any
    params: _Params
    blocks: tuple[bytes, ...]
    packed: bool
    attributes: tuple[_Attribute, ...]


class Captured(NamedTuple):
    """A captured graph, its kernels, and the kinds of its other nodes."""

    graph: Any
    kernels: list[Kernel]
    others: list[str]


def captured(run: Callable[[Sequence[int]], object], pointers: Sequence[int]) -> Captured:
    """Capture a run with pointers, of which nothing is launched."""
    here, stream = context.of_device(0), graphs.acquire_stream(0)
    mode = cuda.driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    with streams.relaxed(), here.recording(stream):
        cuda.call("capturing", "cuStreamBeginCapture", stream.handle, mode)
        run(pointers)
        graph = cuda.call("capturing", "cuStreamEndCapture", stream.handle)
    kernels, others = [], []
    for node, kind in graphs.nodes_of(graph):
        if kind == cuda.driver().CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            kernels.append(kernel_of(node))
        else:
            others.append(kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower())
    return Captured(graph, kernels, others)


def kernel_of(node: Any) -> Kernel:
    """Read a kernel node."""
    handle, params = ctypes.c_void_p(int(node)), _Params()
    check(native("cuGraphKernelNodeGetParams_v2")(handle, ctypes.byref(params)))
    attributes = []
    for number in COPIED:
        one = _Attribute(number)
        got = native("cuGraphKernelNodeGetAttribute")(handle, number, ctypes.byref(one.value))
        if not got and any(one.value):
            attributes.append(one)
    if params.extra:
        words = ctypes.cast(params.extra, ctypes.POINTER(ctypes.c_void_p))
        assert (words[0], words[2]) == (POINTER, SIZE)
        size = ctypes.cast(words[3], ctypes.POINTER(ctypes.c_size_t))[0]
        blocks: tuple[bytes, ...] = (ctypes.string_at(words[1], size),)
    else:
        blocks = tuple(single_parameters(params))
    return Kernel(node, params, blocks, bool(params.extra), tuple(attributes))


def single_parameters(params: _Params) -> list[bytes]:
    """Return the parameters of a kernel, whose sizes the function knows."""
    found: list[bytes] = []
    places = ctypes.cast(params.params, ctypes.POINTER(ctypes.c_void_p))
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    name, function = (
        ("cuFuncGetParamInfo", params.func) if params.func else ("cuKernelGetParamInfo", params.kern)
    )
    given = ctypes.c_void_p(function), ctypes.byref(offset), ctypes.byref(size)
    while not native(name)(given[0], ctypes.c_size_t(len(found)), *given[1:]):
        found.append(ctypes.string_at(places[len(found)], size.value))
    return found


class Place(NamedTuple):
    """The place of a pointer: the kernel, the parameter, the byte, the pointer, and the distance from it."""

    kernel: int
    block: int
    byte: int
    pointer: int
    distance: int


def places_of(runs: Sequence[Captured], pointers: Sequence[Sequence[int]]) -> tuple[list[Place], int]:
    """Return the places of pointers in the parameters, and the number of bytes that differ for no pointer."""
    places, unexplained = [], 0
    for number, kernels in enumerate(zip(*(run.kernels for run in runs), strict=True)):
        for number_of_block, blocks in enumerate(zip(*(one.blocks for one in kernels), strict=True)):
            byte = 0
            while byte < len(blocks[0]):
                if len({one[byte] for one in blocks}) == 1:
                    byte += 1
                    continue
                start = byte // 4 * 4
                found = pointer_at(blocks, start, pointers) or pointer_at(blocks, start - 4, pointers)
                if found is None:
                    unexplained += 1
                    byte += 1
                    continue
                at, pointer, distance = found
                places.append(Place(number, number_of_block, at, pointer, distance))
                byte = at + 8
    return places, unexplained


def pointer_at(
    blocks: Sequence[bytes], start: int, pointers: Sequence[Sequence[int]]
) -> tuple[int, int, int] | None:
    """Return the byte, the pointer and the distance of eight bytes that are a pointer in all captures."""
    words = [int.from_bytes(one[start : start + 8], "little") for one in blocks]
    for place in range(len(pointers[0])):
        distances = {word - given[place] for word, given in zip(words, pointers, strict=True)}
        if len(distances) == 1:
            return start, place, distances.pop()
    return None


class Moved:
    """The kernels of a call with parameters of our own, to which pointers are written."""

    def __init__(self, run: Captured, places: Sequence[Place], stream: Stream) -> None:
        self._keep: list[Any] = [run]
        self.launches, self.updates = [], []
        self._executable = ctypes.c_void_p(
            int(cuda.call("instantiating", "cuGraphInstantiate", run.graph, 0))
        )
        buffers = [
            [ctypes.create_string_buffer(one, len(one)) for one in kernel.blocks] for kernel in run.kernels
        ]
        for kernel, blocks in zip(run.kernels, buffers, strict=True):
            self._add(kernel, blocks, stream)
        self._words = [
            (ctypes.c_uint64.from_buffer(buffers[one.kernel][one.block], one.byte), one.pointer, one.distance)
            for one in places
        ]
        self._launch = partial(native("cuGraphLaunch"), self._executable, ctypes.c_void_p(stream.handle))

    def _add(self, kernel: Kernel, blocks: list[Any], stream: Stream) -> None:
        array = (ctypes.c_void_p * max(1, len(blocks)))(*map(ctypes.addressof, blocks))
        size = ctypes.c_size_t(len(blocks[0]) if blocks else 0)
        extra = (ctypes.c_void_p * 5)(POINTER, ctypes.addressof(blocks[0]), SIZE, ctypes.addressof(size), 0)
        attributes = (_Attribute * max(1, len(kernel.attributes)))(*kernel.attributes)
        dims = [getattr(kernel.params, name) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
        config = _Config(*dims, stream.handle, ctypes.addressof(attributes), len(kernel.attributes))
        params = _Params.from_buffer_copy(kernel.params)
        params.params = None if kernel.packed else ctypes.addressof(array)
        params.extra = ctypes.addressof(extra) if kernel.packed else None
        function = ctypes.c_void_p(kernel.params.func or kernel.params.kern)
        self._keep += [array, size, extra, attributes, config, params, blocks]
        given = (None, extra) if kernel.packed else (array, None)
        self.launches.append(partial(native("cuLaunchKernelEx"), ctypes.byref(config), function, *given))
        node = ctypes.c_void_p(int(kernel.node))
        update = native("cuGraphExecKernelNodeSetParams_v2")
        self.updates.append(partial(update, self._executable, node, ctypes.byref(params)))

    def launched(self, pointers: Sequence[int]) -> int:
        """Write pointers, and launch the kernels one after another."""
        for word, pointer, distance in self._words:
            word.value = pointers[pointer] + distance
        status = 0
        for launch in self.launches:
            status = launch() or status
        return status

    def updated(self, pointers: Sequence[int]) -> int:
        """Write pointers, and launch the graph with these parameters."""
        for word, pointer, distance in self._words:
            word.value = pointers[pointer] + distance
        for update in self.updates:
            if status := update():
                return int(status)
        return int(self._launch())


def native(name: str) -> Any:
    return getattr(ctypes.CDLL("libcuda.so.1"), name)


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"a function of the driver returned {status}")


# --- calls -------------------------------------------------------------------------------------------------


def calls() -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], tuple[int, ...]]]:
    """Return calls with ``out``, the shapes of their operands, and that of the result, float16."""
    image, norm = (1, 64, 28, 28), [(197, 768), (768,), (768,)]
    heads = (1, 12, 197, 64)
    return {
        "conv 3x3": (lambda x, w, out: ct.conv(x, w, padding=1, out=out), [image, (64, 64, 3, 3)], image),
        "conv 1x1": (lambda x, w, out: ct.conv(x, w, out=out), [image, (256, 64, 1, 1)], (1, 256, 28, 28)),
        "conv strided": (
            lambda x, w, out: ct.conv(x, w, stride=2, padding=1, out=out),
            [image, (64, 64, 3, 3)], (1, 64, 14, 14),
        ),
        "matmul": (lambda a, b, out: ct.matmul(a, b, out=out), [(197, 768), (768, 768)], (197, 768)),
        "matmul, bias, relu": (
            lambda a, b, c, out: ct.matmul(a, b, c, activation="relu", out=out),
            [(64, 256), (256, 256), (256,)], (64, 256),
        ),
        "layer norm": (lambda x, s, b, out: ct.layer_norm(x, s, b, training=False, out=out), norm, norm[0]),
        "relu": (lambda x, out: ct.activation(x, out=out), [image], image),
        "softmax": (lambda x, out: ct.softmax(x, out=out), [(197, 768)], (197, 768)),
        "pool": (lambda x, out: ct.pool(x, window=2, out=out), [image], (1, 64, 14, 14)),
        "sum": (lambda x, out: ct.reduce(x, axis=1, out=out), [(197, 768)], (197,)),
        "attention": (lambda q, k, v, out: ct.attention(q, k, v, out=out), [heads] * 3, heads),
    }  # fmt: skip


def tensor(shape: tuple[int, ...]) -> Any:
    made = torch.randn(shape, device="cuda", dtype=torch.float16)
    return made.to(memory_format=torch.channels_last) if len(shape) == 4 and shape[1] != 12 else made


def row(name: str) -> str:
    """Measure one call."""
    call, shapes, result = calls()[name]
    sets = [[*map(tensor, shapes), tensor(result)] for _ in range(2)]
    for _ in range(30):
        for one in sets:
            call(*one)
    torch.cuda.synchronize()
    here = context.of_device(0)
    prepared, stream = here.last_call, streams.default_stream(0)
    run = partial(lambda plan, given: plan.run(here, given, 1, 0), prepared.selected.plan)
    pointers = [[one.data_ptr() for one in several] for several in sets]
    order = pointers[0]
    further = [[p + (place + 1) * step for place, p in enumerate(order)] for step in DISTANCES]
    runs = [captured(run, given) for given in (order, *further)]
    places, unexplained = places_of(runs, [order, *further])
    kinds = f"{len(runs[0].kernels)} kernels{''.join(f' + {one}' for one in runs[0].others)}"
    shown = f"{name:20} {kinds:22} places {len(places):2} unexplained {unexplained:2}"
    if unexplained or not runs[0].kernels:
        return shown
    moved, wanted = Moved(runs[0], places, stream), sets[1][-1].clone()
    for way in (moved.launched, moved.updated):
        sets[1][-1].fill_(7)
        status = way(pointers[1])
        torch.cuda.synchronize()
        shown += f" {way.__name__} {status} {torch.equal(sets[1][-1], wanted)}"
    turns = {
        "plan": lambda: run(pointers[1]),
        "call": lambda: call(*sets[1]),
        "launched": lambda: moved.launched(pointers[1]),
        "updated": lambda: moved.updated(pointers[1]),
        "same": moved._launch,
    }
    times: dict[str, list[float]] = {key: [] for key in turns}
    here.set_stream(stream)
    for _ in range(ROUNDS):
        for key, one in turns.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                one()
            times[key].append((time.perf_counter() - begin) / CALLS * 1e6)
    return shown + " | us " + " ".join(f"{key} {statistics.median(one):.1f}" for key, one in times.items())


if __name__ == "__main__":
    for number in calls():
        try:
            print(row(number), flush=True)
        except Exception as error:  # of any kind: the other rows count
            print(f"{number:20} {type(error).__name__}: {str(error)[:200]}", flush=True)
