"""A cuDNN of Python functions behind the real prototypes: it computes, and can be told to fail.

Each function is a ``CFUNCTYPE`` of its generated prototype, so arguments pass through ctypes as they do on
the way to C. What a function computes is written here, apart from `cudnn_ct.reference`: loops over the memory
behind the pointers, read by the shapes and strides that the descriptors were given.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from ctypes import CFUNCTYPE, cast
from functools import partialmethod
from typing import Any, NamedTuple

import numpy as np

from cudnn_ct._bindings.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo, ConvolutionFwdAlgo
from cudnn_ct._bindings.functions import FUNCTIONS
from cudnn_ct._bindings.types import cudnnGnnCscGraph_t, cudnnGnnMhaParams_t
from cudnn_ct._lib import Library
from cudnn_ct.cuda import movable
from cudnn_ct.cuda.debug import NOT_ENQUEUING
from cudnn_doctor.read.libraries import SUBLIBRARIES

from .causal_conv import Causal
from .convolution import slide
from .ctc import CTC
from .dropout import Dropout
from .gnn import Neighbours
from .graphs import Graphs
from .host import BAD_PARAM, BY_CODE, NOT_SUPPORTED, Host, view
from .layers import Layers
from .norm import Norm
from .pointwise import Pointwise, factors
from .rnn import Recurrent
from .spatial import Spatial
from .tensors import Tensors

# Pointers to structures in host memory that are arguments of calls on a stream.
DESCRIPTIONS = tuple(map(ctypes.POINTER, (cudnnGnnCscGraph_t, cudnnGnnMhaParams_t)))

ON_STREAMS = SUBLIBRARIES["ext"].headers  # of functions that take a stream, and no handle

VERSION = 91900
WITHOUT_DESCRIPTOR = (10, 11)  # the codes of int64 and bool


class Direction(NamedTuple):
    """One direction of convolutions.

    ``roles`` is the order of its operands, the result last; the last algorithm of ``offered`` is rejected.
    """

    algorithms: Any
    offered: tuple[str, str, str]
    roles: tuple[str, str, str]


FORWARD = Direction(ConvolutionFwdAlgo, ("GEMM", "IMPLICIT_GEMM", "DIRECT"), ("x", "w", "y"))
BACKWARD_DATA = Direction(ConvolutionBwdDataAlgo, ("ALGO_1", "ALGO_0", "FFT"), ("w", "y", "x"))
BACKWARD_FILTER = Direction(ConvolutionBwdFilterAlgo, ("ALGO_1", "ALGO_0", "FFT"), ("x", "y", "w"))


class FakeLibrary(Library):
    """The package's own binding of the fake, which re-raises what went wrong inside a fake function."""

    def __init__(self, fake: FakeCudnn) -> None:
        self._fake = fake
        super().__init__(fake.lookup)

    def _check(self, status: int, function: Any, args: tuple[Any, ...]) -> int:
        if self._fake.raised is not None:
            raised, self._fake.raised = self._fake.raised, None
            raise raised
        return super()._check(status, function, args)


