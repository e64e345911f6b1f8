"""The conditions of facts by name, one table for each family of operations, and the facts that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from math import prod
from typing import Any

from ..dtypes import GRAPH_DTYPES
from ..facts import Fact, Target, facts, ignores, row_error, user_facts
from ..graph.layouts import CONDITIONS as NATIVE_CONDITIONS
from ..graph.offline import target_of
from ..shapes.arithmetic import FLOAT8
from ..shapes.conv import ConvProblem, written_as
from ..shapes.graph.problem import LOGICAL, PRODUCT_KINDS
from ..shapes.specs import TensorSpec
from .rows import FAMILIES, why_unknown
from .sizes import sizes_of
from .subjects import Convolution, Norm, Product, Subject, convolutions_of, subjects_of

Condition = Callable[[Any], bool]


@cache
def conditions_of(family: str) -> Mapping[str, Condition]:
    """Return the conditions of a family of operations."""
    if family == "attention":
        from .attention_conditions import CONDITIONS  # only with attention

        return CONDITIONS
    return _TABLES[family]


# --- facts that hold -------------------------------------------------------------------------------------


def applying(kind: str, subject: Subject, target: Target) -> Iterator[Fact]:
    """Yield the facts of a kind that hold for a subject."""
    check_user_facts()
    operation, value = subject
    if not (known := facts(kind, operation, target)):
        return
    conditions = conditions_of(FAMILIES[operation])
    held: dict[str, bool] = {}  # many rows share a condition
    sizes: dict[str, Any] = {}
    for fact in known:
        for name in fact.when:
            if name not in held:
                held[name] = conditions[name](value)
            if not held[name]:
                break
        else:
            wanted = fact.row.get("sizes", {})
            if wanted and not sizes:
                sizes = sizes_of(value)
            for condition, bound in wanted.items():  # here, because a function would be called for each row
                prefix, _, size = condition.partition("_")
                if prefix not in ("min", "max"):
                    fits = sizes[condition] == bound
                else:
                    fits = sizes[size] >= bound if prefix == "min" else sizes[size] <= bound
                if not fits:
                    break
            else:
                if not ignores(fact.name):
                    yield fact


@lru_cache(maxsize=1)
def check_user_facts() -> None:
    """Raise FactsError if a row of a user has an unknown operation or condition."""
    for row in user_facts():
        if wrong := why_unknown(row, conditions_of):
            raise row_error(row, row["line"], wrong)


# --- convolutions ------------------------------------------------------------------------------------------


def rounds_to(problem: ConvProblem) -> str:
    """Return the precision of products and sums; float32 products of half precision are exact."""
    in_tf32 = problem.tensor_cores and problem.x.dtype == problem.compute == "float32"
    return "tf32" if in_tf32 else problem.compute


def without_wrong_tf32(problem: ConvProblem) -> ConvProblem:
    """Return the problem, in IEEE arithmetic if this cuDNN is known to compute it wrong in TF32."""
    if rounds_to(problem) != "tf32":
        return problem
    (subject,) = subjects_of(problem)
    wrong = any("TF32" in fact.when for fact in applying("rewrite", subject, target_of(None)))
    return problem._replace(tensor_cores=False) if wrong else problem


def _channels_first(spec: TensorSpec, problem: ConvProblem) -> bool:
    return bool(spec.layouts) and written_as(spec, problem) != "nhwc"


def _is_padded(problem: ConvProblem) -> bool:
    """Whether tensor cores need more channels; those with one filter each are taken several at once."""
    groups, (filters, thick) = problem.groups, problem.w.shape[:2]
    alone = thick == 1 and filters == groups > 1
    return groups % 8 > 0 if alone else thick % 8 > 0 or filters // groups % 8 > 0


def _has(node: str) -> Condition:
    return lambda subject: node in subject.nodes


_CONVOLUTIONS: dict[str, Callable[[Convolution], bool]] = {
    "3 spatial axes": lambda p: len(p.core.x.shape) == 5,
    "float16 or bfloat16": lambda p: p.core.x.dtype in ("float16", "bfloat16"),
    "float16 or float32": lambda p: p.core.x.dtype in ("float16", "float32"),
    "a dtype other than float32": lambda p: p.core.x.dtype != "float32",
    "float16": lambda p: p.core.x.dtype == "float16",
    "float32": lambda p: p.core.x.dtype == "float32",
    "int8": lambda p: p.core.x.dtype == "int8",
    "TF32": lambda p: rounds_to(p.core) == "tf32",
    "sums in float32": lambda p: p.core.compute == "float32",
    "sums rounded to float32": lambda p: rounds_to(p.core) == "float32",
    "a filter larger than 1": lambda p: any(length != 1 for length in p.core.w.shape[2:]),
    "one window that covers the image": lambda p: (
        p.core.w.shape[2:] == p.core.x.shape[2:] != p.core.y.shape[2:] and not any(map(any, p.core.padding))
    ),
    "a filter of one element": lambda p: prod(p.core.w.shape[2:]) == 1,
    "more than 64 filters": lambda p: p.core.w.shape[0] > 64,
    "more than 65,535 images": lambda p: p.core.x.shape[0] > 65_535,
    "windows of 5": lambda p: 5 in p.core.w.shape[2:],
    "windows of more than 16 elements": lambda p: prod(p.core.w.shape[2:]) > 16,
    "depthwise": lambda p: 1 < p.core.groups == p.core.x.shape[1],
    "groups of one filter with several channels": lambda p: (
        1 < p.core.groups == p.core.w.shape[0] and p.core.w.shape[1] > 1
    ),
    "2**31 or more elements": lambda p: max(p.core.x.size, p.core.y.size) >= 2**31,
    "uneven padding": lambda p: p.core.asymmetric_padding,
    "stride and dilation above 1": lambda p: any(
        min(pair) > 1 for pair in zip(p.core.stride, p.core.dilation, strict=True)
    ),
    "a flipped filter": lambda p: p.core.mode == "convolution",
    "a result of one pixel": lambda p: prod(p.core.y.shape[2:]) == 1,
    "x in NHWC": lambda p: not _channels_first(p.core.x, p.core),
    "x that is not in NHWC": lambda p: _channels_first(p.core.x, p.core),
    "y that is not in NHWC": lambda p: _channels_first(p.core.y, p.core),
    "tensors that are not all NHWC": lambda p: "nhwc" not in p.core.common_layouts,
    "tensors of different layouts": lambda p: not p.core.common_layouts,
    "contiguous in NCHW in one dtype": lambda p: (
        "nchw" in p.core.common_layouts
        and p.core.x.dtype == p.core.w.dtype == p.core.y.dtype == p.core.compute
    ),
    "channels that are not multiples of 8": lambda p: bool(p.core.x.shape[1] % 8 or p.core.y.shape[1] % 8),
    "channels of groups that are multiples of 8": lambda p: not _is_padded(p.core),
    "channels of groups that are not multiples of 8": lambda p: _is_padded(p.core),
    "2 channels modulo 8": lambda p: p.core.x.shape[1] % 8 == 2,
    "other operations in the graph": lambda subject: bool(subject.nodes),
    "a selection in the graph": _has("binary_select"),
    "gradients of a batch norm in the graph": _has("bn_backward_weights"),
    "no operations that the order was not fitted to": lambda subject: not subject.nodes or subject.fused,
    "tanh": _has("tanh_fwd"),
    "relu or the identity": lambda subject: bool(subject.nodes & {"relu_fwd", "identity_fwd"}),
    "a beta of swish": lambda subject: subject.beta,
}

# --- products and normalisations ---------------------------------------------------------------------------

_PRODUCTS: dict[str, Callable[[Product], bool]] = {
    "half precision": lambda product: GRAPH_DTYPES[product.dtype].itemsize == 2,
    "float8": lambda product: product.dtype in FLOAT8,
    "exact gelu": _has("gelu_fwd"),
    "an activation": lambda product: bool(product.nodes - {"identity_fwd"}),
    "one element that several matrices of one column share": lambda product: product.shares_one,
    "at most 256 terms": lambda product: product.terms <= 256,
    "more than 64 terms": lambda product: product.terms > 64,
    "2**23 or more sums": lambda product: product.sums >= 2**23,
}
_NORMS: dict[str, Callable[[Norm], bool]] = {
    "a mean that is large next to the deviation": lambda _: True,  # only the values tell
    "rows of multiples of 64": lambda norm: norm.columns % 64 == 0,
    "statistics": lambda norm: norm.statistics,
    "no statistics": lambda norm: not norm.statistics,
}

_NETWORKS: dict[str, Condition] = {
    "two directions": lambda network: network.spec.directions == 2,
    "relu or tanh": lambda network: network.spec.mode in ("rnn_relu", "rnn_tanh"),
    "gates": lambda network: len(network.spec.gates) > 1,
    "more than 128 units": lambda network: network.spec.hidden_size > 128,
    "more than 256 units": lambda network: network.spec.hidden_size > 256,
    "training": lambda network: network.training,
}

# --- graphs ------------------------------------------------------------------------------------------------


def _has_kind(problem: Any, *kinds: str) -> bool:
    return any(one.kind in kinds for one in problem.nodes)


def _has_mode(problem: Any, *modes: str) -> bool:
    return any(one.attribute("mode") in modes for one in problem.nodes)


_EXTREMES = ("max", "min", "amax")


def is_exact(problem: Any) -> bool:
    """Return whether products of float32 must not be computed in TF32."""
    products = [one for one in problem.nodes if one.kind in PRODUCT_KINDS]
    operands = [value for one in products for value in problem.operands_of(one).values()]
    if not any(value.spec.dtype == "float32" for value in operands):
        return False
    return not problem.tensor_cores or any(without_wrong_tf32(one) != one for one in convolutions_of(problem))


def _adds_in_any_order(problem: Any) -> bool:
    """Whether a reduction adds in an order that varies: all but those of the innermost axes in memory."""
    reductions = [one for one in problem.nodes if one.kind == "reduction"]
    for one in (one for one in reductions if one.attribute("operator") not in _EXTREMES):
        x, y = problem.operands_of(one)["x"].spec, problem.results_of(one)["y"].spec
        axes = [axis for axis, length in enumerate(x.shape) if length > 1]
        axes.sort(key=lambda axis: -x.strides[axis])
        kept = [y.shape[axis] > 1 for axis in axes]
        if kept[:1] == [False] or kept != sorted(kept, reverse=True):
            return True
    return False


def _indexed(problem: Any) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the shape and the axis of each index of elements."""
    for one in problem.nodes:
        if one.attribute("mode") == "gen_index":
            yield problem.operands_of(one)["x"].spec.shape, one.attribute("axis")


