"""Layouts, values and poolings that engines of cuDNN compute wrong: the conditions of facts, and rejections.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end, and cuDNN returns them nevertheless. Random graphs with cuDNN 9.19 found the patterns, those of poolings
on an H100 and the others on an H200. facts.json has a row for each, with its range of versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..facts import Fact, Target, facts, ignores
from ..shapes.specs import LAYOUTS, TensorSpec, equivalent_strides
from . import broadcasts
from .operations import Graph, Node

NATIVE = "native graph"  # the operation of these facts
BROADCASTS, CONVERSIONS = "a broadcast that engines read wrong", "rows of part words converted for a product"

# Averages whose divisor includes the padding.
_COUNTING_PADDING = ("avgpool", "avgpool_include_padding")


def check_layouts(graph: Graph, target: Target) -> None:
    """Raise NotSupportedError if a fact says that engines compute a graph wrong."""
    # Attention, which has two products of matrices, reads each tensor with its own strides.
    if sum(one.row == "matmul" for one in graph.nodes) > 1:
        return
    if len(graph.nodes) == 1 and graph.nodes[0].row in broadcasts.CONVOLUTIONS:
        return  # most graphs: facts about a convolution alone are about engines
    rejections = facts("reject", NATIVE, target)
    for name, tensors_that_meet in CONDITIONS.items():
        for fact in rejections:
            if name in fact.when:
                for detail in tensors_that_meet(graph):
                    if not ignores(fact.name):
                        raise NotSupportedError(_reason(fact, detail))


def known(condition: str, target: Target) -> bool:
    """Return whether a fact about native graphs has a condition."""
    return any(condition in fact.when and not ignores(fact.name) for fact in facts("reject", NATIVE, target))


def _reason(fact: Fact, detail: str) -> str:
    return f"{fact.message}{f': {detail}' if detail else ''}{f'; {fact.advice}' if fact.advice else ''}"


# --- conditions: each yields the tensors that meet it ------------------------------------------------------


def _nodes(graph: Graph, row: str) -> Iterator[Node]:
    return (one for one in graph.nodes if one.row == row)


def _specs(one: Node) -> dict[str, TensorSpec]:
    return {name: tensor.spec for name, tensor in broadcasts.tensors_of_node(one)}


def _listed(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in specs.items())


def _norm_and_gradient(graph: Graph) -> Iterator[str]:
    modes = [str(one.attributes.get("mode")) for one in graph.nodes]
    if any(_nodes(graph, "norm_forward")) and any(mode.endswith("_bwd") for mode in modes):
        yield ""


def _part_words(graph: Graph) -> Iterator[str]:
    for tensor, dtype in broadcasts.wrong_conversions(graph):
        count = broadcasts.WORD // DTYPES[tensor.spec.dtype].itemsize
        wanted = f"its contiguous axis and its other strides must be multiples of {count}"
        yield f"got {tensor.spec}{f' converted to {dtype}' if dtype else ''}; {wanted}"


def _images(graph: Graph) -> Iterator[tuple[Node, dict[str, TensorSpec], bool]]:
    """Yield each convolution among other nodes, its tensors, and whether these have a common layout."""
    if len(graph.nodes) > 1:
        for one in graph.nodes:
            if one.row in broadcasts.CONVOLUTIONS:
                specs = _specs(one)
                common = any(all(name in spec.layouts for spec in specs.values()) for name in LAYOUTS)
                yield one, specs, common


def _one_pixel(graph: Graph) -> Iterator[str]:
    """Engines read a result of one pixel as channels last: channels are adjacent in both layouts."""
    for one, specs, common in _images(graph):
        pixels = prod(specs[broadcasts.CONVOLUTIONS[one.row]].shape[2:])
        if common and pixels == 1 and not all(map(broadcasts.is_channels_last, specs.values())):
            yield _listed(specs)


def _two_half_precisions(graph: Graph) -> Iterator[str]:
    """Engine 2 accepts them and computes wrong results; all other engines reject them."""
    for one, specs, _ in _images(graph):
        result = broadcasts.CONVOLUTIONS[one.row]
        operands = {name: spec for name, spec in specs.items() if name != result}
        if {spec.dtype for spec in operands.values()} == {"float16", "bfloat16"}:
            yield _listed(operands)


def _reduction_with_gaps(graph: Graph) -> Iterator[str]:
    """The gaps are cleared too before elements are added."""
    for one in _nodes(graph, "reduction"):
        y: Any = one.attributes["ydesc"]
        if not (y.virtual or y.spec.is_dense):
            yield f"got {y.spec}"


def _narrow_sums(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "gen_stats"):
        for name in ("sumdesc", "sqsumdesc"):
            y: Any = one.attributes.get(name)
            if y is not None and y.spec.dtype != "float32":
                yield f"got {y.spec}"


def _indices_of_pooling(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "resample_forward"):
        specs = _specs(one)
        if "idxdesc" in specs and not all(map(broadcasts.is_channels_last, specs.values())):
            yield _listed(specs)


def _computed_pooling(graph: Graph) -> Iterator[str]:
    results = {broadcasts.result_of(other) for other in _nodes(graph, "pointwise")}
    for one in _nodes(graph, "resample_forward"):
        x: Any = one.attributes["xdesc"]
        if x.virtual or x.uid in results:
            yield ""


def _averages_with_padding(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "resample_forward"):
        values: dict[str, Any] = one.attributes  # type: ignore[assignment]
        before, after, specs = values["pre_paddings"], values["post_paddings"], _specs(one)
        longer = any(more > less for less, more in zip(before, after, strict=True))
        counts = values["mode"] in _COUNTING_PADDING
        if counts and longer and not all(map(broadcasts.is_channels_last, specs.values())):
            yield f"got padding {before} and {after}"


def _computed_choice(graph: Graph) -> Iterator[str]:
    of_products, uses = broadcasts.needed_by_products(graph), _uses(graph)
    for one in _nodes(graph, "pointwise"):
        if one.attributes["mode"] == "binary_select" and broadcasts.result_of(one) in of_products:
            tensors: list[Any] = [one.attributes[name] for name in ("xdesc", "bdesc")]
            # Each must be an input of the graph that one node reads.
            if any(one.value is not None or one.virtual or uses[one.uid] != 1 for one in tensors):
                yield ""


def _first_index(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "pointwise"):
        if one.attributes["mode"] == "gen_index" and one.attributes["axis"] == 0:
            x: Any = one.attributes["xdesc"]
            if len(x.spec.shape) == 3 and x.spec.shape[0] > 1:
                yield f"got a gen_index of {x.spec} along axis 0"


def _identity_of_used(graph: Graph) -> Iterator[str]:
    uses = _uses(graph)
    for one in _nodes(graph, "pointwise"):
        if one.attributes["mode"] == "identity":
            tensors = dict(broadcasts.tensors_of_node(one))
            x, y = (tensors[name] for name in ("xdesc", "ydesc"))
            if x.virtual and uses[x.uid] > 2 and x.spec.dtype == y.spec.dtype:
                yield ""


def _other_strides(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "pointwise"):
        specs = [tensor.spec for _, tensor in broadcasts.tensors_of_node(one) if tensor.value is None]
        result = max(specs, key=lambda spec: spec.size)
        for spec in (spec for spec in specs if spec.shape == result.shape):
            if not equivalent_strides(spec.shape, spec.strides, result.strides):
                yield f"got {spec} and {result}"


def _shared_element(graph: Graph) -> Iterator[str]:
    products = (_specs(one)["cdesc"].shape for one in _nodes(graph, "matmul"))
    if any(shape[-1] == 1 < prod(shape[:-2]) for shape in products):
        for one in _nodes(graph, "pointwise"):
            for _, tensor in broadcasts.tensors_of_node(one):
                if tensor.spec.size == 1 and tensor.value is None and not tensor.virtual:
                    yield f"got {tensor.spec}"


def _uses(graph: Graph) -> Counter[int]:
    """Return the number of nodes that have each tensor; its producer is one of them."""
    return Counter(tensor.uid for one in graph.nodes for _, tensor in broadcasts.tensors_of_node(one))


CONDITIONS: dict[str, Callable[[Graph], Iterator[str]]] = {
    "a norm and the gradient of an activation": _norm_and_gradient,
    CONVERSIONS: _part_words,
    "a convolution whose tensors differ in layout": lambda graph: (
        _listed(specs) for _, specs, common in _images(graph) if not common
    ),
    "a convolution to one pixel that is not in NHWC": _one_pixel,
    "a convolution of float16 and bfloat16": _two_half_precisions,
    "one element beside several products of one column": _shared_element,
    "a reduction to a tensor with gaps": _reduction_with_gaps,
    "sums of channels that are not float32": _narrow_sums,
    "indices of a pooling that is not in NHWC": _indices_of_pooling,
    "a pooling of a computed tensor": _computed_pooling,
    "averages with more padding behind than before": _averages_with_padding,
    "a selection from computed tensors for a product": _computed_choice,
    "an index along the first of three axes": _first_index,
    "an identity of a tensor with other uses": _identity_of_used,
    "elementwise operands of different layouts": _other_strides,
    BROADCASTS: lambda graph: (
        f"{x.spec} is broadcast to {shape}" for x, shape in broadcasts.wrong_broadcasts(graph)
    ),
}
"""The conditions of facts about native graphs, by name; a fact has one of them."""
