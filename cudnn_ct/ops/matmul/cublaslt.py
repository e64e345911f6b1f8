"""Products of matrices by cuBLASLt, with its own epilogues, as candidates next to cuDNN's engines.

cuBLASLt takes columns first. Memory of a matrix by rows is its transpose by columns, so the library computes
``y.T = b.T @ a.T``: b is its A, and the rows of its D are the columns of y, which have the bias.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from ctypes import byref, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import partial
from math import gcd
from typing import Any, NamedTuple

from ... import _cublaslt
from ..._cublaslt import Algorithm, CublasLt, Result, cublaslt_of
from ..._handle import NativeHandle
from ..._lib import load
from ...algo_cache import CandidateSource
from ...context import Context
from ...cuda import stream as streams
from ...dtypes import GRAPH_DTYPES
from ...errors import AllocationError, BadParamError, NotInitializedError, NotSupportedError
from ...graph.offline import ShapesOnly, target_of
from ...legal.rules import others_first
from ...plans.base import AlgoRequest, Candidate, Heuristic, NotChosen, Plan, tensors_of
from ...shapes.arithmetic import FLOAT8, HALF
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import ALIGNMENT, UNALIGNED, TensorSpec
from .._graph_source import ReducedSource, check_engine_name

BACKEND = "cublaslt"
MOST = 4  # algorithms that are timed
MAX_PLACE = 99  # of the heuristics that a name may ask for
MAX_WORKSPACE = 32 << 20  # bytes that its algorithms may ask for, as NVIDIA recommends for Hopper
# cublasLtEpilogue_t, whose gelu is that by tanh.
_EPILOGUES = {"identity": 0, "relu": 2, "gelu_tanh": 32}
_NO_EPILOGUE, _WITH_BIAS = 1, 4
_COMPUTE = {
    ("float32", False): _cublaslt.COMPUTE_32F,
    ("float32", True): _cublaslt.COMPUTE_32F_FAST_TF32,
    ("float64", False): _cublaslt.COMPUTE_64F,
    **dict.fromkeys(((dtype, True) for dtype in (*HALF, *FLOAT8)), _cublaslt.COMPUTE_32F),
}
_POINTERS = {
    "bias": _cublaslt.BIAS_POINTER,
    "descale_b": _cublaslt.A_SCALE_POINTER,
    "descale_a": _cublaslt.B_SCALE_POINTER,
    "scale": _cublaslt.D_SCALE_POINTER,
    "amax": _cublaslt.AMAX_POINTER,
}
_NAME = re.compile(
    r"cublaslt (\d{1,4})(?: config ([\d.]+):([0-9a-f]{1,16}(?:\.[0-9a-f]{1,16}){0,7}))?", re.ASCII
)


def check_name(name: str) -> None:
    """Raise ValueError unless an algorithm's name is that of an engine or of an algorithm of cuBLASLt."""
    if not _NAME.fullmatch(name):
        check_engine_name(name)