def _indexes_rows_of_products(problem: Any) -> bool:
    """Whether a graph with a product has the index of rows of several matrices."""
    rows = any(axis == len(shape) - 2 and prod(shape[:-2]) > 1 for shape, axis in _indexed(problem))
    return rows and _has_kind(problem, "matmul")


def _selects_beside_vector(problem: Any) -> bool:
    """Whether a graph has a selection, and a product whose result has one row or one column."""
    products = [problem.results_of(one)["c"].spec for one in problem.nodes if one.kind == "matmul"]
    return _has_mode(problem, "binary_select") and any(1 in spec.shape[-2:] for spec in products)


def _clips_beside_product(problem: Any) -> bool:
    clips = ("relu_lower_clip", "relu_upper_clip")
    cut = [one for one in problem.nodes if one.attribute("mode") == "relu_fwd"]
    clipped = any(one.attribute(name) is not None for one in cut for name in clips)
    return clipped and _has_kind(problem, "matmul")


_POOLINGS: dict[str, Condition] = {
    "bfloat16": lambda p: p.dtype == "bfloat16",
    "maxima": lambda p: p.mode == "maxpool",
    "a serialized plan in forward compatibility mode": lambda _: False,  # this package makes none
}

_GRAPHS: dict[str, Condition] = {
    "a clipped relu and a product of matrices": _clips_beside_product,
    "a reduction of axes of length 1": lambda p: any(
        p.operands_of(one)["x"].spec.shape == p.results_of(one)["y"].spec.shape
        for one in p.nodes
        if one.kind == "reduction"
    ),
    "an index along the first of three axes": lambda p: any(
        axis == 0 and len(shape) == 3 for shape, axis in _indexed(p)
    ),
    "logical operations": lambda p: _has_mode(p, *LOGICAL),
    "computed conditions": lambda p: any(
        value.spec.dtype == "bool" and value.role == "virtual" for value in p.values
    ),
    "products": lambda p: _has_kind(p, *PRODUCT_KINDS),
    "a gather": lambda p: any(
        one.kind == "moe_grouped_matmul" and one.attribute("mode") == "gather" for one in p.nodes
    ),
    "an index of the rows of several products": _indexes_rows_of_products,
    "an index and the gradient of filters": lambda p: (
        _has_mode(p, "gen_index") and _has_kind(p, "conv_backward_filter")
    ),
    "a selection and the product of a vector": _selects_beside_vector,
    "FP8": lambda p: any(value.spec.dtype.startswith("float8") for value in p.values),
    "float32 without TF32": is_exact,
    "products of float32 without TF32": lambda p: is_exact(p) and _has_kind(p, "matmul"),
    "a reduction that is not over the innermost axes": _adds_in_any_order,
}


def _any_of(yielded: Callable[[Any], Iterator[str]]) -> Condition:
    return lambda graph: any(True for _ in yielded(graph))


_TABLES: dict[str, Mapping[str, Condition]] = {
    "convolutions": _CONVOLUTIONS,
    "products": _PRODUCTS,
    "norms": _NORMS,
    "networks": _NETWORKS,
    "poolings": _POOLINGS,
    "graphs": _GRAPHS,
    "native graphs": {name: _any_of(yielded) for name, yielded in NATIVE_CONDITIONS.items()},
    "nodes": {"uneven padding": lambda given: given.get("pre_paddings") != given.get("post_paddings")},
    "everything": {},
}
