"""Nodes of the fake's graphs for products of matrices and their epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

GELU = {
    "GELU_FWD": lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2,
    "GELU_APPROX_TANH_FWD": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


class MatmulNodes:
    """A part of the fake's graphs, computed in float64."""

    def _matmul_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        """Multiply matrices of three axes; cuDNN has no engine for others."""
        a, b, c = (node[f"OPERATION_MATMUL_{name}DESC"][0] for name in "ABC")
        for tensor in (a, b, c):
            found = self._attributes(tensor)
            lengths, strides = found["TENSOR_DIMENSIONS"], found["TENSOR_STRIDES"]
            assert len(lengths) == 3, f"an operand of a product has the shape {lengths}"
            assert 1 in strides[1:], f"an operand of a product has the strides {strides}"
        with np.errstate(all="ignore"):
            product = self._read(a, *tensors) @ self._read(b, *tensors)
        shape = tuple(self._attributes(c)["TENSOR_DIMENSIONS"])
        assert product.shape == shape, f"the product has the shape {product.shape}, its tensor {shape}"
        self._write(c, product, *tensors)

    def _amax_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x, y = (node[f"OPERATION_REDUCTION_{name}DESC"][0] for name in "XY")
        axes = tuple(
            axis for axis, length in enumerate(self._attributes(y)["TENSOR_DIMENSIONS"]) if length == 1
        )
        self._write(y, np.abs(self._read(x, *tensors)).max(axis=axes, keepdims=True), *tensors)
