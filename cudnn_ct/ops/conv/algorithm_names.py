"""Names of convolution algorithms: Theano's, cuDNN's own, and engines."""

from __future__ import annotations

from typing import NamedTuple

from ...autotune.request import POLICIES
from ...graph.engines import Engine, is_engine
from ...shapes.conv import ConvProblem

__all__ = ["ALGORITHMS", "NamedAlgorithm", "named_algorithm", "why_not_named"]


class NamedAlgorithm(NamedTuple):
    """The legacy algorithm of a name in one direction, and the data that it supports."""

    algorithm: str
    axes: tuple[int, ...] = (1, 2, 3)
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")


_FLOATS = ("float16", "bfloat16", "float32")
_SUMMABLE = (*_FLOATS, "float64", "int8")
_FLAT = (1, 2)

# The names are those of Theano's `dnn` module. What it fell back to silently is the first row of a direction.
ALGORITHMS: dict[str, dict[str, NamedAlgorithm]] = {
    "forward": {
        "none": NamedAlgorithm("implicit_gemm", dtypes=_SUMMABLE),
        "small": NamedAlgorithm("implicit_precomp_gemm", dtypes=_SUMMABLE),
        "large": NamedAlgorithm("gemm", _FLAT),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling"),
        "winograd": NamedAlgorithm("winograd", _FLAT, _FLOATS),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
    "backward_data": {
        "none": NamedAlgorithm("algo_0"),
        "deterministic": NamedAlgorithm("algo_1"),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling"),
        "winograd": NamedAlgorithm("winograd", _FLAT, _FLOATS),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
    "backward_filter": {
        "none": NamedAlgorithm("algo_0"),
        "small": NamedAlgorithm("algo_3"),
        "deterministic": NamedAlgorithm("algo_1", _FLAT),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling", _FLAT),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
}


def named_algorithm(name: str, problem: ConvProblem) -> NamedAlgorithm:
    """Return the algorithm of a name; raise ValueError if it is unknown or not for this problem."""
    if is_engine(name):
        return NamedAlgorithm(str(Engine.parse(name)))
    rows = ALGORITHMS[problem.direction]
    every = dict.fromkeys(name for names in ALGORITHMS.values() for name in names)
    own = dict.fromkeys(row.algorithm for row in rows.values())
    # cuDNN's own names, which tables print, are not limited to the data that Theano used them for.
    if name in own and name not in every:
        return NamedAlgorithm(name)
    if name not in every:
        raise ValueError(
            f"algo is unknown: got {name!r}, expected one of the policies {', '.join(POLICIES)}, the names "
            f"{', '.join(every)}, the algorithms {', '.join(own)}, an engine such as 'engine 38 knobs 2=0', "
            "or a row of conv_algorithms"
        )
    axes, dtype = len(problem.stride), problem.x.dtype
    fitting = [one for one, row in rows.items() if axes in row.axes and dtype in row.dtypes]
    if name not in fitting:
        raise ValueError(
            f"algo={name!r} is not for {problem.direction} of {dtype} with {axes} spatial axes; "
            f"{', '.join(fitting)} are"
        )
    return rows[name]


def why_not_named(name: str, problem: ConvProblem) -> str:
    """Return why a named algorithm does not support the geometry of a problem; empty if it may."""
    # cuDNN's heuristics sometimes return such an algorithm as usable.
    window, size = problem.w.shape[2:], problem.x.shape[2:]
    strided = any(s != 1 for s in problem.stride)
    if name == "fft" and (strided or max(size) > 1024 or set(window) == {1}):
        return "fft needs stride 1, at most 1024 pixels along each axis, and a window of more than one"
    if name == "fft_tiling" and strided and problem.direction != "backward_filter":
        return "fft_tiling needs stride 1"
    return ""
