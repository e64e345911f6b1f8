"""Operations of graphs that cuDNN computes wrong, or not at all, written as other operations."""

from __future__ import annotations

from itertools import count

from ...shapes.graph.problem import LOGICAL, PRODUCT_KINDS, GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec


class _Rewriting:
    """A graph while nodes are replaced by elementwise operations: its values and new ones, and its nodes."""

    def __init__(self, problem: GraphProblem) -> None:
        self._problem, self.values, self.nodes = problem, list(problem.values), list[GraphNode]()

    def number(self, value: float) -> int:
        return self._new(GraphValue("", TensorSpec((), (), self._problem.compute), "constant", value))

    def pointwise(self, mode: str, *operands: int, like: int, last: bool = False, **attributes: float) -> int:
        """Add a node; return the place of its result: a new tensor ``like`` another one, or that itself."""
        spec = self.values[like].spec._replace(dtype=self._problem.compute)
        y = like if last else self._new(GraphValue("", spec, "virtual"))
        given = (("mode", mode), *attributes.items())
        self.nodes.append(
            GraphNode("pointwise", tuple(zip("xb", operands, strict=False)), (("y", y),), given)
        )
        return y

    def _new(self, value: GraphValue) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def graph(self) -> GraphProblem:
        return self._problem._replace(values=tuple(self.values), nodes=tuple(self.nodes))


# --- reductions of axes of length 1 as elementwise operations: cuDNN 9.19 computes those of products wrong -

_MAGNITUDES = ("amax", "norm1", "norm2")


def without_empty_reductions(problem: GraphProblem) -> GraphProblem:
    """Return a graph without reductions whose operand has the shape of the result."""
    new = _Rewriting(problem)
    for one in problem.nodes:
        ((_, x), *_), ((_, y), *_), operator = one.operands, one.results, one.attribute("operator")
        if one.kind != "reduction" or problem.values[x].spec.shape != problem.values[y].spec.shape:
            new.nodes.append(one)
        elif operator in _MAGNITUDES:
            new.pointwise("abs", x, like=y, last=True)
        elif operator == "mul_no_zeros":
            zero = new.pointwise("cmp_eq", x, new.number(0.0), like=y)  # 1 for zeros
            new.pointwise("add", x, zero, like=y, last=True)
        else:  # cuDNN does not write the result of an identity whose operand has other uses
            new.pointwise("mul", x, new.number(1.0), like=y, last=True)
    return new.graph()


# --- logic -------------------------------------------------------------------------------------------------

# Logical operations of graphs as arithmetic of conditions, which are 0.0 or 1.0.
#
# cuDNN computes logical operations of bool tensors to bool tensors only. 9.19 writes such results as packed
# bits in some graphs, and 9.28 fails to compile operations that read them for most vector lengths.

_OF_TWO = {"logical_and": "min", "logical_or": "max"}


def without_logic(problem: GraphProblem) -> GraphProblem:
    """Replace logical operations by minima, maxima and comparisons with 0."""
    if all(one.attribute("mode") not in LOGICAL for one in problem.nodes):
        return problem
    new, kind = _Rewriting(problem), int if "int" in problem.compute else float
    zero = new.number(kind(0))

    def condition(place: int) -> int:
        """Return a value that is 1 where another value is not 0."""
        value = problem.values[place]
        if value.role == "constant":
            return new.number(kind(value.value != 0))
        return place if value.spec.dtype == "bool" else new.pointwise("cmp_neq", place, zero, like=place)

    for one in problem.nodes:
        mode, operands = one.attribute("mode"), [place for _, place in one.operands]
        ((_, y), *_) = one.results
        if mode == "logical_not":
            new.pointwise("cmp_eq", *operands, zero, like=y, last=True)
        elif mode in LOGICAL:
            new.pointwise(_OF_TWO[mode], *map(condition, operands), like=y, last=True)
        else:
            new.nodes.append(one)
    return new.graph()


# --- clips -------------------------------------------------------------------------------------------------

# Clipped relus next to products of matrices as a relu without clips, a maximum and a minimum. An engine of
# cuDNN 9.19 for products of float32 ignores the clips of a relu.

_CLIPS, _SLOPE = ("relu_lower_clip", "relu_upper_clip"), "relu_lower_clip_slope"


