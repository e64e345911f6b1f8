"""Graphs of calls that can be launched on other memory: pointers are written into the parameters of nodes.

A call is captured on its pointers, and then on invented addresses. Where the parameters of a node differ,
they must be a pointer of the call, at the same distance in all captures. Nothing is launched meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ..errors import NotSupportedError
from . import driver as cuda
from . import graph as graphs
from . import stream as streams
from .graph import Graph, Template
from .stream import Stream

# Bytes: pointers that are equal modulo one of these may take each other's place. Most kernels are chosen for
# pointers that are aligned to 16 bytes; some of the oldest read textures, which begin at multiples of 512.
GRAINS = (16, 128, 512)
BASE, SPACE = 2**44, 2**33  # the first invented address, and the bytes between them
_WORD = 8  # bytes of a pointer, which is aligned to them among parameters
_ALIGNED = 16  # bytes to which each block of parameters is aligned

REFUSED = 1  # the status of a launch that was not made


def invented(pointers: Sequence[int], grain: int) -> list[tuple[int, ...]]:
    """Return addresses for three captures, which are equal to ``pointers`` modulo ``grain``.

    Modulo twice the grain, all of the first differ from the pointers, those of the second are as aligned as
    they can be, and every second one of the third is not: kernels may need pointers that are aligned alike.
    The order of the second is descending, so that no two pointers keep their distance.
    """
    places = range(len(pointers))
    rests = [pointer % grain for pointer in pointers]
    return [
        tuple([BASE + place * SPACE + (pointers[place] + grain) % (2 * grain) for place in places]),
        tuple([BASE + (2 * len(rests) - place) * SPACE + rests[place] for place in places]),
        tuple([BASE + 2 * place * SPACE + place % 2 * grain + rests[place] for place in places]),
    ]


class MovableGraph:
    """An executable graph of a call, launched on a stream with the pointers of each launch."""

    __slots__ = (
        *("_fixed", "_grain", "_keep", "_last", "_launch", "_parameters", "_updates", "_words"),
        "graph",
    )

    def __init__(
        self,
        graph: Graph,
        launch: Callable[[], int],
        parameters: Any,
        grain: int,
        words: Sequence[tuple[int, int, int, int]],
        fixed: Sequence[tuple[int, int]],
        updates: Sequence[Callable[[], int]],
        keep: object,
    ) -> None:
        self.graph = graph
        self._launch, self._parameters, self._grain, self._keep = launch, parameters, grain, keep
        self._words, self._fixed, self._updates = tuple(words), tuple(fixed), tuple(updates)
        self._last: tuple[int, ...] = ()

    def launch(self, pointers: tuple[int, ...]) -> int:
        """Launch the graph on memory; return 0, or not 0 if nothing was launched.

        It is refused if two pointers are equal or one is 0, if one is aligned otherwise than that of the
        call, or if one differs that no parameter has.
        """
        if pointers != self._last:
            self._last = ()  # an update may fail
            if len({0, *pointers}) <= len(pointers):
                return REFUSED
            for place, pointer in self._fixed:
                if pointers[place] != pointer:
                    return REFUSED
            parameters, aligned_otherwise = self._parameters, 0
            for word, place, distance, rest in self._words:
                pointer = pointers[place]
                aligned_otherwise |= pointer ^ rest
                parameters[word] = pointer + distance
            if aligned_otherwise % self._grain:
                return REFUSED
            for update in self._updates:
                if status := update():
                    return status
            self._last = pointers
        return self._launch()


def capture(
    device: int,
    work: Callable[[Stream, tuple[int, ...]], object],
    pointers: tuple[int, ...],
    accept: Callable[[object], object],
    launcher: Callable[[Graph], Callable[[], int]],
) -> MovableGraph:
    """Capture work on pointers and on invented ones, and return a graph of it that takes others.

    ``work`` enqueues a call on a stream and pointers as aligned as ``pointers``. ``accept`` is called with
    the captured graph, and raises for one that must not be instantiated.

    Raises
    ------
    CudnnError
        The work cannot be captured. NotSupportedError: its parameters depend on pointers in another way.
    """
    templates: list[Template] = []

    def nodes_on(given: tuple[int, ...]) -> list[_Node]:
        with graphs.acquired(device) as stream, streams.relaxed(), graphs.captured(stream) as template:
            work(stream, given)
        if not templates:
            templates.append(template)
        return [_read(node, kind) for node, kind in graphs.nodes_of(template.handle)]

    nodes = nodes_on(pointers)
    accept(templates[0].handle)
    grain, places = _found(nodes, pointers, nodes_on)
    graph = Graph(device)
    with streams.relaxed():
        graph.instantiate(templates[0])
    moving = [(node, found) for node, found in zip(nodes, places, strict=True) if found]
    return _movable(graph, launcher(graph), templates[0], moving, grain, pointers)


# --- nodes -------------------------------------------------------------------------------------------------


class _KernelParams(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *[(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")],
        *[(name, ctypes.c_void_p) for name in ("params", "extra", "kern", "ctx")],
    )


_SAME = ("func", "gx", "gy", "gz", "bx", "by", "bz", "shared", "kern", "ctx")  # in all captures

_PARAM_INFO = 12040  # the first CUDA whose driver describes parameters
_INVALID_VALUE = 1  # of ``CUresult``
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2  # of what a launch may take in place of single parameters


class _Node(NamedTuple):
    """A node: blocks of its parameters, and what must be equal in all captures.

    ``kernel`` is None for a fill or a copy, whose only block is its structure. ``packed`` is whether the
    parameters of a kernel are one buffer.
    """

    handle: ctypes.c_void_p
    kind: str
    blocks: tuple[bytes, ...]
    same: tuple[Any, ...]
    kernel: _KernelParams | None = None
    packed: bool = False


_SIZES = {"Memset": 40, "Memcpy": 200}  # bytes of CUDA_MEMSET_NODE_PARAMS and CUDA_MEMCPY3D


def _read(node: Any, kind: Any) -> _Node:
    kinds, handle = cuda.driver().CUgraphNodeType, ctypes.c_void_p(int(node))
    for name, size in _SIZES.items():
        if kind == getattr(kinds, f"CU_GRAPH_NODE_TYPE_{name.upper()}"):
            buffer = ctypes.create_string_buffer(size)
            _check(cuda.native(f"cuGraph{name}NodeGetParams")(handle, ctypes.byref(buffer)))
            return _Node(handle, name, (buffer.raw,), ())
    if kind != kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        raise NotSupportedError(f"a node cannot be moved: {kind!r}")
    params = _KernelParams()
    _check(cuda.native("cuGraphKernelNodeGetParams")(handle, ctypes.byref(params)))
    packed = not params.params and bool(params.extra)
    blocks = (_packed_block(params.extra),) if packed else _blocks(params)
    same = tuple([getattr(params, name) for name in _SAME])
    return _Node(handle, "Kernel", blocks, same, params, packed)


def _packed_block(extra: int) -> bytes:
    """Return the buffer that has all parameters of a kernel."""
    words, found = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p)), {}
    for place in (0, 2):
        if not words[place]:
            break
        found[words[place]] = words[place + 1]
    size = ctypes.c_size_t.from_address(found[_BUFFER_SIZE]).value
    return ctypes.string_at(found[_BUFFER_POINTER], size)


def _blocks(params: _KernelParams) -> tuple[bytes, ...]:
    """Return the parameters of a kernel, whose sizes its function knows."""
    if not params.params:
        return ()
    places = ctypes.cast(params.params, ctypes.POINTER(ctypes.c_void_p))
    name, function = ("Func", params.func) if params.func else ("Kernel", params.kern)
    info, blocks = cuda.native(f"cu{name}GetParamInfo", _PARAM_INFO), list[bytes]()
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    into = ctypes.byref(offset), ctypes.byref(size)
    while not (status := info(ctypes.c_void_p(function), ctypes.c_size_t(len(blocks)), *into)):
        blocks.append(ctypes.string_at(places[len(blocks)], size.value))
    if status != _INVALID_VALUE:  # this is behind the last one
        _check(status)
    return tuple(blocks)


def _check(status: int) -> None:
    cuda.check(cuda.driver().CUresult(status), "reading a node of a CUDA graph")


# --- places of pointers ------------------------------------------------------------------------------------


def _found(
    first: Sequence[_Node], pointers: tuple[int, ...], nodes_on: Callable[[tuple[int, ...]], Sequence[_Node]]
) -> tuple[int, list[list[_Place]]]:
    """Return the finest alignment that matters, and the places of pointers in each node of a capture.

    If a parameter differs otherwise, everything is captured twice: memory between parameters is undefined.
    """
    for grain in GRAINS:
        given = [pointers, *invented(pointers, grain)]
        captures = [first, *map(nodes_on, given[1:])]
        with suppress(NotSupportedError):
            return grain, _places(captures, captures, given)
        with suppress(NotSupportedError):
            return grain, _places(captures, [*map(nodes_on, given)], given)
    raise NotSupportedError("nodes depend on pointers, and not by distances alone")


_Place = tuple[int, int, int, int]
"""The place of a pointer: the block of parameters, the byte in it, the pointer, and the distance from it."""


def _places(
    captures: Sequence[Sequence[_Node]], repeated: Sequence[Sequence[_Node]], given: Sequence[tuple[int, ...]]
) -> list[list[_Place]]:
    """Return the places of pointers in each node of several captures, and of others on the same pointers."""
    if len({len(nodes) for nodes in (*captures, *repeated)}) > 1:
        raise NotSupportedError("the number of nodes depends on pointers")
    places = []
    for nodes in zip(*captures, *repeated, strict=True):
        if len({(one.kind, one.same, *map(len, one.blocks)) for one in nodes}) > 1:
            raise NotSupportedError("a kernel depends on pointers")
        blocks = zip(*[one.blocks for one in nodes], strict=True)
        places.append(
            [
                (block, *found)
                for block, several in enumerate(blocks)
                for found in _pointers_in(several, given)
            ]
        )
    return places


def _movable(
    graph: Graph,
    launch: Callable[[], int],
    template: Template,
    moving: Sequence[tuple[_Node, list[_Place]]],
    grain: int,
    pointers: tuple[int, ...],
) -> MovableGraph:
    """Return a graph with parameters of its own for the nodes with pointers."""
    starts: list[list[int]] = []  # of the blocks of each node, in one buffer
    nbytes = 0
    for node, _ in moving:
        starts.append([])
        for block in node.blocks:
            starts[-1].append(nbytes)
            nbytes += -(-len(block) // _ALIGNED) * _ALIGNED
    buffer = ctypes.create_string_buffer(max(nbytes, _ALIGNED))
    base, words, updates, keep = ctypes.addressof(buffer), [], [], [template, buffer]
    for (node, places), offsets in zip(moving, starts, strict=True):
        for start, block in zip(offsets, node.blocks, strict=True):
            ctypes.memmove(base + start, block, len(block))
        for number, byte, place, distance in places:
            words.append(((offsets[number] + byte) // _WORD, place, distance, pointers[place] % grain))
        updates.append(_update(graph, node, [base + start for start in offsets], keep))
    parameters = memoryview(buffer).cast("B").cast("Q")
    found = {place for _, place, _, _ in words}
    fixed = [(place, pointer) for place, pointer in enumerate(pointers) if place not in found]
    return MovableGraph(graph, launch, parameters, grain, words, fixed, updates, keep)


def _pointers_in(blocks: Sequence[bytes], given: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int, int]]:
    """Yield the byte, the pointer and the distance from it of each word that differs between captures.

    ``blocks`` are those of a capture for each set of pointers, and again.
    """
    count = len(given)
    for byte in range(0, len(blocks[0]), _WORD):
        words = [one[byte : byte + _WORD] for one in blocks]
        if len({*words}) == 1:
            continue
        numbers = [int.from_bytes(word, "little") for word in words]
        for place in range(len(given[0])):
            distances = {number - one[place] for number, one in zip(numbers, (*given, *given), strict=True)}
            if len(distances) == 1 and len(words[0]) == _WORD:
                yield byte, place, distances.pop()
                break
        else:
            pairs = [*zip(words[:count], words[count:], strict=True)]
            for place in range(len(words[0])):
                differs = len({word[place] for word in words}) > 1
                if differs and all(one[place] == again[place] for one, again in pairs):
                    raise NotSupportedError("a parameter depends on pointers, and not by a distance")


def _update(graph: Graph, node: _Node, addresses: Sequence[int], keep: list[Any]) -> Callable[[], int]:
    """Return a function that gives a node of an executable graph the parameters at these addresses."""
    executable = ctypes.c_void_p(graph.handle)
    update = partial(cuda.native(f"cuGraphExec{node.kind}NodeSetParams"), executable, node.handle)
    if node.kernel is None:
        current = ctypes.c_void_p()
        _check(cuda.native("cuCtxGetCurrent")(ctypes.byref(current)))
        return partial(update, ctypes.c_void_p(addresses[0]), current)
    params = _KernelParams.from_buffer_copy(node.kernel)
    params.params = params.extra = None
    array: Any
    if node.packed:
        size = ctypes.c_size_t(len(node.blocks[0]))
        array = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, addresses[0], _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        params.extra = ctypes.addressof(array)
        keep.append(size)
    else:
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        params.params = ctypes.addressof(array)
    keep += [array, params]
    return partial(update, ctypes.byref(params))
