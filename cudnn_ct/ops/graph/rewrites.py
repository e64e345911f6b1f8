"""Operations of graphs that cuDNN computes wrong, or not at all, written as other operations."""

from __future__ import annotations

from itertools import count

from ...shapes.graph.pointwise import LOGICAL
from ...shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec

# --- reductions of axes of length 1 as elementwise operations: cuDNN 9.19 computes those of products wrong -

_MAGNITUDES = ("amax", "norm1", "norm2")


def without_empty_reductions(problem: GraphProblem) -> GraphProblem:
    """Return a graph without reductions whose operand has the shape of the result."""
    values = list(problem.values)
    nodes = [step for one in problem.nodes for step in _elementwise(one, values, problem.compute)]
    return problem._replace(values=tuple(values), nodes=tuple(nodes))


def _elementwise(one: GraphNode, values: list[GraphValue], compute: str) -> list[GraphNode]:
    """Return the nodes of a reduction of single elements, and add their tensors; return others unchanged."""
    if one.kind != "reduction":
        return [one]
    ((_, x),), ((_, y),) = one.operands, one.results
    if values[x].spec.shape != values[y].spec.shape:
        return [one]
    if one.attribute("operator") in _MAGNITUDES:
        return [_pointwise("abs", y, x=x)]
    number = len(values)
    if one.attribute("operator") != "mul_no_zeros":
        # cuDNN does not write the result of an identity whose operand has other uses.
        values.append(GraphValue("", TensorSpec((), (), compute), "constant", 1.0))
        return [_pointwise("mul", y, x=x, b=number)]
    values.append(GraphValue("", TensorSpec((), (), compute), "constant", 0.0))
    values.append(GraphValue("", values[y].spec._replace(dtype=compute), "virtual"))  # 1 for zeros
    return [_pointwise("cmp_eq", number + 1, x=x, b=number), _pointwise("add", y, x=x, b=number + 1)]


def _pointwise(mode: str, y: int, **operands: int) -> GraphNode:
    return GraphNode("pointwise", tuple(operands.items()), (("y", y),), (("mode", mode),))


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
    values, nodes = list(problem.values), list[GraphNode]()

    def constant(number: int) -> int:
        value = number if "int" in problem.compute else float(number)
        values.append(
            GraphValue(f"number_{len(values)}", TensorSpec((), (), problem.compute), "constant", value)
        )
        return len(values) - 1

    zero = constant(0)

    def condition(place: int) -> int:
        """Return a value that is 1 where another value is not 0."""
        value = values[place]
        if value.role == "constant":
            return constant(int(value.value != 0))
        if value.spec.dtype == "bool":
            return place
        spec = value.spec._replace(dtype=problem.compute)
        values.append(GraphValue(f"condition_{len(values)}", spec, "virtual"))
        results = (("y", len(values) - 1),)
        nodes.append(GraphNode("pointwise", (("x", place), ("b", zero)), results, (("mode", "cmp_neq"),)))
        return len(values) - 1

    for one in problem.nodes:
        mode = one.attribute("mode")
        if mode == "logical_not":
            ((_, x),) = one.operands
            one = one._replace(operands=(("x", x), ("b", zero)), attributes=(("mode", "cmp_eq"),))
        elif mode in LOGICAL:
            operands = tuple((role, condition(place)) for role, place in one.operands)
            one = one._replace(operands=operands, attributes=(("mode", _OF_TWO[mode]),))
        nodes.append(one)
    return problem._replace(values=tuple(values), nodes=tuple(nodes))


# --- clips -------------------------------------------------------------------------------------------------

# Clipped relus next to products of matrices as a relu without clips, a maximum and a minimum. An engine of
# cuDNN 9.19 for products of float32 ignores the clips of a relu.

_CLIPS = ("relu_lower_clip", "relu_upper_clip")


def without_clips(problem: GraphProblem) -> GraphProblem:
    """Return a graph without clipped relus, or itself if it has no product of matrices."""
    if not any(one.kind == "matmul" for one in problem.nodes):
        return problem
    values = list(problem.values)
    nodes = [step for one in problem.nodes for step in _unclipped(one, values, problem.compute)]
    return problem._replace(values=tuple(values), nodes=tuple(nodes))


def _unclipped(one: GraphNode, values: list[GraphValue], compute: str) -> list[GraphNode]:
    """Return the nodes of a clipped relu, and add their tensors; other nodes are returned as they are."""
    lower, upper = (one.attribute(name) for name in _CLIPS)
    if one.attribute("mode") != "relu_fwd" or (lower is None and upper is None):
        return [one]
    slope = one.attribute("relu_lower_clip_slope")
    steps: list[tuple[str, float | None, dict[str, float]]] = []  # the mode, the number and the attributes
    if lower is None:
        steps.append(("relu_fwd", None, {} if slope is None else {"relu_lower_clip_slope": slope}))
    elif slope is None:
        steps.append(("max", lower, {}))
    else:
        leaky = {"relu_lower_clip_slope": slope}
        steps += [("sub", lower, {}), ("relu_fwd", None, leaky), ("add", lower, {})]
    if upper is not None:
        steps.append(("min", upper, {}))
    ((_, source),), ((_, result),) = one.operands, one.results
    made = []
    for number, (mode, constant, attributes) in enumerate(steps, 1):
        operands = [("x", source)]
        if constant is not None:
            operands.append(("b", len(values)))
            values.append(GraphValue("", TensorSpec((), (), compute), "constant", constant))
        if number < len(steps):
            source = len(values)
            between = values[result].spec._replace(dtype=compute)
            values.append(GraphValue("", between, "virtual"))
        else:
            source = result
        given = (("mode", mode), *attributes.items())
        made.append(GraphNode("pointwise", tuple(operands), (("y", source),), given))
    return made


# --- repeated operands -------------------------------------------------------------------------------------

_PRODUCTS = ("matmul", "conv_forward", "conv_backward_data", "conv_backward_filter")
_ELEMENTWISE = ("pointwise", "pointwise_backward")

Use = frozenset[tuple[int, str]]  # the operands of products for which a tensor is read


def with_separate_inputs(problem: GraphProblem) -> tuple[GraphProblem, dict[int, int]]:
    """Return a graph whose inputs have one use each, and the place of the input behind each added value.

    The uses are each operand of a product, all that is computed for it, and all that follows the products.
    Elementwise operations whose result has several uses are computed for each.
    """
    added: dict[int, int] = {}
    if not any(one.kind in _PRODUCTS for one in problem.nodes):
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
        if one.kind in _ELEMENTWISE and sources:
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
    if one.kind in _PRODUCTS:
        return [Use({(number, role)}) for role, _ in one.operands]
    return [use] * len(one.operands)