def without_clips(problem: GraphProblem) -> GraphProblem:
    """Return a graph without clipped relus, or itself if it has no product of matrices."""
    if not any(one.kind == "matmul" for one in problem.nodes):
        return problem
    new = _Rewriting(problem)
    for one in problem.nodes:
        lower, upper = (one.attribute(name) for name in _CLIPS)
        if one.attribute("mode") != "relu_fwd" or (lower is None and upper is None):
            new.nodes.append(one)
            continue
        slope = one.attribute(_SLOPE)
        leaky = {} if slope is None else {_SLOPE: slope}
        steps: list[tuple[str, float | None]]  # modes, and the number that each takes
        if lower is None:
            steps = [("relu_fwd", None)]
        else:
            steps = [("sub", lower), ("relu_fwd", None), ("add", lower)] if leaky else [("max", lower)]
        steps += [] if upper is None else [("min", upper)]
        ((_, x),), ((_, y),) = one.operands, one.results
        for place, (mode, number) in enumerate(steps, 1):
            numbers, attributes = ([], leaky) if number is None else ([new.number(number)], {})
            x = new.pointwise(mode, x, *numbers, like=y, last=place == len(steps), **attributes)
    return new.graph()


# --- repeated operands -------------------------------------------------------------------------------------

ELEMENTWISE = ("pointwise", "pointwise_backward")

Use = frozenset[tuple[int, str]]  # the operands of products for which a tensor is read


def with_separate_inputs(problem: GraphProblem) -> tuple[GraphProblem, dict[int, int]]:
    """Return a graph whose inputs have one use each, and the place of the input behind each added value."""
    # The uses are each operand of a product, all that is computed for it, and all that follows the products.
    # Elementwise operations whose result has several uses are computed for each.
    added: dict[int, int] = {}
    if not any(one.kind in PRODUCT_KINDS for one in problem.nodes):
        return problem, added
    copied, uses = _copied(problem), _uses(problem)
    values, nodes = list(problem.values), []
    places = count(len(values))
    known: dict[tuple[int, Use], int] = {}
    first: dict[int, Use] = {}

    def place_for(place: int, use: Use) -> int:
        """Return the place of a value for one use; the first use keeps the value itself."""
        separate = problem.values[place].role == "input" or place in copied
        if not separate or first.setdefault(place, use) == use:
            return place
        if (place, use) not in known:
            known[place, use] = new = next(places)
            values.append(problem.values[place])
            if place not in copied:
                added[new] = place
        return known[place, use]

    for number, one in enumerate(problem.nodes):
        for use in uses[number]:
            reads = _reads(number, one, use)
            nodes.append(
                one._replace(
                    operands=tuple(
                        (role, place_for(place, read))
                        for (role, place), read in zip(one.operands, reads, strict=True)
                    ),
                    results=tuple((role, place_for(place, use)) for role, place in one.results),
                )
            )
    return problem._replace(values=tuple(values), nodes=tuple(nodes)), added


def _copied(problem: GraphProblem) -> set[int]:
    """Return the virtual tensors that elementwise operations compute from inputs and constants."""
    found: set[int] = set()
    for one in problem.nodes:
        sources = all(
            problem.values[place].role in ("input", "constant") or place in found for _, place in one.operands
        )
        if one.kind in ELEMENTWISE and sources:
            found |= {place for _, place in one.results if problem.values[place].role == "virtual"}
    return found


def _uses(problem: GraphProblem) -> list[list[Use]]:
    """Return the uses of the results of each node: one, unless the node is to be computed for each."""
    copied = _copied(problem)
    read: dict[int, dict[Use, None]] = {}  # the uses of the tensors that later nodes read
    found = []
    for number, one in reversed(list(enumerate(problem.nodes))):
        uses = list(dict.fromkeys(use for _, place in one.results for use in read.get(place, ())))
        if len(uses) != 1 and not all(place in copied for _, place in one.results):
            uses = [Use().union(*uses)]
        for use in uses:
            for (_, place), reads in zip(one.operands, _reads(number, one, use), strict=True):
                read.setdefault(place, {})[reads] = None
        found.append(uses)
    return found[::-1]


def _reads(number: int, one: GraphNode, use: Use) -> list[Use]:
    """Return the use of each operand of a node whose result has a use."""
    if one.kind in PRODUCT_KINDS:
        return [Use({(number, role)}) for role, _ in one.operands]
    return [use] * len(one.operands)
