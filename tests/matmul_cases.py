"""Products of matrices as values that all tiers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudnn_ct.shapes.arithmetic import FLOAT8
from cudnn_ct.shapes.matmul import matmul_shape
from tests.layers import FLOATS, LayerCase, Tensor, lying

PRODUCTS = ("matmul", "matmul_backward", "scaled_matmul")
ACTIVATIONS = (None, "identity", "relu", "gelu", "gelu_tanh", "silu", "swish", "sigmoid", "tanh")
LEGACY = (None, "identity", "relu", "silu", "sigmoid", "tanh")  # of products without tensor cores

Shape = tuple[int, ...]


@st.composite
def matmul_shapes(draw: st.DrawFn, longest: int = 5, empty: bool = True) -> tuple[Shape, Shape]:
    """Shapes of two operands that `numpy.matmul` multiplies, whose batch axes may be broadcast."""
    lengths = st.integers(1, longest)
    rows, terms, columns = draw(st.tuples(lengths, lengths, lengths))
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    if empty and draw(st.integers(0, 9)) == 0:
        batch.append(0)
    own = [
        tuple(draw(st.sampled_from((n, n, 1))) for n in batch[draw(st.integers(0, len(batch))) :])
        for _ in "ab"
    ]
    a, b = (*own[0], rows, terms), (*own[1], terms, columns)
    if len(a) == 2 and draw(st.integers(0, 5)) == 0:
        a = a[1:]
    if len(b) == 2 and draw(st.integers(0, 5)) == 0:
        b = b[:1]
    return a, b


@st.composite
def matmul_cases(
    draw: st.DrawFn, *, dtypes: Sequence[str] = FLOATS, operations: Sequence[str] = PRODUCTS, longest: int = 5
) -> LayerCase:
    """A product with an epilogue, a product of float8, or the gradient of a product."""
    operation = draw(st.sampled_from(operations))
    shapes = draw(matmul_shapes(longest))
    if operation == "scaled_matmul":
        return _scaled(draw, *shapes)
    dtype = draw(st.sampled_from(dtypes))
    a, b = (_operand(draw, shape, dtype) for shape in shapes)
    y = matmul_shape(*shapes)
    terms = float(shapes[0][-1])
    if operation == "matmul_backward":
        keywords: dict[str, Any] = {"alpha": draw(st.sampled_from((1, 0.5)))}
        if len(shapes[1]) > 1:
            keywords["bias_gradient"] = draw(st.booleans())
        dy = lying(draw, y, dtype)
        return LayerCase(operation, (dy, a, b), keywords, terms=dict.fromkeys(("da", "db", "dbias"), 400.0))
    keywords = {"activation": draw(st.sampled_from(LEGACY if dtype == "float64" else ACTIVATIONS))}
    keywords["alpha"] = draw(st.sampled_from((1, 0.5, -2)))
    outs: dict[str, Tensor] = {}
    if len(shapes[1]) > 1 and draw(st.booleans()):
        outs["bias"] = lying(draw, shapes[1][-1:], dtype)
    if draw(st.booleans()):
        outs["residual"] = lying(draw, y, dtype)
    if draw(st.booleans()):
        outs["out"] = lying(draw, y, dtype, "nan")
    return LayerCase(operation, (a, b), keywords, outs, terms={"out": 40 * terms})


def _operand(draw: st.DrawFn, shape: Shape, dtype: str) -> Tensor:
    """An operand in any view; the values are small integers."""
    return lying(draw, shape, dtype)


def _scaled(draw: st.DrawFn, first: Shape, second: Shape) -> LayerCase:
    """A product of float8 matrices, whose lengths are multiples of 16."""
    m, k = (1, *first)[-2:] if len(first) < 2 else first[-2:]
    n = second[-1] if len(second) > 1 else 1
    a, b = (*first[:-2], 16 * m, 16 * k), (*second[:-2], 16 * k, 16 * n)
    operands = tuple(Tensor(shape, draw(st.sampled_from(FLOAT8)), seed=7) for shape in (a, b))
    keywords: dict[str, Any] = {"out_dtype": draw(st.sampled_from(("float32", "bfloat16")))}
    outs: dict[str, Tensor] = {}
    for name in ("descale_a", "descale_b", "scale"):
        if draw(st.booleans()):
            outs[name] = Tensor((1,), "float32", np.asarray([draw(st.sampled_from((0.5, 2.0)))]))
    if len(a) <= 2 or len(b) <= 2:  # other batch axes may need several products
        keywords["amax"] = draw(st.booleans())
    return LayerCase("scaled_matmul", operands, keywords, outs, terms={"y": 40.0})