def why_not(problem: MatmulProblem) -> str:
    """Return why cuBLASLt does not compute a product of three axes as it is defined; empty if it may."""
    a, b, y, bias, residual = problem.a, problem.b, problem.y, problem.bias, problem.residual
    act = problem.activation
    cores, float8 = "with" if problem.tensor_cores else "without", y.dtype in FLOAT8
    kinds = HALF if float8 else (y.dtype,) if a.dtype not in FLOAT8 or y.dtype in HALF else ()
    strided = [one for one in (a, b) if not _layout_of(one).leading]
    strided += [one for one in (y, residual) if one and _layout_of(one).by_columns]
    reasons = {
        f"products of {a.dtype} and {b.dtype} {cores} tensor cores are left to cuDNN":
            (a.dtype, problem.tensor_cores) not in _COMPUTE or b.dtype not in _cublaslt.DTYPES,
        f"its epilogues do not have {act}": act not in _EPILOGUES,
        "float64 has no epilogue": a.dtype == "float64" and (bias or act != "identity"),
        f"scale and amax need a float8 result: got {y.dtype}": (problem.scale or problem.amax) and not float8,
        "float8 results have no residual": float8 and residual,
        f"the bias is {bias and bias.dtype}: expected {' or '.join(kinds) or 'none'}":
            bias and bias.dtype not in kinds,
        f"operands are not {ALIGNMENT}-byte aligned": not problem.aligned,
        f"strides are not those of matrices: got {strided}": strided,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")


class _Layout(NamedTuple):
    """The memory of a matrix, by columns: rows, columns, leading dimension; whether the tensor is so, too."""

    rows: int
    columns: int
    leading: int  # 0 if it is not a matrix
    by_columns: bool


def _layout_of(spec: TensorSpec) -> _Layout:
    (_, rows, columns), (_, row_step, column_step) = spec.shape, spec.strides
    if column_step == 1 and row_step >= columns:
        return _Layout(columns, rows, row_step, by_columns=False)
    return _Layout(rows, columns, column_step * (row_step == 1 and column_step >= rows), by_columns=True)


class _Product:
    """The descriptors of a product in one libcublasLt."""

    def __init__(self, lt: CublasLt, problem: MatmulProblem) -> None:
        self.lt, self.problem = lt, problem
        dtype, number = problem.a.dtype, c_double if problem.a.dtype == "float64" else c_float
        factors = _cublaslt.DTYPES["float64" if number is c_double else "float32"]
        self.operation = lt.create("MatmulDesc", _COMPUTE[dtype, problem.tensor_cores], factors)
        self._set = partial(lt.set, "MatmulDesc", self.operation)
        self.alpha, self.beta = byref(number(problem.alpha)), byref(number(1 if problem.residual else 0))
        self._set(_cublaslt.TRANSPOSE_A, c_int32(_layout_of(problem.b).by_columns))
        self._set(_cublaslt.TRANSPOSE_B, c_int32(_layout_of(problem.a).by_columns))
        bias = problem.bias
        epilogue = _EPILOGUES[problem.activation] | (_WITH_BIAS if bias else 0)
        self._set(_cublaslt.EPILOGUE, c_int32(epilogue or _NO_EPILOGUE))
        if bias:
            self._set(_cublaslt.BIAS_DTYPE, c_int32(_cublaslt.DTYPES[bias.dtype]))
        self.pointers = {name: code for name, code in _POINTERS.items() if getattr(problem, name)}
        for code in self.pointers.values():  # heuristics read the alignment of an address
            self._set(code, c_void_p(ALIGNMENT))
        a, b, y = map(self._matrix, (problem.b, problem.a, problem.y))
        c = problem.residual or problem.y
        if c.dtype in FLOAT8:  # a C that is not read has the dtype of the bias
            c = c._replace(dtype=bias.dtype if bias else "bfloat16")
        # C is D, in its layout, if nothing is added.
        self.layouts = (a, b, y if c == problem.y else self._matrix(c), y)
        self.specs = (problem.b, problem.a, c, problem.y)

    def _matrix(self, spec: TensorSpec) -> NativeHandle:
        layout, count = _layout_of(spec), self.problem.y.shape[0]
        made = self.lt.create("MatrixLayout", _cublaslt.DTYPES[spec.dtype], *layout[:3])
        self.lt.set("MatrixLayout", made, _cublaslt.BATCH_COUNT, c_int32(count))
        step = spec.strides[0] if spec.shape[0] > 1 else 0
        self.lt.set("MatrixLayout", made, _cublaslt.BATCH_STRIDE, c_int64(step))
        return made

    def set_pointers(self, addresses: dict[str, int]) -> None:
        """Set the addresses of the operands that are attributes of the operation."""
        for name, code in self.pointers.items():
            self._set(code, c_void_p(addresses[name]))

    def algorithms(self, handle: NativeHandle, count: int, limit: int) -> list[Result]:
        """Return up to ``count`` algorithms of the heuristics, the best first."""
        wanted = self.lt.create("MatmulPreference")
        prefer = partial(self.lt.set, "MatmulPreference", wanted)
        prefer(_cublaslt.MAX_WORKSPACE, c_uint64(limit))
        # Parts of a sum in the dtype of the result would be rounded twice, and those that are added in place
        # depend on the order of blocks. Parts in the workspace are added by a step of its own, in one order,
        # so that all candidates are deterministic.
        prefer(_cublaslt.REDUCTION_SCHEMES, c_uint32(_cublaslt.REDUCTION_COMPUTE_TYPE))
        for attribute, spec in zip(_cublaslt.MIN_ALIGNMENTS, self.specs, strict=True):
            step = spec.strides[0] * GRAPH_DTYPES[spec.dtype].itemsize if spec.shape[0] > 1 else ALIGNMENT
            prefer(attribute, c_uint32(gcd(ALIGNMENT, step)))
        found, returned = (Result * count)(), c_int()
        given = (handle, self.operation, *self.layouts, wanted, count)
        self.lt.MatmulAlgoGetHeuristic(*given, found, byref(returned))
        return [one for one in found[: returned.value] if one.state == 0]

    def workspace_of(self, handle: NativeHandle, algorithm: Algorithm) -> int:
        """Return the bytes of workspace of an algorithm; raise NotSupportedError if it does not fit."""
        checked = Result()
        self.lt.MatmulAlgoCheck(handle, self.operation, *self.layouts, byref(algorithm), byref(checked))
        return int(checked.workspace)


# --- plans -------------------------------------------------------------------------------------------------


class CublasLtPlan:
    """One algorithm of cuBLASLt for one product: a run is one call of ``cublasLtMatmul``.

    A captured graph has copies of all arguments, so that it does not need the plan.
    """

    __slots__ = (
        *("_algorithm", "_given", "_handle", "_loaded", "_places", "_product", "_reference"),
        *("candidate", "workspace"),
    )

    def __init__(self, product: _Product, handle: NativeHandle, candidate: Candidate) -> None:
        _, version, words = _parsed(f"{BACKEND} {candidate.algorithm}")
        if version != product.lt.version:
            raise NotSupportedError(f"{candidate} is not of the loaded cuBLASLt {product.lt.version}")
        self._algorithm = Algorithm((c_uint64 * 8)(*words))
        self.workspace = product.workspace_of(handle, self._algorithm)
        self.candidate = candidate._replace(workspace=self.workspace)
        self._product, self._handle, self._loaded = product, handle, False
        self._reference = byref(self._algorithm)
        self._places = {name: place for place, name in enumerate(tensors_of(product.problem))}
        self._given: tuple[int, ...] = ()

    def run(self, context: Context, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0) -> None:
        """Enqueue the product; ``pointers`` are those of the tensors of the problem."""
        if alpha != 1 or beta != 0:
            raise NotSupportedError(
                f"a plan of cuBLASLt cannot scale: got alpha {alpha}, beta {beta}, expected 1 and 0"
            )
        if (given := tuple(pointers)) != self._given:
            self._take(given)
        with nullcontext() if self._loaded else streams.relaxed():  # the library loads a kernel
            self._enqueue(context, given)
        self._loaded = True

    def describe(self) -> str:
        return f"chosen: {self.candidate}"

    def _take(self, given: tuple[int, ...]) -> None:
        addresses = {name: given[place] for name, place in self._places.items()}
        for name in ("a", "b", "bias", "residual", "y"):
            if (pointer := addresses.get(name, 0)) & UNALIGNED:  # such loads destroy the CUDA context
                expected = f"expected a multiple of {ALIGNMENT}"
                raise BadParamError(f"pointer of {name} is misaligned: got {pointer:#x}, {expected}")
        self._given = ()
        self._product.set_pointers(addresses)
        self._given = given

    def _enqueue(self, context: Context, given: tuple[int, ...]) -> None:
        made, places = self._product, self._places
        a, b, c, d = made.layouts
        y = given[places["y"]]
        added = given[places["residual"]] if made.problem.residual else y if c is d else None
        left, right = given[places["b"]], given[places["a"]]
        room = context.workspace(self.workspace) if self.workspace else None
        made.lt.Matmul(
            *(self._handle, made.operation, made.alpha, left, a, right, b, made.beta, added, c, y, d),
            *(self._reference, room, self.workspace, context.stream.handle),
        )


def _name_of(place: int, algorithm: Algorithm, lt: CublasLt) -> str:
    """Return the place of an algorithm in the heuristics, and its words as text."""
    words = [f"{word:x}" for word in algorithm.words]
    while len(words) > 1 and words[-1] == "0":
        words.pop()
    return f"{place} config {lt.version}:{'.'.join(words)}"


def _parsed(name: str) -> tuple[int, str, list[int]]:
    """Return the place, the version and the words of a name; raise NotSupportedError for other names."""
    if (found := _NAME.fullmatch(name)) is None:
        raise NotSupportedError(f"{name!r} is not an algorithm of cuBLASLt")
    return int(found[1]), found[2] or "", [int(word, 16) for word in (found[3] or "").split(".") if word]


# --- handles -----------------------------------------------------------------------------------------------

_KEY = object()  # of a context's handle
_idle: dict[tuple[CublasLt, int], list[Any]] = {}  # at most as many as threads that ran at the same time


def _handle(lt: CublasLt, context: Context) -> NativeHandle:
    """Return the handle of a context. That of a thread that ended is kept for another thread."""
    found: NativeHandle | None = context.plans.get(_KEY)
    if found is None:
        pointer = c_void_p()
        with suppress(LookupError):  # other threads may have taken all
            pointer = _idle[lt, context.device].pop()
        if not pointer:
            with streams.relaxed():
                lt.Create(byref(pointer))
        found = context.plans[_KEY] = NativeHandle(pointer, partial(_retire, lt, context.device))
    return found


def _retire(lt: CublasLt, device: int, pointer: Any) -> None:
    _idle.setdefault((lt, device), []).append(pointer)


def forget() -> None:
    """Destroy idle handles, for tests that replace the library."""
    while _idle:
        (lt, device), pointers = _idle.popitem()
        with streams.on_device(device):
            for pointer in pointers:
                lt.Destroy(pointer)
    cublaslt_of.cache_clear()


# --- candidates --------------------------------------------------------------------------------------------


def _library(problem: MatmulProblem, context: Context) -> tuple[CublasLt | None, str]:
    """Return the library for a product; None, and the reason, if it does not compute it."""
    try:
        lt, reason = cublaslt_of(context.library), why_not(problem)
    except NotSupportedError as error:  # it has not all functions
        return None, str(error)
    if lt is None:
        reason = f"cuDNN {context.library.version_text} uses no libcublasLt"
    return (None if reason else lt), reason


def _rows(problem: MatmulProblem, context: Context, count: int, limit: int) -> list[Candidate]:
    """Return the algorithms of the heuristics as candidates; one with the reason if there are none."""
    lt, reason = _library(problem, context)
    if lt is not None:
        try:
            found = _Product(lt, problem).algorithms(_handle(lt, context), count, limit)
        except (NotSupportedError, BadParamError, NotInitializedError, AllocationError) as error:
            reason = str(error)
        else:
            math = "tensor_op" if problem.tensor_cores else "fma"
            math += "_allow_conversion" * (problem.tensor_cores and problem.a.dtype == "float32")
            names = [_name_of(place, one.algorithm, lt) for place, one in enumerate(found)]
            pairs = zip(names, found, strict=True)
            return [Candidate(BACKEND, name, math, one.workspace, True) for name, one in pairs]
    return [_rejected("all algorithms", reason)]


def _rejected(name: str, reason: str) -> Candidate:
    return Candidate(BACKEND, name, "any", 0, True, rejected=reason)


def _usable(
    problem: MatmulProblem, context: Context, count: int = MOST, limit: int = MAX_WORKSPACE
) -> list[Candidate]:
    return [row for row in _rows(problem, context, count, limit) if not row.rejected]


def _named(name: str, problem: MatmulProblem, context: Context) -> list[Candidate]:
    """Return the algorithm of a name as a candidate; it is rejected if the product does not have it."""
    algorithm, (place, _, words) = name.removeprefix(f"{BACKEND} "), _parsed(name)
    if words:  # its plan finds whether the library has it for this product
        return [Candidate(BACKEND, algorithm, "any", 0, True, rejected=why_not(problem))]
    rows = _rows(problem, context, min(place, MAX_PLACE) + 1, MAX_WORKSPACE)
    reason = rows[0].rejected if rows else ""
    if place < len(rows) and not reason:
        return [rows[place]]
    return [_rejected(algorithm, reason or f"cuBLASLt has {len(rows)} algorithms for this product")]


def _first(problem: MatmulProblem, context: Context) -> list[Candidate]:
    names = filter(_NAME.fullmatch, others_first(problem, target_of(context)))
    return [row for name in names for row in _named(name, problem, context) if not row.rejected]


class _WithCublasLt(ReducedSource):
    """The candidates of a source for products of three axes, and after them those of cuBLASLt."""

    def only_graphs(self, problem: Any, context: Any) -> bool:
        """Return whether the candidates before those of cuBLASLt are engines of the graph."""
        return not others_first(problem, target_of(context)) and self.inner.only_graphs(problem, context)

    def on_shapes(self, problem: Any, named: str) -> list[Candidate]:
        """Return what calls on shapes plan for the other candidates, then cuBLASLt if it may be used."""
        rows = self.inner.on_shapes(problem, named)
        own = [f"{BACKEND} 0"] if "libcublasLt" in load().companions and not why_not(problem) else []
        return [*rows, *(Candidate(BACKEND, name, "any", 0, True) for name in own)]

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of the other candidates, then that of cuBLASLt, unless facts name it first."""
        return [partial(_first, problem), *self.inner.heuristics(problem), partial(_usable, problem)]

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        rows = self.inner.autotune_candidates(problem, context, request)
        limit = MAX_WORKSPACE if request.workspace_limit is None else request.workspace_limit
        count = min(MOST, request.max_engines)
        own = _usable(problem, context, count, min(limit, MAX_WORKSPACE)) if count else []
        if own and not problem.has_epilogue:  # compiled engines were ahead in one of 38, by 6 %
            rows = [row for row in rows if not row.compiled]
        return sorted([*rows, *own], key=lambda row: bool(row.rejected))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        if _NAME.fullmatch(name):
            return [partial(_named, name, problem)], self.heuristics(problem)
        return self.inner.by_name(problem, name)


def _planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate ready to run; raise NotSupportedError if its library rejects it."""
    if isinstance(context, ShapesOnly) and _NAME.fullmatch(candidate.algorithm):
        return NotChosen("the algorithms of cuBLASLt need a GPU")
    if candidate.backend != BACKEND:
        return inner.plan(problem, candidate, context)
    lt, reason = _library(problem, context)
    if lt is None:
        raise NotSupportedError(f"{candidate} is not for this {problem}: {reason}")
    return CublasLtPlan(_Product(lt, problem), _handle(lt, context), candidate)


def with_cublaslt(inner: CandidateSource) -> CandidateSource:
    """Return the candidates of a source for products of three axes, and after them those of cuBLASLt."""
    return _WithCublasLt(inner, lambda problem: problem, _planned)
