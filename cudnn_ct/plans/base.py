"""Candidates for the computation of a problem, requests for one, and the interface of problems and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._algorithm_names import POLICIES, SYNONYMS, plain_name
from .._config import config
from .._lib import UNAVAILABLE, load
from ..dtypes import GRAPH_DTYPES
from ..errors import CudnnError, Explanation, NotSupportedError
from ..shapes.checks import as_bool, as_int
from ..shapes.specs import INT_MAX, TensorSpec
from ..typing import Layout

DYNAMIC_SHAPES = "dynamic_shapes"  # the note of a candidate whose graph is dynamic; cuDNN's notes are others
NODE_BY_NODE = "node by node"  # the algorithm of the plan that `certify.opinions` makes of single nodes


class Candidate(NamedTuple):
    """One implementation of a problem: a legacy algorithm or a graph engine.

    Attributes
    ----------
    backend : {"legacy", "graph", "unfused", "product", "cublaslt"}
        ``"unfused"`` is a convolution followed by calls that add and activate, ``"product"`` a graph with a
        product of matrices in place of a convolution with windows of one pixel, ``"cublaslt"`` cuBLASLt.
    algorithm : str
        A legacy algorithm, or an engine with its knobs; for ``"unfused"``, those of the convolution; for
        ``"cublaslt"``, its place in the heuristics, the version and the words of the algorithm.
    math : str
        The arithmetic that it uses.
    workspace : int
        In bytes.
    deterministic : bool
        Whether its results are the same from run to run.
    relayout : tuple of (str, str)
        Operands that are copied first, each with the layout of its copy.
    notes : tuple of str
        cuDNN's notes about an engine's numbers and behaviour, in lower case, and ``"dynamic_shapes"`` if its
        compiled kernels serve other sizes, too.
    rejected : str
        Why the candidate was rejected; empty for a usable one.
    time_ms : float or None
        Milliseconds of a call, if it was measured.
    problem : optional
        The problem of a row of a table.
    """

    backend: str
    algorithm: str
    math: str
    workspace: int
    deterministic: bool
    relayout: tuple[tuple[str, Layout], ...] = ()
    notes: tuple[str, ...] = ()
    rejected: str = ""
    time_ms: float | None = None
    problem: Problem | None = None

    @property
    def compiled(self) -> bool:
        """Whether cuDNN compiles it when it is made, which takes up to a second."""
        return "runtime_compilation" in self.notes

    @property
    def dynamic(self) -> bool:
        """Whether its compiled kernels serve other sizes of the same graph, too."""
        return DYNAMIC_SHAPES in self.notes

    @property
    def key(self) -> tuple[object, ...]:
        """Identity among the candidates of a problem, independent of measurements."""
        return self.backend, self.algorithm, self.math, self.relayout, DYNAMIC_SHAPES in self.notes

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Place in a table: usable ones first, the fastest first, unmeasured ones last."""
        return bool(self.rejected), self.time_ms is None, self.time_ms or 0.0

    def __str__(self) -> str:
        facts = [f"{self.math} math", f"{self.workspace:,} bytes of workspace"]
        facts += [f"{operand} copied to {layout}" for operand, layout in self.relayout]
        facts += [] if self.deterministic else ["not deterministic"]
        facts += [note for note in self.notes if note not in _SAID]
        return f"{self.backend} {self.algorithm} ({', '.join(facts)})"


# Notes that repeat other fields of a candidate.
_SAID = {"tensor_core", "nondeterministic", "down_convert_inputs"}


Heuristic = Callable[[Any], list["Candidate"]]
"""A function that returns candidates in the context of a thread, the best first."""


class Problem(Protocol):
    """The computation, as far as selection depends on it: an immutable and hashable named tuple.

    Problems whose timed candidates are compared also have ``results``, the specs of all tensors that are
    written, whose pointers are the last ones of a run. With a true ``random``, they are not compared. The
    first result of each new structure is compared with a second opinion if ``unproven`` is true. A problem
    whose fields have another order than the pointers of a run has its tensors ``in_order``.
    """

    def _asdict(self) -> dict[str, Any]: ...


def of_any_call(problem: Any) -> Any:
    """Return a problem without the facts of one call, scaling and alignment; rows of tables belong to it."""
    if "conv" in problem._fields:
        return problem._replace(conv=of_any_call(problem.conv))
    usual = {"scaled": "", "aligned": True}
    return problem._replace(**{name: usual[name] for name in usual if name in problem._fields})


