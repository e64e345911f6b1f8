"""A cuDNN of Python functions behind the real prototypes: it computes, and can be told to fail.

Each function is a ``CFUNCTYPE`` of its generated prototype, so arguments pass through ctypes as they do on
the way to C. What a function computes is written here, apart from `cudnn_ct.reference`: loops over the memory
behind the pointers, read by the shapes and strides that the descriptors were given.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import CFUNCTYPE, cast
from typing import Any, NamedTuple

import numpy as np

from cudnn_ct._bindings.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo, ConvolutionFwdAlgo
from cudnn_ct._bindings.functions import FUNCTIONS
from cudnn_ct._lib import Library
from cudnn_ct.dtypes import DTYPES

from .convolution import slide
from .ctc import CTC
from .dropout import Dropout
from .graphs import Graphs
from .host import Host, view
from .layers import Layers
from .norm import Norm
from .pointwise import Pointwise
from .rnn import Recurrent
from .spatial import Spatial
from .tensors import Tensors

VERSION = 91900
BAD_PARAM, NOT_SUPPORTED = 2000, 3000

_BY_CODE = {row.code: row for row in DTYPES.values()}


class Names(NamedTuple):
    """One direction: its enum, the algorithms on offer (the last is refused), the order of operands."""

    algorithms: Any
    offered: tuple[str, str, str]
    roles: tuple[str, str, str]


FORWARD = Names(ConvolutionFwdAlgo, ("GEMM", "IMPLICIT_GEMM", "DIRECT"), ("x", "w", "y"))
BACKWARD_DATA = Names(ConvolutionBwdDataAlgo, ("ALGO_1", "ALGO_0", "FFT"), ("w", "y", "x"))
BACKWARD_FILTER = Names(ConvolutionBwdFilterAlgo, ("ALGO_1", "ALGO_0", "FFT"), ("x", "y", "w"))


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


class FakeCudnn(CTC, Dropout, Graphs, Layers, Norm, Pointwise, Recurrent, Spatial, Tensors):
    """The fake's state: native objects that are alive, calls so far, and the failures that were ordered."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.objects: dict[int, dict[str, Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
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
        self.moved: dict[str, int] = {}  # by how many bytes an algorithm has weights elsewhere
        self._addresses = itertools.count(0x1000, 16)

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
                return NOT_SUPPORTED if body is None else body(*args) or 0
            except BaseException as error:  # ctypes would print it and go on
                self.raised = error
                return -1

        return CFUNCTYPE(prototype.restype, *prototype.argtypes)(function)

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
        state = self.objects.get(cast(pointer, ctypes.c_void_p).value or 0)
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

    def cudnnCreateTensorDescriptor(self, out: Any) -> None:
        self._create(out, "tensor")

    def cudnnCreateFilterDescriptor(self, out: Any) -> None:
        self._create(out, "filter")

    def cudnnCreateConvolutionDescriptor(self, out: Any) -> None:
        self._create(out, "convolution", groups=1, math=0)

    def cudnnDestroy(self, pointer: Any) -> None:
        made_on = self._get(pointer, "handle")["device"]
        assert made_on == self.host.device, f"a handle of device {made_on} is destroyed on {self.host.device}"
        self._destroy(pointer)

    cudnnDestroyTensorDescriptor = _destroy
    cudnnDestroyFilterDescriptor = _destroy
    cudnnDestroyConvolutionDescriptor = _destroy

    # --- descriptors ---

    def cudnnSetTensorNdDescriptor(self, tensor: Any, code: int, axes: int, dims: Any, strides: Any) -> int:
        shape, steps = tuple(dims[:axes]), tuple(strides[:axes])
        if axes < 2 or min(shape) < 1 or min(steps) < 1:
            return BAD_PARAM
        self._get(tensor, "tensor").update(dtype=_BY_CODE[code], shape=shape, strides=steps)
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
        if form == 1:  # NHWC: K, window, C in memory
            steps = [c]
            for n in reversed(window[1:]):
                steps.insert(0, steps[0] * n)
            strides = (steps[0] * window[0], 1, *steps)
        else:
            steps = [1]
            for n in reversed([c, *window][1:]):
                steps.insert(0, steps[0] * n)
            strides = (steps[0] * c, *steps)
        self._get(filters, "filter").update(
            dtype=_BY_CODE[code], shape=(k, c, *window), strides=strides, form=form
        )

    def cudnnSetConvolutionNdDescriptor(
        self, convolution: Any, axes: int, padding: Any, stride: Any, dilation: Any, mode: int, code: int
    ) -> None:
        self._get(convolution, "convolution").update(
            padding=tuple(padding[:axes]),
            stride=tuple(stride[:axes]),
            dilation=tuple(dilation[:axes]),
            flip=mode == 0,
            compute=_BY_CODE[code],
        )

    def cudnnSetConvolutionGroupCount(self, convolution: Any, groups: int) -> None:
        self._get(convolution, "convolution")["groups"] = groups

    def cudnnSetConvolutionMathType(self, convolution: Any, math: int) -> None:
        self._get(convolution, "convolution")["math"] = math

    # --- convolution ---

    def cudnnGetConvolutionForwardAlgorithm_v7(self, handle: Any, *arguments: Any) -> None:
        x, w, convolution, _, room, count, rows = arguments
        self._rank(handle, x, w, convolution, FORWARD, room, count, rows)

    def cudnnGetConvolutionBackwardDataAlgorithm_v7(self, handle: Any, *arguments: Any) -> None:
        w, dy, convolution, _, room, count, rows = arguments
        self._rank(handle, dy, w, convolution, BACKWARD_DATA, room, count, rows)

    def cudnnGetConvolutionBackwardFilterAlgorithm_v7(self, handle: Any, *arguments: Any) -> None:
        x, _, convolution, dw, room, count, rows = arguments
        self._rank(handle, x, dw, convolution, BACKWARD_FILTER, room, count, rows)

    def _rank(
        self,
        handle: Any,
        image: Any,
        w: Any,
        convolution: Any,
        names: Names,
        room: int,
        count: Any,
        rows: Any,
    ) -> None:
        """Offer ``also_offered`` and two algorithms, and refuse a third.

        As in cuDNN 9.19 there is neither for NHWC filters over NCHW images, nor for three axes of float64 in
        NHWC: some operand has to be copied first.
        """
        self._get(handle, "handle")
        images, last = self._get(image, "tensor"), self._get(w, "filter")["form"] == 1
        mixed = last and images["strides"][1] != 1
        mixed |= last and len(images["shape"]) == 5 and images["dtype"].name == "float64"
        for i, name in enumerate([*self.also_offered, *names.offered][:room]):
            row = rows[i]
            row.algo = names.algorithms[name]
            refused = name == names.offered[2] or name in self.refused or mixed
            row.status = NOT_SUPPORTED if refused else 0
            row.memory = self.workspaces.get(name, 0)
            row.determinism, row.mathType = int(name not in self.random), self.math_of_rows
            count[0] = i + 1

    def cudnnGetConvolutionForwardWorkspaceSize(self, *arguments: Any) -> None:
        arguments[-1][0] = self.workspaces.get(ConvolutionFwdAlgo(arguments[-2]).name, 0)

    def cudnnGetConvolutionBackwardDataWorkspaceSize(self, *arguments: Any) -> None:
        arguments[-1][0] = self.workspaces.get(ConvolutionBwdDataAlgo(arguments[-2]).name, 0)

    def cudnnGetConvolutionBackwardFilterWorkspaceSize(self, *arguments: Any) -> None:
        arguments[-1][0] = self.workspaces.get(ConvolutionBwdFilterAlgo(arguments[-2]).name, 0)

    def cudnnConvolutionForward(self, *arguments: Any) -> int:
        return self._convolve(FORWARD, *arguments)

    def cudnnConvolutionBackwardData(self, *arguments: Any) -> int:
        return self._convolve(BACKWARD_DATA, *arguments)

    def cudnnConvolutionBackwardFilter(self, *arguments: Any) -> int:
        return self._convolve(BACKWARD_FILTER, *arguments)

    def _convolve(
        self,
        names: Names,
        handle: Any,
        alpha: int,
        first: Any,
        first_pointer: int,
        second: Any,
        second_pointer: int,
        convolution: Any,
        algorithm: int,
        workspace: int | None,
        workspace_size: int,
        beta: int,
        result: Any,
        result_pointer: int,
    ) -> int:
        assert self._get(handle, "handle")["device"] == self.host.device, "a handle of another device"
        name = names.algorithms(algorithm).name
        if workspace_size < self.workspaces.get(name, 0):
            return BAD_PARAM
        if name in self.unrunnable:
            return NOT_SUPPORTED
        self.host.clock += self.costs.get(name, 1.0)
        if workspace_size:
            self.host.check(workspace or 0, workspace_size)
            view(self.host, workspace or 0, (workspace_size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        layer = self._get(convolution, "convolution")
        pairs = zip(
            names.roles, (first, second, result), (first_pointer, second_pointer, result_pointer), strict=True
        )
        memory = {
            role: self._memory(descriptor, "filter" if role == "w" else "tensor", pointer)
            for role, descriptor, pointer in pairs
        }
        if memory["x"].dtype == np.int8:
            assert not (first_pointer | second_pointer | result_pointer) % 16, "misaligned int8 operands"
        scalar = ctypes.c_double if layer["compute"].name == "float64" else ctypes.c_float
        a, b = (scalar.from_address(pointer).value for pointer in (alpha, beta))
        target = memory[names.roles[-1]]
        wide = {role: array.astype(np.float64) for role, array in memory.items()}
        wide[names.roles[-1]] = np.zeros(target.shape)
        slide(names.roles[-1], wide, layer)
        sums = wide[names.roles[-1]]
        target[...] = (a * sums + (b * target.astype(np.float64) if b else 0)).astype(target.dtype)
        return 0

    def cudnnConvolutionBackwardBias(
        self, handle: Any, alpha: int, dy: Any, read: int, beta: int, db: Any, written: int
    ) -> int:
        if self._get(dy, "tensor")["dtype"].name == "bfloat16":
            return NOT_SUPPORTED
        assert read % 16 == 0, "on a GPU, this may end the CUDA context"
        source, target = self._memory(dy, "tensor", read), self._memory(db, "tensor", written)
        scalar = ctypes.c_double if source.dtype == np.float64 else ctypes.c_float
        a, b = (scalar.from_address(pointer).value for pointer in (alpha, beta))
        for channel in range(target.shape[1]):
            total = a * source[:, channel].astype(np.float64).sum()
            before = b * target[:, channel].astype(np.float64) if b else 0
            target[:, channel] = (total + before).astype(target.dtype) if b else total
        return 0

    # --- elementwise ---

    def cudnnTransformTensor(
        self, handle: Any, alpha: int, x: Any, read: int, beta: int, y: Any, written: int
    ) -> int:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        if source.shape != target.shape or source.dtype != target.dtype:
            return BAD_PARAM
        scalar = ctypes.c_double if source.dtype == np.float64 else ctypes.c_float
        a, b = (scalar.from_address(pointer).value for pointer in (alpha, beta))
        wide = np.float64
        target[...] = (a * source.astype(wide) + (b * target.astype(wide) if b else 0)).astype(target.dtype)
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
        scalar = ctypes.c_double if target.dtype == np.float64 else ctypes.c_float
        factor = scalar.from_address(alpha).value
        target[...] = (factor * target.astype(np.float64)).astype(target.dtype)

    def _memory(self, descriptor: Any, kind: str, pointer: int) -> np.ndarray:
        state = self._get(descriptor, kind)
        return view(self.host, pointer, state["shape"], state["strides"], state["dtype"].numpy)
