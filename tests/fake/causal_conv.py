"""Causal convolutions of the fake cuDNN, by the reference in float64, in both layouts."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.causal_conv import WIDTHS
from cudnn_ct.shapes.specs import TensorSpec

from .host import view

_BY_CODE = {row.code: row for row in DTYPES.values()}
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
            view(self.host, pointer, *kind, _BY_CODE[code].numpy)
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
        if (_BY_CODE[wide].name == "float64") != (_BY_CODE[code].name == "float64"):
            return 3000
        groups, codes = ((x, dy, dx), (w,), (bias,), (), (dw,), (dbias,)), (code,) * 3 + (wide,) * 3
        x, dy, dx, w, bias, dw, dbias = self._causal_arrays(last, groups, tuple(shape), width, codes)
        operands = (one.astype(np.float64) for one in (dy, x, w, bias))
        found = ct.reference.causal_conv1d_backward(*operands, activation=ACTIVATIONS[activation])
        dx[...] = found.dx
        dw += found.dw.astype(dw.dtype)  # cuDNN adds to what is there
        assert found.dbias is not None
        dbias += found.dbias.astype(dbias.dtype)
        return 0

    cudnnCausalConv1dForward = partialmethod(_causal_forward, last=False)
    cudnnCausalConv1dNwhForward = partialmethod(_causal_forward, last=True)
    cudnnCausalConv1dBackward = partialmethod(_causal_backward, last=False)
    cudnnCausalConv1dNwhBackward = partialmethod(_causal_backward, last=True)
