"""How a way is to be chosen: policies, the names of algorithms, and what a candidate must keep to."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ..graph.engines import Engine
from ..plans.base import Candidate
from ..shapes.conv import ConvProblem
from ..shapes.parse import as_bool

__all__ = [
    "ALGORITHMS",
    "POLICIES",
    "SYNONYMS",
    "AlgoRequest",
    "NamedAlgorithm",
    "is_engine",
    "named_algorithm",
    "request",
    "why_not_named",
]

POLICIES = ("heuristic", "autotune", "guess_once", "time_once")
SYNONYMS = {"guess_on_shape_change": "heuristic", "time_on_shape_change": "autotune"}  # Theano's words


class AlgoRequest(NamedTuple):
    """How a caller wants the algorithm selected.

    ``algo`` is one of :data:`POLICIES` or the name of an algorithm; None if ``row`` is the candidate to take.
    """

    algo: str | None = "heuristic"
    row: Candidate | None = None
    deterministic: bool = False
    workspace_limit: int | None = None
    strict: bool = False

    @property
    def timed(self) -> bool:
        """Whether candidates are to be timed."""
        return self.algo in ("autotune", "time_once")

    @property
    def once(self) -> bool:
        """Whether the first choice for a kind of problem is kept for others of the kind."""
        return self.algo in ("guess_once", "time_once")

    def refusal(self, row: Candidate) -> str:
        """Why a row is not what was asked for; empty where it is."""
        if self.deterministic and not row.deterministic:
            return "not deterministic"
        if self.workspace_limit is not None and row.workspace > self.workspace_limit:
            return f"needs {row.workspace:,} bytes of workspace; the limit is {self.workspace_limit:,}"
        return ""


def request(
    algo: Any, deterministic: Any, workspace_limit: Any, strict: Any, problem: Any = None
) -> AlgoRequest:
    """Check the arguments that say how to choose.

    Raises
    ------
    TypeError
        An argument is of no use here at all.
    ValueError
        The name is unknown, or not for this problem; a row belongs to another problem; the limit is negative.
    """
    limit = None if workspace_limit is None else _bytes(workspace_limit)
    wanted = (as_bool(deterministic, "deterministic"), limit, as_bool(strict, "strict"))
    if isinstance(algo, Candidate):
        _check_row(algo, problem)
        return AlgoRequest(None, algo, *wanted)
    name = algo if isinstance(algo, str) else getattr(algo, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"algo must be a name or a row of conv_algorithms, not {algo!r}")
    name = _without_backend(SYNONYMS.get(name, name))
    if name in POLICIES:
        return AlgoRequest(name, None, *wanted)
    if problem is not None:
        named_algorithm(name, problem.core)
    return AlgoRequest(name, None, *wanted)


def _bytes(limit: Any) -> int:
    try:
        number = operator.index(limit)
    except TypeError:
        raise TypeError(f"workspace_limit must be a number of bytes, not {limit!r}") from None
    if number < 0:
        raise ValueError(f"workspace_limit must be at least 0 bytes, got {number}")
    return number


def _check_row(row: Candidate, problem: Any) -> None:
    if row.rejected:
        raise ValueError(f"algo: {row} was refused: {row.rejected}")
    if row.problem is not None and problem is not None and row.problem.plain != problem.plain:
        raise ValueError(f"algo: {row} was made for another problem: {row.problem}; this is {problem}")


# --- the names of algorithms -------------------------------------------------------------------------------


def is_engine(name: str) -> bool:
    """Whether a name is that of an engine of the graph API, and not of a legacy algorithm."""
    return name.startswith("engine ")


def _without_backend(name: str) -> str:
    """Remove the backend from a name as tables print it: "graph engine 4", "legacy gemm"."""
    backend, _, rest = name.partition(" ")
    return rest if backend == ("graph" if is_engine(rest) else "legacy") else name


class NamedAlgorithm(NamedTuple):
    """What a name means in one direction: cuDNN's legacy algorithm, and for which data it was ever made."""

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
    """Look up the name of an algorithm for a problem.

    cuDNN's own names, which tables print, are not limited to the data that Theano's module used them for.

    Raises
    ------
    ValueError
        The name is unknown, or not for this direction, number of axes or dtype.
    """
    if is_engine(name):
        return NamedAlgorithm(str(Engine.parse(name)))
    rows = ALGORITHMS[problem.direction]
    every = dict.fromkeys(name for names in ALGORITHMS.values() for name in names)
    own = dict.fromkeys(row.algorithm for row in rows.values())
    if name not in every and name in own:
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
    """What of a problem's geometry an algorithm was never made for; empty for nothing.

    cuDNN's heuristics answer for these too, but not always truly.
    """
    window, size = problem.w.shape[2:], problem.x.shape[2:]
    strided = any(s != 1 for s in problem.stride)
    if name == "fft" and (strided or max(size) > 1024 or set(window) == {1}):
        return "fft needs stride 1, at most 1024 pixels along each axis, and a window of more than one"
    if name == "fft_tiling" and strided and problem.direction != "backward_filter":
        return "fft_tiling needs stride 1"
    return ""
