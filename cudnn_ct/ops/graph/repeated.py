"""A tensor descriptor for each use of an input that matrix products or convolutions use more than once.

Engines of matrix products in cuDNN 9.19 compute wrong numbers, or NaN, if one descriptor is both operands, or
is an operand and is also read before or after the product.
"""

from __future__ import annotations

from itertools import count

from ...shapes.graph.problem import GraphNode, GraphProblem

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
