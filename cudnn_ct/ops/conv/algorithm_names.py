"""The algorithms of convolutions that names stand for, and the problems that they support."""

from __future__ import annotations

from ..._algorithm_names import ALGORITHMS, POLICIES, PRODUCT, NamedAlgorithm, is_engine, is_product
from ...graph.engines import Engine
from ...shapes.conv import ConvProblem


def named_algorithm(name: str, problem: ConvProblem) -> NamedAlgorithm:
    """Return the algorithm of a name; raise ValueError if it is unknown or not for this problem."""
    if is_engine(name):
        return NamedAlgorithm(str(Engine.parse(name)))
    if is_product(name):
        return NamedAlgorithm(f"{PRODUCT}{Engine.parse(name.removeprefix(PRODUCT))}")
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
