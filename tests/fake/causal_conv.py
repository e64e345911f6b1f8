"""Causal convolutions of the fake cuDNN, by the reference in float64."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.shapes.causal_conv import WIDTHS, FFTCausalConvProblem
from cudnn_ct.shapes.specs import TensorSpec

from .host import BY_CODE, view

ACTIVATIONS = (None, "silu")


class Causal:
    """A part of the fake: functions that take a stream, and no handle or descriptor."""

    def _causal_arrays(self: Any, last: bool, pointers: Any, shape: Any, width: int, codes: Any) -> list[Any]:
        """The arrays at the pointers: images of sequences, then weights, then one number for each channel."""
        n, channels, length = shape
        assert n * channels * length > 0
        assert width in (WIDTHS[:-1] if last else WIDTHS)
        images = TensorSpec.packed(shape, "float32", "nhwc" if last else "nchw").strides
        kinds = (
            (shape, images),
            ((channels, width), (1, channels) if last else (width, 1)),
            ((channels,), (1,)),
        )
        assert not [hex(pointer) for group in pointers for pointer in group if pointer % 16]
        return [
            view(self.host, pointer, *kind, BY_CODE[code].numpy)
            for kind, group, code in zip((*kinds, *kinds), pointers, codes, strict=False)
            for pointer in group
        ]

    def _causal_forward(self: Any, stream: Any, *arguments: Any, last: bool) -> int:
        x, w, bias, y, *shape, width, code, activation = arguments
        self.host.check_stream(stream or 0)
        groups = ((x, y), (w,), (bias,))
        x, y, w, bias = self._causal_arrays(last, groups, tuple(shape), width, (code,) * 3)
        wide = (one.astype(np.float64) for one in (x, w, bias))
        y[...] = ct.reference.causal_conv1d(*wide, activation=ACTIVATIONS[activation])
        return 0

    def _causal_backward(self: Any, stream: Any, *arguments: Any, last: bool) -> int:
        x, w, bias, dy, dx, dw, dbias, *shape, width, code, wide, activation = arguments
        self.host.check_stream(stream or 0)
        if (BY_CODE[wide].name == "float64") != (BY_CODE[code].name == "float64"):
            return 3000
        groups, codes = ((x, dy, dx), (w,), (bias,), (), (dw,), (dbias,)), (code,) * 3 + (wide,) * 3
        x, dy, dx, w, bias, dw, dbias = self._causal_arrays(last, groups, tuple(shape), width, codes)
        operands = (one.astype(np.float64) for one in (dy, x, w, bias))
        found = ct.reference.causal_conv1d_backward(*operands, activation=ACTIVATIONS[activation])
        dx[...] = found.dx
        dw += found.dw.astype(dw.dtype)  # cuDNN adds to what is there
        dbias += found.dbias.astype(dbias.dtype)
        return 0

    def _contiguous(self: Any, pointers: Any, shapes: Any, code: int) -> list[Any]:
        """The contiguous arrays of one dtype at the pointers, which must be aligned."""
        assert not [hex(pointer) for pointer in pointers if pointer % 16]
        specs = [TensorSpec.packed(shape, "float32") for shape in shapes]
        dtype = BY_CODE[code].numpy
        return [
            view(self.host, pointer, spec.shape, spec.strides, dtype)
            for pointer, spec in zip(pointers, specs, strict=True)
        ]

    def _fft_forward(self: Any, x: Any, w: Any, y: Any, *sizes: Any) -> None:
        *shape, width, code = sizes
        x, w, y = self._contiguous((x, w, y), (shape, (shape[1], width), shape), code)
        y[...] = ct.reference.fft_causal_conv1d(x.astype(np.float64), w.astype(np.float64))

    def _fft_gradients(self: Any, dy: Any, x: Any, w: Any, dx: Any, dw: Any, *sizes: Any) -> None:
        *shape, width, code = sizes
        shapes = (shape, shape, (shape[1], width), shape, (shape[1], width))
        *given, dx, dw = self._contiguous((dy, x, w, dx, dw), shapes, code)
        dx[...], dw[...] = ct.reference.fft_causal_conv1d_backward(*(one.astype(np.float64) for one in given))

    def cudnnB2BCausalConv1dForward(self: Any, stream: Any, *arguments: Any) -> int:
        *pointers, n, channels, length, projection, mixer, code = arguments
        self.host.check_stream(stream or 0)
        operands, sequences = _gated_shapes(n, channels, length, projection, mixer)
        *given, mixed, y = self._contiguous(pointers, (*operands, sequences, sequences), code)
        y[...], mixed[...] = ct.reference.b2b_causal_conv1d(*(one.astype(np.float64) for one in given))
        return 0

    def cudnnB2BCausalConv1dBackward(self: Any, stream: Any, *arguments: Any) -> int:
        *pointers, n, channels, length, projection, mixer, code, wide = arguments
        self.host.check_stream(stream or 0)
        if (BY_CODE[wide].name == "float64") != (BY_CODE[code].name == "float64"):
            return 3000
        operands, sequences = _gated_shapes(n, channels, length, projection, mixer)
        shapes = (*operands, sequences, sequences, operands[0])
        *given, mixed, dy, dx = self._contiguous(pointers[:7], shapes, code)
        parameters = self._contiguous(pointers[7:], operands[1:], wide)
        every = (one.astype(np.float64) for one in (dy, *given, mixed))
        dx[...], *found = ct.reference.b2b_causal_conv1d_backward(*every)
        for memory, sums in zip(parameters, found, strict=True):
            memory += sums.astype(memory.dtype)  # as cudnnCausalConv1dBackward does
        return 0

    def cudnnFFTCausalConv1dForward(self: Any, stream: Any, *arguments: Any) -> int:
        self.host.check_stream(stream or 0)
        if not _problem(arguments[3:]).takes_tiles:
            return 3000
        self._fft_forward(*arguments)
        return 0

    def cudnnFFTCausalConv1dBackward(self: Any, stream: Any, *arguments: Any) -> int:
        x, w, dy, *rest = arguments
        self.host.check_stream(stream or 0)
        if not _problem(arguments[5:]).takes_tiles:
            return 3000
        self._fft_gradients(dy, x, w, *rest)
        return 0

    def cudnnLongFFTCausalConv1dGetBufferSizes(self: Any, *arguments: Any) -> int:
        *sizes, workspace, reserve = arguments
        if not _problem(sizes).takes_whole:
            return 3000
        workspace[0], reserve[0] = 4096, 32
        return 0

    def cudnnLongFFTCausalConv1dForward(self: Any, stream: Any, *arguments: Any) -> int:
        """Compute, and leave the addresses of the operands in the reserve space."""
        x, w, _, *sizes = arguments[:-4]
        self.host.check_stream(stream or 0)
        view(self.host, self._buffers(arguments), (2,), (1,), np.dtype(np.int64))[:] = x, w
        self._fft_forward(*arguments[:-4])
        return 0 if _problem(sizes).takes_whole else 3000

    def cudnnLongFFTCausalConv1dBackward(self: Any, stream: Any, *arguments: Any) -> int:
        dy, dx, dw, *sizes = arguments[:-4]
        self.host.check_stream(stream or 0)
        x, w = view(self.host, self._buffers(arguments), (2,), (1,), np.dtype(np.int64))
        self._fft_gradients(dy, int(x), int(w), dx, dw, *sizes)
        return 0

    def _buffers(self: Any, arguments: Any) -> int:
        """Overwrite the workspace, and return the address of the reserve space."""
        workspace, size, reserve, reserve_size = arguments[-4:]
        assert not (workspace | reserve) % 16
        assert (size, reserve_size) == (4096, 32)
        view(self.host, workspace, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        return int(reserve)

    cudnnCausalConv1dForward = partialmethod(_causal_forward, last=False)
    cudnnCausalConv1dNwhForward = partialmethod(_causal_forward, last=True)
    cudnnCausalConv1dBackward = partialmethod(_causal_backward, last=False)
    cudnnCausalConv1dNwhBackward = partialmethod(_causal_backward, last=True)


def _problem(sizes: Any) -> FFTCausalConvProblem:
    """Return a problem of the sizes of a C function, with the rules for its lengths."""
    *shape, width, code = sizes
    dtype = BY_CODE[code].name
    x, w = TensorSpec.packed(shape, dtype), TensorSpec.packed((shape[1], width), dtype)
    return FFTCausalConvProblem(x, w, x, None, None, None)


def _gated_shapes(n: int, channels: int, length: int, projection: int, mixer: int) -> Any:
    """Return the shapes of x and the parameters, and that of the results."""
    assert n * channels * length > 0
    assert 2 <= projection <= 32
    assert 2 <= mixer <= 256
    operands = ((n, channels, 3, length), (channels, 3, projection), (channels, mixer), (channels,))
    return operands, (n, channels, length)
