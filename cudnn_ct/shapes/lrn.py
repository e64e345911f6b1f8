"""Local response normalisation problems: channel windows and coefficients."""

from __future__ import annotations

from math import isfinite
from typing import Any

from .checks import Outs, Specs, check_images, one_dtype, result_spec, same_shape
from .layer import LayerProblem
from .parse import as_float, as_int
from .specs import LRNSpec

LRN_MAX_CHANNELS = 16  # CUDNN_LRN_MAX_N; the next two are CUDNN_LRN_MIN_K and CUDNN_LRN_MIN_BETA
LRN_MIN_K = 1e-5
LRN_MIN_BETA = 0.01


def lrn_window(n: int) -> tuple[int, int]:
    """Return how many channels a window of ``n`` channels covers before and after its own."""
    channels = as_int(n, "n")
    if not 1 <= channels <= LRN_MAX_CHANNELS:
        raise ValueError(f"n must be between 1 and {LRN_MAX_CHANNELS}: got {n}")
    before = (channels - 1) // 2
    return before, channels - before - 1


def check_lrn_factors(lrn_alpha: Any, lrn_beta: Any, k: Any) -> tuple[float, float, float]:
    """Return lrn_alpha, lrn_beta and k as floats, within cuDNN's limits."""
    factors = as_float(lrn_alpha, "lrn_alpha"), as_float(lrn_beta, "lrn_beta"), as_float(k, "k")
    if not all(map(isfinite, factors)):
        raise ValueError(f"lrn_alpha, lrn_beta and k must be finite: got {factors}")
    if factors[1] < LRN_MIN_BETA:
        raise ValueError(f"lrn_beta must be at least {LRN_MIN_BETA}: got {lrn_beta}")
    if factors[2] < LRN_MIN_K:
        raise ValueError(f"k must be at least {LRN_MIN_K}: got {k}")
    return factors


def lrn_problem(
    specs: Specs, outs: Outs, n: Any, lrn_alpha: Any, lrn_beta: Any, k: Any
) -> LayerProblem[LRNSpec]:
    """Validate the arguments of normalising x, or of the gradient with x, y and dy."""
    what = "the gradient of lrn" if "dy" in specs else "lrn"
    one_dtype(what, **{name: spec.dtype for name, spec in specs.items()})
    shape = check_images(same_shape(**{name: spec.shape for name, spec in specs.items()}))
    before, after = lrn_window(n)
    lrn = LRNSpec(before + 1 + after, *check_lrn_factors(lrn_alpha, lrn_beta, k))
    result = result_spec(shape, *specs.values(), out=outs[0])
    return LayerProblem.of("local response normalisation", lrn, specs, result)
