"""Products of matrices that cuBLASLt computes, as values that all tiers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.matmul import matmul_shape
from tests.layers import LayerCase, Tensor, compare, lying, several
from tests.matmul_cases import matmul_shapes
from tests.strategies import own

DTYPES = ("float16", "bfloat16", "float32", "float64")
ACTIVATIONS = (None, "identity", "relu", "gelu_tanh")


@st.composite
def product_cases(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[str] = (*DTYPES, "float8_e4m3"),
    longest: int = 5,
    float8_rows: int = 3,
) -> LayerCase:
    """A product whose dtypes and epilogue cuBLASLt has, of operands in any view, by its first algorithm."""
    dtype = draw(st.sampled_from(dtypes))
    if dtype.startswith("float8"):
        return _scaled(draw)
    shapes = draw(matmul_shapes(longest, empty=False))
    y = matmul_shape(*shapes)
    a, b = (lying(draw, shape, dtype) for shape in shapes)
    plain = dtype == "float64"
    keywords: dict[str, Any] = {
        "activation": None if plain else draw(st.sampled_from(ACTIVATIONS)),
        "alpha": draw(st.sampled_from((1, 0.5, -2))),
    }
    if dtype == "float32" and draw(st.booleans()):
        keywords["precision"] = "float32"
    outs: dict[str, Tensor] = {}
    if len(shapes[1]) > 1 and not plain and draw(st.booleans()):
        outs["bias"] = Tensor(shapes[1][-1:], dtype, seed=3)
    if draw(st.booleans()):
        outs["residual"] = lying(draw, y, dtype)
    if draw(st.booleans()):
        outs["out"] = lying(draw, y, dtype, "nan")
    return LayerCase("matmul", (a, b), keywords, outs, terms={"out": 40.0 * shapes[0][-1]})


def _scaled(draw: st.DrawFn) -> LayerCase:
    """A product of float8 matrices, the second one by columns, as GPUs before Blackwell need them."""
    m, n, k = (16 * draw(st.integers(1, 3)) for _ in range(3))
    batch = draw(st.sampled_from(((), (1,), (3,))))
    kinds = draw(st.sampled_from((("float8_e4m3", "float8_e4m3"), ("float8_e5m2", "float8_e4m3"))))
    operands = (
        Tensor((*batch, m, k), kinds[0], seed=draw(st.integers(0, 99))),
        Tensor((*batch, k, n), kinds[1], view="transposed", seed=draw(st.integers(0, 99))),
    )
    result = draw(st.sampled_from(("bfloat16", "float16", "float32", "float8_e4m3")))
    keywords: dict[str, Any] = {"out_dtype": result, "activation": draw(st.sampled_from(ACTIVATIONS))}
    outs: dict[str, Tensor] = {}
    factors = ["descale_a", "descale_b", *(["scale"] if result == "float8_e4m3" else [])]
    for name in factors:
        if draw(st.booleans()):
            value = 2.0**-6 if name == "scale" else draw(st.sampled_from((0.5, 2.0)))
            outs[name] = Tensor((1,), "float32", np.asarray([value]))
    if result == "float8_e4m3":
        keywords["amax"] = draw(st.booleans())
    elif draw(st.booleans()):
        outs["residual"] = Tensor((*batch, m, n), result, seed=5)
    if result != "float32" and draw(st.booleans()):
        halves = ("bfloat16", "float16") if result == "float8_e4m3" else (result,)
        outs["bias"] = Tensor((n,), draw(st.sampled_from(halves)), seed=6)
    return LayerCase("scaled_matmul", operands, keywords, outs, terms={"y": 40.0})


def check_product(case: LayerCase, algo: str = "cublaslt 0", tolerance: float | None = None) -> bool:
    """Compare a product by an algorithm with the reference; out is written in place.

    Return False for a product that is not supported: cuBLASLt needs operands that are aligned, and cuDNN has
    no engine for GELU without tensor cores.
    """
    operands = [one.array() for one in case.operands if one]
    more = {name: one.array() for name, one in case.outs.items()}
    placed = {name: own(array) for name, array in more.items()}
    try:
        got = getattr(ct, case.operation)(*map(own, operands), **case.keywords, **placed, algo=algo)
    except ct.NotSupportedError as error:
        assert {"activation": "gelu_tanh", "precision": "float32"}.items() <= case.keywords.items()
        assert "operands are not 16-byte aligned" in str(error)
        return False
    known = {name: value for name, value in case.keywords.items() if name != "precision"}
    wanted = getattr(ct.reference, case.operation)(*operands, **known, **more)
    places = [*zip(several(got), several(wanted), strict=True)]
    places += [(placed["out"], several(wanted)[0])] if "out" in placed else []
    for one, other in places:
        if other is not None and other.dtype.itemsize == 1:  # sums may be on either side of a middle
            ours, theirs = (np.asarray(array).astype(np.float32) for array in (one.numpy(), other))
            within = np.isfinite(theirs)  # values beyond the range may be saturated
            assert not np.any(np.abs(ours[~within]) < float(ml_dtypes.finfo(other.dtype).max))
            ours, theirs = ours[within], theirs[within]
            np.testing.assert_allclose(ours, theirs, rtol=0.13, atol=2.0**-8)
        else:
            compare(one, other, tolerance=tolerance, terms=max(case.terms.values()))
    return True