class FakeCudnn(
    Causal, CTC, Dropout, Graphs, Layers, Neighbours, Norm, Pointwise, Recurrent, Spatial, Tensors
):
    """The fake's state: native objects that are alive, calls so far, and the failures that were ordered."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.objects: dict[int, dict[str, Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.executed: list[int] = []  # the numbers of the engines that ran
        self.relaxed: set[str] = set()  # functions that were called in CUDA's relaxed capture mode
        self.fail: dict[str, int] = {}
        self.fail_at: dict[int, int] = {}
        self.missing: set[str] = set()
        self.refused: set[str] = set()
        self.workspaces: dict[str, int] = {}
        self.costs: dict[str, float] = {}  # milliseconds of an algorithm, by its name; 1 for others
        self.random: set[str] = set()  # algorithms whose results vary from run to run
        self.unrunnable: set[str] = set()  # algorithms that only their run refuses
        self.math_of_rows = 0
        self.also_offered: list[str] = []  # algorithms that heuristics rank before the usual ones
        self.raised: BaseException | None = None
        self.passes: list[Any] = []  # what training passes of recurrent networks remember
        self.max_elements = 2**31 - 1  # of a tensor
        self.moved: dict[str, int] = {}  # by how many bytes an algorithm has weights elsewhere
        self._addresses = itertools.count(0x1000, 16)
        self._recorded = threading.local()  # the objects of a graph that is launched

    def lookup(self, name: str) -> Any:
        """The C function of a name, None for one that this cuDNN lacks."""
        if name in self.missing:
            return None
        prototype = FUNCTIONS[name]
        body = getattr(self, name, None)

        def function(*args: Any) -> Any:
            self.calls.append((name, args))
            if self.host.relaxed:
                self.relaxed.add(name)
            if not prototype.returns_status:
                return body(*args) if body else 0
            try:
                ordered = self.fail_at.get(len(self.calls)) or self.fail.get(name)
                if ordered:
                    return ordered
                if body is None:
                    return NOT_SUPPORTED
                if (capture := self._capture_of(name, args)) is not None:
                    capture.add(*self._deferred(name, body, args))
                    return 0
                return body(*args) or 0
            except BaseException as error:  # ctypes would print it and go on
                self.raised = error
                return -1

        return CFUNCTYPE(prototype.restype, *prototype.argtypes)(function)

    def _capture_of(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return the capture that defers a call: that of the stream of its handle, the first argument."""
        if FUNCTIONS[name].header in ON_STREAMS and "GetBufferSizes" not in name:
            stream = args[0]  # these take the stream itself
        elif not args or isinstance(args[0], int) or name.startswith(NOT_ENQUEUING):  # handles are pointers
            return None
        else:
            handle = self.objects.get(cast(args[0], ctypes.c_void_p).value or 0, {})
            stream = handle.get("stream")
        capture = self.host.capturing.get(stream)
        return capture if capture is not None and capture.deferred else None

    def _deferred(self, name: str, body: Any, args: tuple[Any, ...]) -> tuple[Any, list[int]]:
        """Return a function that makes a call with the present native objects and factors, and its words.

        These are its pointers to device memory, which may be others when the function is called.
        """
        objects = dict(self.objects)
        ints = [arg if isinstance(arg, int) and self._is_of_host(arg) else None for arg in args]
        copies = [arg and ctypes.create_string_buffer(ctypes.string_at(arg, 16)) for arg in ints]
        now = [ctypes.addressof(copy) if copy else arg for copy, arg in zip(copies, args, strict=True)]
        now = [_kept(arg) if isinstance(arg, DESCRIPTIONS) else arg for arg in now]
        moving = [
            place
            for place, arg in enumerate(args)
            if isinstance(arg, int) and arg > 2**32 and not copies[place]
        ]
        words = [args[place] for place in moving]
        packs = [cast(args[2], ctypes.c_void_p).value or 0] if name == "cudnnBackendExecute" else []
        if packs:
            words = [pointer or 0 for pointer in self._attributes(args[2])["VARIANT_PACK_DATA_POINTERS"]]

        def launch(words: list[int], _: Any = copies) -> None:
            given, known = list(now), dict(objects)
            for pack in packs:
                attributes = {**known[pack]["attributes"], "VARIANT_PACK_DATA_POINTERS": words}
                known[pack] = {**known[pack], "attributes": attributes}
            if not packs:
                for place, word in zip(moving, words, strict=True):
                    given[place] = word
            self._recorded.objects = known  # of this thread
            try:
                assert not body(*given)
            finally:
                self._recorded.objects = None

        return launch, words

    def _is_of_host(self, address: int) -> bool:
        """Whether an argument is an address in host memory, such as that of a factor."""
        device = any(
            one.handle <= address < one.handle + one.size + 64 for one in list(self.host.live.values())
        )
        return address > 2**32 and not device and not movable.BASE // 2 <= address < 2 * movable.BASE

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    # --- library ---

    def cudnnGetVersion(self) -> int:
        return VERSION

    def cudnnGetCudartVersion(self) -> int:
        return 13000

    def cudnnGetLastErrorString(self, message: Any, size: int) -> None:
        text = b"the fake was told to fail\0"
        ctypes.memmove(message, text, min(size, len(text)))

    # --- objects ---

    def _create(self, out: Any, kind: str, **state: Any) -> None:
        address = next(self._addresses)
        self.objects[address] = {"kind": kind, **state}
        out[0] = cast(address, type(out[0]))

    def _get(self, pointer: Any, kind: str) -> dict[str, Any]:
        address = cast(pointer, ctypes.c_void_p).value or 0
        state = (getattr(self._recorded, "objects", None) or {}).get(address) or self.objects.get(address)
        assert state is not None, f"a {kind} that does not exist"
        assert state["kind"] == kind, f"a {state['kind']} where a {kind} is due"
        return state

    def _destroy(self, pointer: Any) -> None:
        del self.objects[cast(pointer, ctypes.c_void_p).value or 0]

    def cudnnCreate(self, out: Any) -> None:
        self._create(out, "handle", device=self.host.device, stream=0)

    def cudnnSetStream(self, handle: Any, stream: int | None) -> None:
        self.host.check_stream(stream or 0)
        self._get(handle, "handle")["stream"] = stream or 0

    def cudnnGetStream(self, handle: Any, stream: Any) -> None:
        stream[0] = self._get(handle, "handle")["stream"]

    def cudnnGetCallback(self, *_: Any) -> None:
        """The process has no callback for messages."""

    def cudnnSetCallback(self, *_: Any) -> None:
        """No messages are logged."""

    cudnnCreateTensorDescriptor = partialmethod(_create, kind="tensor")
    cudnnCreateFilterDescriptor = partialmethod(_create, kind="filter")
    cudnnCreateConvolutionDescriptor = partialmethod(_create, kind="convolution", groups=1, math=0)

    def cudnnDestroy(self, pointer: Any) -> None:
        made_on = self._get(pointer, "handle")["device"]
        assert made_on == self.host.device, f"a handle of device {made_on} is destroyed on {self.host.device}"
        self._destroy(pointer)

    cudnnDestroyTensorDescriptor = _destroy
    cudnnDestroyFilterDescriptor = _destroy
    cudnnDestroyConvolutionDescriptor = _destroy

    # --- descriptors ---

    def cudnnSetTensorNdDescriptor(self, tensor: Any, code: int, axes: int, dims: Any, strides: Any) -> int:
        if code in WITHOUT_DESCRIPTOR:
            return BAD_PARAM
        shape, steps = tuple(dims[:axes]), tuple(strides[:axes])
        if axes < 2 or min(shape) < 1 or min(steps) < 1:
            return BAD_PARAM
        if np.prod(shape) > self.max_elements:
            return NOT_SUPPORTED
        self._get(tensor, "tensor").update(dtype=BY_CODE[code], shape=shape, strides=steps)
        return 0

    def cudnnGetTensorNdDescriptor(
        self, tensor: Any, room: int, code: Any, axes: Any, dims: Any, strides: Any
    ) -> None:
        state = self._get(tensor, "tensor")
        code[0], axes[0] = state["dtype"].code, len(state["shape"])
        for i, (n, s) in enumerate(zip(state["shape"][:room], state["strides"], strict=False)):
            dims[i], strides[i] = n, s

    def cudnnSetFilterNdDescriptor(self, filters: Any, code: int, form: int, axes: int, dims: Any) -> None:
        k, c, *window = dims[:axes]
        order = [k, *window, c] if form == 1 else [k, c, *window]  # in memory; 1 is NHWC
        strides = [int(np.prod(order[axis + 1 :])) for axis in range(axes)]
        if form == 1:
            strides.insert(1, strides.pop())
        self._get(filters, "filter").update(
            dtype=BY_CODE[code], shape=(k, c, *window), strides=tuple(strides), form=form
        )

    def cudnnSetConvolutionNdDescriptor(
        self, convolution: Any, axes: int, padding: Any, stride: Any, dilation: Any, mode: int, code: int
    ) -> None:
        self._get(convolution, "convolution").update(
            padding=tuple(padding[:axes]),
            stride=tuple(stride[:axes]),
            dilation=tuple(dilation[:axes]),
            flip=mode == 0,
            compute=BY_CODE[code],
        )

    def cudnnSetConvolutionGroupCount(self, convolution: Any, groups: int) -> None:
        self._get(convolution, "convolution")["groups"] = groups

    def cudnnSetConvolutionMathType(self, convolution: Any, math: int) -> None:
        self._get(convolution, "convolution")["math"] = math

    def cudnnGetConvolutionNdForwardOutputDim(
        self, convolution: Any, x: Any, w: Any, axes: int, dims: Any
    ) -> None:
        layer, images, filters = (
            self._get(one, kind) for one, kind in ((convolution, "convolution"), (x, "tensor"), (w, "filter"))
        )
        geometry = zip(
            images["shape"][2:], filters["shape"][2:], layer["padding"], layer["stride"], strict=True
        )
        sizes = [(length + 2 * pad - window) // step + 1 for length, window, pad, step in geometry]
        for axis, length in enumerate((images["shape"][0], filters["shape"][0], *sizes)):
            dims[axis] = length

    # --- convolution ---

    def _heuristics(self, name: str, handle: Any, *arguments: Any) -> None:
        one, two, convolution, three, *table = arguments
        direction = globals()[name]  # tests replace it
        descriptors = dict(zip(direction.roles, (one, two, three), strict=True))
        image = descriptors["y" if direction.roles[0] == "w" else "x"]
        self._rank(handle, image, descriptors["w"], convolution, direction, *table)

    def _rank(
        self, handle: Any, image: Any, w: Any, convolution: Any, direction: Direction, *table: Any
    ) -> None:
        """Offer ``also_offered`` and two algorithms, and reject a third.

        As in cuDNN 9.19 neither supports NHWC filters over NCHW images, nor three axes of float64 in NHWC:
        an operand has to be copied first.
        """
        self._get(handle, "handle")
        room, count, rows = table
        images = self._get(image, "tensor")
        last = self._get(w, "filter")["form"] == 1
        mixed = last and images["strides"][1] != 1
        mixed |= last and len(images["shape"]) == 5 and images["dtype"].name == "float64"
        for i, name in enumerate([*self.also_offered, *direction.offered][:room]):
            row = rows[i]
            row.algo = direction.algorithms[name]
            rejected = name == direction.offered[2] or name in self.refused or mixed
            row.status = NOT_SUPPORTED if rejected else 0
            row.memory = self.workspaces.get(name, 0)
            row.determinism, row.mathType = int(name not in self.random), self.math_of_rows
            count[0] = i + 1

    def _workspace_size(self, name: str, *arguments: Any) -> None:
        *_, algorithm, size = arguments
        size[0] = self.workspaces.get(globals()[name].algorithms(algorithm).name, 0)

    def _convolve(self, direction_name: str, handle: Any, alpha: int, *arguments: Any) -> int:
        direction = globals()[direction_name]
        one, p1, two, p2, convolution, algorithm, workspace, workspace_size, beta, three, p3 = arguments
        assert self._get(handle, "handle")["device"] == self.host.device, "a handle of another device"
        name = direction.algorithms(algorithm).name
        if (
            getattr(self._recorded, "objects", None) is None
        ):  # else a graph is launched, which rejects nothing
            if workspace_size < self.workspaces.get(name, 0):
                return BAD_PARAM
            if name in self.unrunnable:
                return NOT_SUPPORTED
        self.host.clock += self.costs.get(name, 1.0)
        if workspace_size:
            self.host.check(workspace or 0, workspace_size)
            view(self.host, workspace or 0, (workspace_size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        layer = self._get(convolution, "convolution")
        memory = {
            role: self._memory(descriptor, "filter" if role == "w" else "tensor", pointer)
            for role, descriptor, pointer in zip(
                direction.roles, (one, two, three), (p1, p2, p3), strict=True
            )
        }
        if memory["x"].dtype == np.int8:
            assert not (p1 | p2 | p3) % 16, "misaligned int8 operands"
        a, b = factors(layer["compute"].numpy, alpha, beta)
        result = direction.roles[-1]
        # The old content of a result may be a signalling NaN, for which the cast warns.
        wide = {role: array.astype(np.float64) for role, array in memory.items() if role != result}
        wide[result] = np.zeros(memory[result].shape)
        slide(result, wide, layer)
        store(memory[result], a * wide[result], b)
        return 0

    def cudnnConvolutionBackwardBias(
        self, handle: Any, alpha: int, dy: Any, read: int, beta: int, db: Any, written: int
    ) -> int:
        if self._get(dy, "tensor")["dtype"].name == "bfloat16":
            return NOT_SUPPORTED
        assert read % 16 == 0, "on a GPU, this may end the CUDA context"
        source, target = self._memory(dy, "tensor", read), self._memory(db, "tensor", written)
        a, b = factors(source.dtype, alpha, beta)
        store(target, a * source.astype(np.float64).sum((0, *range(2, source.ndim)), keepdims=True), b)
        return 0

    # --- elementwise ---

    def cudnnTransformTensor(
        self, handle: Any, alpha: int, x: Any, read: int, beta: int, y: Any, written: int
    ) -> int:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        if source.shape != target.shape or source.dtype != target.dtype or source.dtype == np.int32:
            return BAD_PARAM
        a, b = factors(source.dtype, alpha, beta)
        with np.errstate(invalid="ignore"):
            store(
                target, a * source.astype(np.float64) if a else 0.0, b
            )  # as cuDNN 9.19, which does not read x
        return 0

    def cudnnSetTensor(self, handle: Any, y: Any, pointer: int, value: int) -> int:
        if len(self._get(y, "tensor")["shape"]) < 4:
            return NOT_SUPPORTED
        target = self._memory(y, "tensor", pointer)
        held = np.dtype(np.float32) if target.itemsize == 2 else target.dtype  # as seen of cuDNN 9.19
        raw = (ctypes.c_uint8 * held.itemsize).from_address(value)
        target[...] = np.frombuffer(raw, held)[0].astype(target.dtype)
        return 0

    def cudnnScaleTensor(self, handle: Any, y: Any, pointer: int, alpha: int) -> None:
        target = self._memory(y, "tensor", pointer)
        store(target, np.zeros(target.shape), *factors(target.dtype, alpha))

    def _memory(self, descriptor: Any, kind: str, pointer: int) -> np.ndarray:
        state = self._get(descriptor, kind)
        return view(self.host, pointer, state["shape"], state["strides"], state["dtype"].numpy)


def _kept(pointer: Any) -> Any:
    """Return a pointer to a copy of a structure, which the caller may drop after the call."""
    return ctypes.pointer(type(pointer.contents).from_buffer_copy(pointer.contents))


def store(target: np.ndarray, result: np.ndarray, beta: float) -> None:
    """Write a result plus ``beta`` times the contents; they are not read if ``beta`` is 0."""
    with np.errstate(all="ignore"):
        before = beta * target.astype(np.float64) if beta else 0
        target[...] = np.asarray(result + before).astype(target.dtype)


for _name, _direction in (
    ("Forward", "FORWARD"),
    ("BackwardData", "BACKWARD_DATA"),
    ("BackwardFilter", "BACKWARD_FILTER"),
):
    setattr(FakeCudnn, f"cudnnConvolution{_name}", partialmethod(FakeCudnn._convolve, _direction))
    _heuristics = partialmethod(FakeCudnn._heuristics, _direction)
    setattr(FakeCudnn, f"cudnnGetConvolution{_name}Algorithm_v7", _heuristics)
    _workspace_size = partialmethod(FakeCudnn._workspace_size, _direction)
    setattr(FakeCudnn, f"cudnnGetConvolution{_name}WorkspaceSize", _workspace_size)
