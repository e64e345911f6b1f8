"""Graphs in place of legacy calls: conversions, elementwise operations, and formulas as chains of graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count
from math import gcd
from typing import Any, NamedTuple

from .._config import config
from .._lib import load
from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..graph import candidates
from ..graph.offline import target_of
from ..graph.operations import Graph, Node, Tensor, node
from ..graph.pixels import in_pixels
from ..graph.plan import GraphPlan
from ..legal.rules import rules_of_subjects
from ..legal.subjects import subjects_of_native
from ..plans.axes import MAX_CALLS, coalesce, is_contiguous, sliced
from ..plans.base import Plan, tensors_of
from ..plans.elementwise import cast_or_copy_plan, copy_plan, duplicate_plan
from ..plans.program import Program, Step, chained
from ..shapes.specs import ALIGNMENT, INT_MAX, TensorSpec, equivalent_strides, packed_strides

DTYPES_OF_ENGINES = ("float16", "bfloat16", "float32")  # no engine computes float64


def first_plan(graph: Graph, context: Context, order: Sequence[int] = ()) -> GraphPlan:
    """Return a plan of the first engine that no fact rejects; ``order`` has places in the heuristics."""
    rules = rules_of_subjects(tuple(subjects_of_native(graph)), target_of(context))
    return candidates.first_plan(graph, context, order, rules)


# --- conversions of tensors by graphs of one node, for dtypes that ``cudnnOpTensor`` does not convert ------


def cast_by_graph(x: TensorSpec, y: TensorSpec, context: Context, mode: str = "identity") -> Program:
    """Return a plan that converts contiguous copies: graphs do not scale, and need one memory order.

    ``mode`` is the elementwise operation on the way.
    Alpha is applied in the wider of the two dtypes, so that values that it brings into range are kept.
    """
    packed_x, packed_y = (TensorSpec.packed(x.shape, spec.dtype) for spec in (x, y))
    convert = in_pixels(lambda a, b: first_plan(conversion_graph(a, b, mode), context), packed_x, packed_y)
    steps = [
        Step(copy_plan(x, packed_x), (0, 2)),
        Step(convert, (2, 3)),
        Step(copy_plan(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return chained([packed_x, packed_y], steps, scaled=0 if narrower else 2)


def cast_or_copy(x: TensorSpec, y: TensorSpec, context: Context) -> Plan:
    """Return a plan of a copy or a conversion, by a graph if this cuDNN has no call that converts."""
    by_graph = x.dtype != y.dtype and load().lacks("ops")
    return cast_by_graph(x, y, context) if by_graph else cast_or_copy_plan(x, y)


def conversion_graph(x: TensorSpec, y: TensorSpec, mode: str = "identity") -> Graph:
    """Make the graph of an operation that converts x to the dtype of y; both are images of pixels."""
    return elementwise_graph(mode, x, y, compute="float64" if "float64" in (x.dtype, y.dtype) else "float32")


# --- elementwise graphs on contiguous operands, for a cuDNN that has no legacy calls -----------------------

MIN_ELEMENTS = 2**24  # of large arrays; with fewer, building a plan costs more than it saves
ORDER = (1, 0)  # the second configuration of the heuristics is faster by 5 to 10 % in all dtypes


def in_one_order(*specs: TensorSpec) -> bool:
    """Return whether tensors have one shape, are contiguous, and have their elements in the same order."""
    first = specs[0]
    return bool(first.layouts) and all(
        one.shape == first.shape and equivalent_strides(first.shape, one.strides, first.strides)
        for one in specs
    )


def elementwise_plan(mode: str, specs: tuple[TensorSpec, ...], context: Context) -> Plan | None:
    """Return a plan of a pointwise node of one or two operands and the result.

    None for other dtypes, and operands that are not ``in_one_order``. The engine is compiled with the plan.
    """
    if not in_one_order(*specs) or not config.allow_runtime_compilation:
        return None
    if not 1 <= specs[0].size <= INT_MAX or not {spec.dtype for spec in specs} <= set(DTYPES_OF_ENGINES):
        return None
    return in_pixels(lambda *pixels: first_plan(elementwise_graph(mode, *pixels), context, ORDER), *specs)


def elementwise_graph(mode: str, *specs: TensorSpec, compute: str = "float32") -> Graph:
    """Return the graph of a pointwise node of one or two operands and the result."""
    return formula_graph(lambda *operands: pointwise(mode, *operands), *specs, compute=compute)


# --- formulas ----------------------------------------------------------------------------------------------
# A cuDNN without legacy calls has engines for two kinds of graphs on a matrix: elementwise nodes, and a
# reduction of rows or columns with elementwise nodes before it. Both repeat vectors of the other axis, if
# these are in memory. A formula on contiguous tensors is divided into such graphs.

LONGEST = 8 * 65_535  # elements of a row: blocks take 8, and a grid has no more blocks along that axis
PIXEL = 4096  # elements of a row of an array that is reduced to one element
ONE = (1, 1, 1, 1)


class Matrix(NamedTuple):
    """Rows and columns, the axis that vectors have, and the number of such matrices, one behind another."""

    rows: int
    columns: int
    kept: str  # "rows", "columns", or neither
    number: int = 1

    @property
    def length(self) -> int:
        return {"rows": self.rows, "columns": self.columns}.get(self.kept, 1)

    def spec(self, dtype: str, *, vector: bool, reduced: bool) -> TensorSpec:
        """Return the spec of a matrix or a vector in a graph with or without a reduction."""
        rows = self.rows if not vector or self.kept == "rows" else 1
        columns = self.columns if not vector or self.kept == "columns" else 1
        shape = (rows, columns, 1, 1) if reduced else (1, rows, columns)
        return TensorSpec(shape, packed_strides(shape, "nhwc" if reduced else "nchw"), dtype)


def matrix_of(whole: Sequence[TensorSpec], vectors: Sequence[TensorSpec]) -> Matrix | None:
    """Return the matrices that tensors of one shape are, and vectors whose other axes have length 1.

    None if the tensors are not contiguous in one order, or vectors have other axes.
    """
    tensors = [*whole, *vectors]
    if not whole[0].size or not {spec.dtype for spec in tensors} <= set(DTYPES_OF_ENGINES):
        return None
    axes = coalesce(tensors)
    if not all(is_contiguous(axes, place) for place in range(len(tensors))):
        return None
    lengths = [axis.lengths[0] for axis in axes]
    found: Matrix | None = None
    match tuple(axis.lengths[-1] > 1 for axis in axes):
        case (False,):
            columns = gcd(lengths[0], PIXEL)
            columns = columns if columns > 1 else lengths[0]
            found = Matrix(lengths[0] // columns, columns, "")
        case ():  # one element
            found = Matrix(1, 1, "columns")
        case (True,):
            found = Matrix(1, lengths[0], "columns")
        case (True, False):
            found = Matrix(lengths[0], lengths[1], "rows")
        case (False, True):
            found = Matrix(lengths[0], lengths[1], "columns")
        case (True, False, True):
            found = Matrix(lengths[1], lengths[2], "columns", lengths[0])
    if found and found.columns > LONGEST:
        raise NotSupportedError(f"rows of {found.columns:,} elements: graphs take at most {LONGEST:,}")
    return found if found and found.number <= MAX_CALLS else None


def _operator(mode: str) -> Callable[[Term, Term | float], Term]:
    return lambda one, other: Term(mode, one, other)


class Term:
    """A tensor of a formula: in memory (``mode`` is empty), or the result of a node; float32 if computed."""

    def __init__(
        self, mode: str, *operands: Term | float, vector: bool = False, dtype: str = "", **parameters: Any
    ) -> None:
        self.mode, self.operands, self.parameters = mode, operands, parameters
        self.dtype = dtype or "float32"
        self.stored: Term | None = None  # as a vector that matrices are computed with
        self.reduces = mode in ("sum", "max", "min", "amax") and len(operands) == 1
        terms = [one for one in operands if isinstance(one, Term)]
        self.vector: bool = vector or self.reduces or (bool(terms) and all(one.vector for one in terms))

    __add__, __sub__ = _operator("add"), _operator("sub")
    __mul__, __truediv__ = _operator("mul"), _operator("div")

    def node(self, operands: Sequence[Tensor], y: Tensor, compute: str = "float32") -> Node:
        """Return the node that computes this from its operands."""
        if self.reduces:
            op = {"sum": "add"}.get(self.mode, self.mode)
            return node("reduction", operator=op, comp_type="float32", xdesc=operands[0], ydesc=y)
        gradient = self.mode.endswith("_bwd")
        names = ("xdesc", "dydesc") if gradient else ("xdesc", "bdesc", "tdesc")
        given: dict[str, Any] = dict(zip(names, operands, strict=False))
        given["dxdesc" if gradient else "ydesc"] = y
        return node("pointwise", mode=self.mode, math_prec=compute, **given, **self.parameters)


def pointwise(mode: str, *operands: Term | float, **parameters: Any) -> Term:
    """Return the result of an elementwise node; a gradient takes the operand of the activation, then dy."""
    return Term(mode, *operands, **parameters)


def total(term: Term, op: str = "sum") -> Term:
    return Term(op, term)


def formula_graph(formula: Callable[..., Term], *specs: TensorSpec, compute: str = "float32") -> Graph:
    """Return the graph of a formula of operands of one shape; the last spec is that of the result."""
    *given, y = (Tensor(uid, spec) for uid, spec in enumerate(specs, 1))
    nodes, uids, dense = list[Node](), count(len(specs) + 1), specs[0]
    known = {Term(""): tensor for tensor in given}

    def written(term: Term, y: Tensor) -> Tensor:
        operands = [operand(one) for one in term.operands]
        nodes.append(term.node(operands, y, compute))
        return y

    def operand(one: Term | float) -> Tensor:
        if not isinstance(one, Term):
            return Tensor(next(uids), TensorSpec.packed((1,) * len(dense.shape)), value=one)
        if one not in known:
            known[one] = written(one, Tensor(next(uids), dense._replace(dtype=one.dtype), virtual=True))
        return known[one]

    written(formula(*known), y)
    return Graph(tuple(nodes), (*given, y))


class Formulas:
    """The steps of formulas on a matrix; pointers are those of a run, then of temporaries.

    ``given`` is the number of pointers of a run. No engine takes a single element, so vectors and matrices of
    one element have temporaries of two, and the second element is not used.
    """

    def __init__(self, matrix: Matrix, given: int, context: Context) -> None:
        self._single = matrix.rows * matrix.columns == 1
        self._matrix = Matrix(1, 2, "columns") if self._single else matrix
        self._given, self._context = given, context
        self._size = self._matrix.rows * self._matrix.columns
        self._temporaries: list[TensorSpec] = []
        self._steps: list[Step] = []
        self._places: dict[Term, int] = {}

    def tensor(self, place: int, dtype: str, *, vector: bool = False) -> Term:
        """Return an operand of a run, or a result that was stored."""
        term = Term("", vector=vector, dtype=dtype)
        if self._single or (vector and self._matrix.length == 1):
            given, place = place, self._temporary(2, dtype)
            self._steps.append(Step(duplicate_plan(TensorSpec.packed((1,), dtype)), (given, place)))
        self._places[term] = place
        return term

    def store(self, term: Term, place: int, dtype: str) -> Term:
        """Compute a formula into an operand of a run; return it as stored."""
        if not self._single and (not term.vector or self._matrix.length > 1):
            return self._compute(term, place, dtype)
        made = self.kept(term, dtype)
        self._steps.append(Step(duplicate_plan(TensorSpec.packed((1,), dtype)), (self._places[made], place)))
        return made

    def scalar(self, write: Plan) -> Term:
        """Return a number that a plan writes in each run."""
        term = Term("", vector=True)
        self._places[term] = self._temporary(2, "float32")
        self._steps.append(Step(write, (self._places[term],)))
        return term

    def step(self, plan: Plan, places: tuple[int, ...]) -> None:
        self._steps.append(Step(plan, places))

    def place(self, term: Term) -> int:
        return self._places[term]

    def kept(self, term: Term, dtype: str) -> Term:
        """Compute a formula into a temporary; return it as stored."""
        size = max(self._matrix.length, 2) if term.vector else self._size
        return self._compute(term, self._temporary(size, dtype), dtype)

    def through(self, plan: Plan, term: Term) -> Term:
        """Return what a plan computes from a formula, both in float32."""
        source, place = self._places[self.kept(term, "float32")], self._temporary(self._size, "float32")
        self._steps.append(Step(plan, (source, place)))
        result = Term("")
        self._places[result] = place
        return result

    def program(self, scaled: int | None = None) -> Program:
        """Return the program of all steps; ``scaled`` gets alpha, the last one by default."""
        return chained(self._temporaries, self._steps, scaled)

    def _temporary(self, size: int, dtype: str) -> int:
        self._temporaries.append(TensorSpec.packed((size,), dtype))
        return self._given + len(self._temporaries) - 1

    def _compute(self, term: Term, place: int, dtype: str) -> Term:
        if term.reduces and dtype != "float32":
            term = Term("identity", term)  # engines reduce to float32 alone
        self._steps.append(self._step(term, place, dtype))
        stored = Term("", vector=term.vector, dtype=dtype)
        self._places[stored] = place
        return stored

    def _step(self, term: Term, place: int, dtype: str) -> Step:
        """Return the step of one graph, after those of the vectors that it repeats."""
        reduced, of_vectors = term.reduces, term.vector and not term.reduces
        matrix = Matrix(1, max(self._matrix.length, 2), "columns") if of_vectors else self._matrix
        nodes, tensors, uids = list[Node](), dict[Term, Tensor](), count(1)
        read: list[Term] = []  # operands in memory, in the order of their pointers

        def tensor(term: Term, dtype: str, virtual: bool = False) -> Tensor:
            spec = matrix.spec(dtype, vector=term.vector and not of_vectors, reduced=reduced)
            return Tensor(next(uids), spec, virtual=virtual)

        def result(term: Term, dtype: str, virtual: bool = False) -> Tensor:
            operands = [operand(one) for one in term.operands]
            y = tensor(term, dtype, virtual)
            nodes.append(term.node(operands, y))
            return y

        def operand(given: Term | float) -> Tensor:
            if not isinstance(given, Term):
                spec = TensorSpec.packed(ONE if reduced else ONE[1:], "float32")
                return Tensor(next(uids), spec, value=given)
            if given.mode and (given.reduces or (given.vector and not of_vectors)):
                # Vectors that matrices are computed with are stored first.
                given.stored = given.stored or self.kept(given, "float32")
                given = given.stored
            if given not in tensors:
                read.extend([] if given.mode else [given])
                made = result(given, "float32", virtual=True) if given.mode else tensor(given, given.dtype)
                tensors[given] = made
            return tensors[given]

        y = result(term, dtype)
        graph = Graph(tuple(nodes), (*(tensors[one] for one in read), y))
        return Step(first_plan(graph, self._context), (*(self._places[one] for one in read), place))


class NamedFormulas(Formulas):
    """The steps of formulas on the tensors of a problem, by their names; those in ``vectors`` are vectors."""

    def __init__(self, problem: Any, matrix: Matrix, context: Context, vectors: Collection[str] = ()) -> None:
        self._specs, self._vectors = tensors_of(problem), vectors
        self.places = {name: place for place, name in enumerate(self._specs)}
        super().__init__(matrix, len(self._specs), context)

    def read(self, *names: str) -> dict[str, Term]:
        """Return operands of a run, without those that the problem lacks."""
        return {
            name: self.tensor(self.places[name], self._specs[name].dtype, vector=name in self._vectors)
            for name in names
            if name in self._specs
        }

    def write(self, name: str, term: Term) -> Term:
        """Compute a result of a run; return it as stored."""
        return self.store(term, self.places[name], self._specs[name].dtype)


def in_slices(matrix: Matrix, plan: Program, dtypes: Sequence[tuple[str, bool]]) -> Plan:
    """Return the plan of all matrices from that of one; each pointer has a dtype, and may be a vector."""
    if matrix.number == 1:
        return plan
    sizes = [
        (matrix.length if vector else matrix.rows * matrix.columns) * DTYPES[dtype].itemsize
        for dtype, vector in dtypes
    ]
    if any(size % ALIGNMENT for size in sizes):
        raise NotSupportedError(f"graphs need matrices that are {ALIGNMENT}-byte aligned: got {matrix}")
    return sliced([(plan, tuple(place * size for size in sizes)) for place in range(matrix.number)])
