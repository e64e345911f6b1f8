"""Graphs of ct.Graph in nvidia-cudnn-frontend, whose Python package is called ``cudnn``.

The graph is described a second time, by that library's own methods, and planned and launched by it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from cudnn_ct.shapes.graph.problem import GraphNode, GraphProblem, GraphValue

__all__ = ["FrontendGraph", "UntranslatableError"]

DTYPES = {
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOLEAN",
    "float8_e4m3": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2",
}
OF_IMAGES = ("conv_forward", "conv_backward_data", "conv_backward_filter")
NORMS = ("norm_forward", "norm_backward")


class UntranslatableError(Exception):
    """The library has no method for an operation of the graph."""


class FrontendGraph:
    """A graph of nvidia-cudnn-frontend with the tensors of a problem.

    Attributes
    ----------
    graph : cudnn.pygraph
    memory : list of tensors of the library
        The inputs, then the outputs.
    """

    def __init__(self, problem: GraphProblem, handle: Any = None) -> None:
        import cudnn

        self._library, self.problem = cudnn, problem
        kinds = {one.kind for one in problem.nodes}
        adaptive = any(one.attribute("mode") == "ada_layer_norm" for one in problem.nodes)
        own = max(len(value.spec.shape) for value in problem.values)
        self.trailing = 4 - own if kinds & set(NORMS) and own < 4 and not adaptive else 0
        if kinds & set(OF_IMAGES) and own == 3:
            raise UntranslatableError("images of one spatial axis")
        self.rank = max(own + self.trailing, 3)
        keywords = {} if handle is None else {"handle": handle}
        self.graph = cudnn.pygraph(
            io_data_type=self._dtype(problem.values[problem.inputs[0]]),
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=getattr(cudnn.data_type, DTYPES[problem.compute]),
            **keywords,
        )
        self.tensors: dict[int, Any] = {}
        self.constants: list[tuple[Any, GraphValue]] = []
        self._logical = any(str(one.attribute("mode")).startswith("logical") for one in problem.nodes)
        for place in problem.inputs:
            value = problem.values[place]
            shape, strides = self._extended(value)
            self.tensors[place] = self.graph.tensor(
                name=value.name, dim=shape, stride=strides, data_type=self._dtype(value)
            )
        for one in problem.nodes:
            self._add(one)
        self.memory = [self.tensors[place] for place in (*problem.inputs, *problem.outputs)]

    def build(self) -> str:
        """Plan the graph, and return the name of the plan that a call executes."""
        self.graph.build([self._library.heur_mode.A, self._library.heur_mode.FALLBACK])
        for index in (getattr(self.graph, "_plan_index", 0), 0):
            try:
                return str(self.graph.get_plan_name_at_index(index))
            except Exception:  # the name is for the report only
                continue
        return "unknown"

    def caller(self, tensors: list[Any], handle: Any = None) -> Callable[[], None]:
        """Return a function that executes the built graph on torch tensors: inputs, then outputs."""
        import torch

        size = max(int(self.graph.get_workspace_size()), 1)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        memory = (*self.problem.inputs, *self.problem.outputs)
        shapes = [self._extended(self.problem.values[place]) for place in memory]
        views = [tensor.as_strided(*shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        operands = dict(zip(self.memory, views, strict=True))
        for tensor, value in self.constants:
            dtype = getattr(torch, value.spec.dtype)
            operands[tensor] = torch.full([1] * self.rank, value.value, dtype=dtype)  # type: ignore[arg-type]
        return lambda: self.graph.execute(operands, workspace, handle=handle)

    # --- tensors ---------------------------------------------------------------------------------------

    def _dtype(self, value: GraphValue) -> Any:
        return getattr(self._library.data_type, DTYPES[value.spec.dtype])

    def _extended(self, value: GraphValue) -> tuple[list[int], list[int]]:
        """Return the shape and the strides of a tensor with the rank of the graph."""
        shape, strides = list(value.spec.shape), list(value.spec.strides)
        most = prod(shape)
        missing = self.rank - self.trailing - len(shape)
        shape, strides = [1] * missing + shape, [most] * missing + strides
        return shape + [1] * self.trailing, strides + [1] * self.trailing

    def _operand(self, place: int) -> Any:
        if place not in self.tensors:  # a constant, which each call passes in host memory
            value, ones = self.problem.values[place], [1] * self.rank
            facts = {"dim": ones, "stride": ones, "data_type": self._dtype(value)}
            self.tensors[place] = self.graph.tensor(name=value.name, is_pass_by_value=True, **facts)
            self.constants.append((self.tensors[place], value))
        return self.tensors[place]

    def _made(self, tensor: Any, place: int) -> None:
        """Give a result the dtype of its tensor, and memory if it is an output."""
        value = self.problem.values[place]
        condition = value.role == "virtual" and value.spec.dtype == "bool" and not self._logical
        tensor.set_data_type(self._library.data_type.FLOAT if condition else self._dtype(value))
        if value.role == "output":
            shape, strides = self._extended(value)
            tensor.set_output(True).set_dim(shape).set_stride(strides)
        self.tensors[place] = tensor

    # --- operations ------------------------------------------------------------------------------------

    def _add(self, one: GraphNode) -> None:
        skipped = ("scale",) if one.kind.startswith("sdpa") else ()  # a number of the node
        given = {role: self._operand(place) for role, place in one.operands if role not in skipped}
        results = dict(one.results)
        if one.kind not in OPERATIONS:
            raise UntranslatableError(one.kind)
        made = OPERATIONS[one.kind](self, one, given)
        for role, place in results.items():
            if role not in made or made[role] is None:
                raise UntranslatableError(f"{one.kind} without {role}")
            self._made(made[role], place)


Given = dict[str, Any]


def _pointwise(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    mode = one.attribute("mode")
    name = mode.removesuffix("_fwd").replace("_bwd", "_backward")
    method = getattr(self.graph, name, None)
    if method is None:
        raise UntranslatableError(f"pointwise {mode}")
    facts = {name: value for name, value in one.attributes if name != "mode"}
    more: Given = {}
    for mine, theirs, default in (
        ("swish_beta", "swish_beta", 1.0),
        ("relu_lower_clip", "lower_clip", 0.0),
        ("relu_upper_clip", "upper_clip", None),
        ("relu_lower_clip_slope", "negative_slope", 0.0),
        ("axis", "axis", None),
    ):
        value = facts.pop(mine, default)
        if mine == "axis" and value is not None:
            value += self.rank - self.trailing - len(self.problem.operands_of(one)["x"].spec.shape)
        if value != default:
            more[theirs] = value
    if any(value != 1.0 for value in facts.values()):  # of elu and softplus
        raise UntranslatableError(f"pointwise {mode} with {facts}")
    if "dy" in given:
        return {"dx": method(given["dy"], given["x"], **more)}
    order = [given[role] for role in ("x", "b", "t") if role in given]
    return {"y": method(*order, **more)}


def _matmul(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    return {"c": self.graph.matmul(given["a"], given["b"])}


def _geometry(self: FrontendGraph, one: GraphNode) -> Given:
    if one.attribute("conv_mode", "cross_correlation") != "cross_correlation":
        raise UntranslatableError("convolutions that are not cross-correlations")
    return {
        "pre_padding": list(one.attribute("pre_paddings")),
        "post_padding": list(one.attribute("post_paddings")),
        "stride": list(one.attribute("filter_strides")),
        "dilation": list(one.attribute("dilations")),
    }


def _conv(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    return {"y": self.graph.conv_fprop(image=given["x"], weight=given["w"], **_geometry(self, one))}


def _conv_data(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    dx = self.graph.conv_dgrad(loss=given["dy"], filter=given["w"], **_geometry(self, one))
    return {"dx": dx.set_dim(list(self.problem.results_of(one)["dx"].spec.shape))}


def _conv_filter(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    dw = self.graph.conv_wgrad(image=given["x"], loss=given["dy"], **_geometry(self, one))
    return {"dw": dw.set_dim(list(self.problem.results_of(one)["dw"].spec.shape))}


def _reduction(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    mode = getattr(self._library.reduction_mode, one.attribute("operator").upper())
    y = self.graph.reduction(given["x"], mode=mode)
    shape, strides = self._extended(self.problem.results_of(one)["y"])
    return {"y": y.set_dim(shape).set_stride(strides)}


NORM_METHODS = {
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "instance_norm": "instancenorm",
    "ada_layer_norm": "adalayernorm",
    "batch_norm": "batchnorm",  # of the gradient
}


def _norm(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    mode, phase = one.attribute("mode"), one.attribute("phase")
    if mode == "batch_norm" or "running_mean" in given:
        raise UntranslatableError("batch norms without running statistics, or norms with them")
    named = {"input": given["x"], "scale": given["scale"], "epsilon": given["epsilon"]}
    if "bias" in given:
        named["bias"] = given["bias"]
    if mode != "batch_norm":
        named["norm_forward_phase"] = getattr(self._library.norm_forward_phase, phase.upper())
    y, *stats = getattr(self.graph, NORM_METHODS[mode])(**named)
    if mode == "rms_norm":
        return {"y": y, "inv_variance": stats[0]}
    return {"y": y, "mean": stats[0], "inv_variance": stats[1]}


def _norm_backward(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    mode = one.attribute("mode")
    named = {"grad": given["dy"], "input": given["x"], "scale": given["scale"]}
    named |= {"inv_variance": given["inv_variance"]}
    if mode == "rms_norm":
        named["has_dbias"] = "dbias" in dict(one.results)
    else:
        named["mean"] = given["mean"]
    dx, dscale, dbias = getattr(self.graph, f"{NORM_METHODS[mode]}_backward")(**named)
    return {"dx": dx, "dscale": dscale, "dbias": dbias}


def _gen_stats(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    total, squares = self.graph.genstats(given["x"])
    return {"sum": total, "sq_sum": squares}


def _masks(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    scale = self.problem.operands_of(one)["scale"]
    found: Given = {"attn_scale": scale.value}
    left, right, corner = one.attribute("band") or (None, None, "")
    if corner:
        found["diagonal_alignment"] = getattr(self._library.diagonal_alignment, corner.upper())
    if right is not None:
        found["diagonal_band_right_bound"] = right
    if left is not None:  # their bound counts the key at the place of the query
        found["diagonal_band_left_bound"] = left + 1
    if "bias" in given:
        found["bias"] = given["bias"]
    if "seq_len_q" in given:
        found |= {"use_padding_mask": True, "seq_len_q": given["seq_len_q"]}
        found["seq_len_kv"] = given["seq_len_kv"]
    return found


def _sdpa(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    if "page_table_k" in given:
        raise UntranslatableError("paged caches")
    stats = "stats" in dict(one.results)
    named = {name: given[name] for name in "qkv"} | _masks(self, one, given)
    o, sums = self.graph.sdpa(**named, generate_stats=stats)
    return {"o": o, "stats": sums}


def _sdpa_backward(self: FrontendGraph, one: GraphNode, given: Given) -> Given:
    named = {name: given[name] for name in ("q", "k", "v", "o", "stats")} | _masks(self, one, given)
    made: Given = {}
    if "dbias" in dict(one.results):
        shape, strides = self._extended(self.problem.results_of(one)["dbias"])
        made["dbias"] = self.graph.tensor(name="dbias", dim=shape, stride=strides)
        named["dBias"] = made["dbias"]
    dq, dk, dv = self.graph.sdpa_backward(**named, dO=given["do"])
    return {"dq": dq, "dk": dk, "dv": dv, **made}


OPERATIONS: dict[str, Callable[[FrontendGraph, GraphNode, Given], Given]] = {
    "pointwise": _pointwise,
    "pointwise_backward": _pointwise,
    "matmul": _matmul,
    "conv_forward": _conv,
    "conv_backward_data": _conv_data,
    "conv_backward_filter": _conv_filter,
    "reduction": _reduction,
    "norm_forward": _norm,
    "norm_backward": _norm_backward,
    "gen_stats": _gen_stats,
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
}