class Plan(Protocol):
    """An implementation that is ready to run, in one thread on one device."""

    @property
    def workspace(self) -> int:
        """Bytes of workspace that a run needs."""

    def run(self, context: Any, pointers: Sequence[int], alpha: float, beta: float, /) -> None:
        """Enqueue the work on the context's stream.

        ``pointers`` are those of the operands, then of the results. Arguments in host memory and the state of
        a training step are in ``context.state``.
        """

    def describe(self) -> str:
        """Return what was selected and why, one fact a line."""


class NotChosen:
    """Takes the place of a plan that the next run chooses: it rejects every run."""

    workspace = 0

    def __init__(self, about: str) -> None:
        self._about = f"not chosen yet: {about}"

    def run(self, context: Any, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        raise NotSupportedError(self._about)

    def describe(self) -> str:
        return self._about


class SelectedPlan:
    """The plan of a call, and how it was selected: here the only one, of which nothing is selected.

    Calls run ``plan`` itself. Subclasses select it among ordered implementations, or by heuristics and
    benchmarks, and exchange it if cuDNN rejects it.
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def candidate(self) -> Candidate | None:
        """The selected candidate; None before a benchmark, and for operations that select none."""
        return None

    @property
    def needs_timing(self) -> bool:
        """Whether candidates are still to be timed."""
        return False

    @property
    def exploring(self) -> bool:
        """Whether later calls may run another candidate: others are still tried, or a faster one is known."""
        return False

    @property
    def fallback_reason(self) -> str:
        """The reason why another algorithm runs than the one that was named; empty if that one runs."""
        return ""

    def run_first(self, context: Any, *arguments: Any, compare: bool) -> bool:  # noqa: ARG002
        """Run for the first time; return False if the next run is to be like a first one, too.

        ``arguments`` are the others of :meth:`Plan.run`. With ``compare``, the result may be compared with a
        second opinion.
        """
        try:
            self.plan.run(context, *arguments)
        except CudnnError as error:
            if not self.run_other(error, context, *arguments):
                raise
        return True

    def run_other(self, error: CudnnError, context: Any, *arguments: Any) -> bool:  # noqa: ARG002
        """Run another plan after an error of this one, and keep it; return False if none may be tried."""
        return False

    def describe(self) -> str:
        """Return what was selected and how, and what was rejected and why."""
        return self.plan.describe()


def unsupported(
    problem: Any, reasons: Sequence[str], explanation: Explanation | None = None
) -> NotSupportedError:
    """Return the error for a problem, with the reasons of its implementations and of the graph's engines."""
    first = f"cuDNN does not support this {problem}"
    reasons = missing_last(reasons)
    if explanation and (lacks := load().lacks("engines_precompiled")):
        reasons.append(f"an engine that only the full wheel has {lacks}")
    lines = "\n  rejected: ".join([first, *reasons, *_too_large(problem)])
    error = NotSupportedError("\n  ".join([lines, *(explanation.summary() if explanation else ())]))
    error.explanation = explanation
    return error


def missing_last(reasons: Iterable[str]) -> list[str]:
    """Return each reason once, those that name a missing library after those that name an argument."""
    return sorted(dict.fromkeys(reasons), key=lambda reason: f"({UNAVAILABLE})" in reason)


def _too_large(problem: Any) -> list[str]:
    """Return a reason for each tensor with more elements than a descriptor holds."""
    tensors = tensors_of(problem) if hasattr(problem, "_asdict") else {}
    return [
        f"{name} has {spec.size:,} elements: cuDNN takes at most {INT_MAX:,} (2**31 - 1) of a tensor, and "
        "this problem is not split; pass smaller arrays"
        for name, spec in tensors.items()
        if spec.size > INT_MAX
    ]


def tensors_of(problem: Any) -> dict[str, TensorSpec]:
    """Return the tensors of a problem by name: fields in the order of a run's pointers, the results last."""
    return {name: spec for name, spec in problem._asdict().items() if isinstance(spec, TensorSpec)}


def packed_of(problem: Any, layout: Layout) -> Any:
    """Return a problem with all of its tensors contiguous, images in ``layout``."""
    packed = {}
    for name, spec in tensors_of(problem).items():
        own: Layout = layout if 3 <= len(spec.shape) <= 5 else "nchw"
        if own not in spec.layouts:
            packed[name] = TensorSpec.packed(spec.shape, spec.dtype, own)
    return problem._replace(**packed)


# --- requests: policies, names, and limits that a candidate must keep --------------------------------------


class AlgoRequest(NamedTuple):
    algo: str | None = "heuristic"  # one of `POLICIES`, or an algorithm; None with ``row``
    row: Candidate | None = None  # the candidate to take
    deterministic: bool = False
    workspace_limit: int | None = None
    strict: bool = False
    max_engines: int = 16  # those of the first heuristic that autotuning tries
    compiled: bool = True  # whether it tries runtime-compiled engines
    dynamic_shapes: bool = False  # whether dynamic graphs are planned where they are supported

    @property
    def timed(self) -> bool:
        return self.algo == "autotune"

    def rejection(self, row: Candidate) -> str:
        """Return which limit a candidate exceeds; empty if none."""
        if self.deterministic and not row.deterministic:
            return "not deterministic"
        if self.workspace_limit is not None and row.workspace > self.workspace_limit:
            return f"needs {row.workspace:,} bytes of workspace; the limit is {self.workspace_limit:,}"
        return ""


def request(
    algo: Any,
    deterministic: Any,
    workspace_limit: Any,
    strict: Any,
    problem: Problem | None = None,
    check_name: Callable[[str], object] = str,
    dynamic_shapes: Any = None,
) -> AlgoRequest:
    """Check the arguments that select an algorithm; ``check_name`` rejects names of other problems."""
    if isinstance(workspace_limit, bool):  # it reads as a switch, and would be a limit of one byte
        raise TypeError(f"workspace_limit must be an int: got {workspace_limit}")
    limit = None if workspace_limit is None else as_int(workspace_limit, "workspace_limit")
    if limit is not None and limit < 0:
        raise ValueError(f"workspace_limit must be at least 0 bytes: got {limit}")
    limits = (
        as_bool(deterministic, "deterministic"),
        limit,
        as_bool(strict, "strict"),
        config.autotune_max_engines,
        config.allow_runtime_compilation,
        config.dynamic_shapes if dynamic_shapes is None else as_bool(dynamic_shapes, "dynamic_shapes"),
    )
    if isinstance(algo, Candidate):
        if algo.rejected:
            raise ValueError(f"algo: {algo} was rejected: {algo.rejected}")
        if None not in (algo.problem, problem) and of_any_call(algo.problem) != of_any_call(problem):
            text = f"algo: {algo} was made for another problem: {algo.problem}; this is {problem}"
            raise ValueError(text)
        return AlgoRequest(None, algo, *limits)
    name = algo if isinstance(algo, str) else getattr(algo, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"algo must be a name or a Candidate, not {algo!r}")
    name = plain_name(SYNONYMS.get(name, name))
    if name == "online" and limits[0]:  # a later candidate would change the bits of results
        name = "heuristic"
    if name not in POLICIES:
        check_name(name)
    return AlgoRequest(name, None, *limits)


# --- comparison of results that two implementations computed -----------------------------------------------

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Largest difference of two results, relative to the largest magnitude in the tensor: several roundings of
# each dtype. Float32 may be computed with TF32 tensor cores.
TOLERANCE = {
    "float64": 1e-10, "float32": 2e-3, "float16": 1e-2, "bfloat16": 3e-2, "float8_e4m3": 0.2,
    "float8_e5m2": 0.4,
}  # fmt: skip
ROUNDED = ("int8", "uint8")  # integers that may be rounded up by one implementation, and down by the other


def tolerance_of(specs: Iterable[TensorSpec]) -> float:
    """Return the largest tolerance of the dtypes in a computation: each of them may be an intermediate's."""
    return max((TOLERANCE.get(spec.dtype, 0.0) for spec in specs), default=0.0)


def difference(
    specs: Sequence[TensorSpec], ours: Sequence[Bytes], others: Sequence[Bytes], tolerance: float
) -> str:
    """Return how two sets of tensors differ, given as their bytes; empty if they agree.

    Floating-point numbers may differ by ``tolerance``, relative to the largest magnitude in their tensor.
    """
    for spec, a, b in zip(specs, ours, others, strict=True):
        found = _difference(spec, a, b, tolerance)
        if found:
            return found
    return ""


def _difference(spec: TensorSpec, ours: Bytes, others: Bytes, tolerance: float) -> str:
    if np.array_equal(ours, others):
        return ""
    dtype = spec.dtype
    if dtype not in TOLERANCE and dtype not in ROUNDED:
        return f"{spec} has other elements"
    wide = np.float64 if dtype == "float64" else np.float32  # which is several times as fast
    with np.errstate(all="ignore"):
        x, y = (one.view(GRAPH_DTYPES[dtype].numpy).astype(wide) for one in (ours, others))
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return f"{spec} has NaN or infinity at other places"
        scale = float(np.max(np.abs(y[finite]), initial=0))
        error = float(np.max(np.abs(x[finite] - y[finite]), initial=0))
    if error > (1 if dtype in ROUNDED else tolerance * scale):
        return f"{spec} differs by {error:.3g}, its largest magnitude is {scale:.3g}"
    return ""
