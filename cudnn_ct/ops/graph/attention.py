"""Attention and its parts: methods of :class:`cudnn_ct.Graph`, and graphs as problems of `ops.attention`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..._hints import methods_of
from ...errors import NotSupportedError
from ...shapes.attention import AttentionProblem, Band, attention_band
from ...shapes.attention_rules import attention_gradient_problem, attention_problem
from ...shapes.checks import as_bool, as_float, as_int
from ...shapes.graph.problem import GraphProblem
from ...shapes.specs import TensorSpec
from .builder import GraphBuilder
from .tensors import GraphTensor, Operands

Causal = bool | Literal["top_left", "bottom_right"]
Window = tuple[int | None, int | None]


class GraphAttentionGradients(NamedTuple):
    """Gradients of attention; that of the bias is None if it was not requested."""

    dq: GraphTensor
    dk: GraphTensor
    dv: GraphTensor
    dbias: GraphTensor | None


@methods_of("Graph")
class AttentionMethods(GraphBuilder):
    """Attention in one operation, forward and backward, softmax, masks and rotary embeddings."""

    def sdpa(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        *,
        scale: float | None = None,
        causal: Causal = False,
        window: Window | None = None,
        bias: GraphTensor | None = None,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        page_table_k: GraphTensor | None = None,
        page_table_v: GraphTensor | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return ``softmax(scale * q @ k.T + bias) @ v`` of q (B, H, Sq, D), k and v (B, Hk, Sk, D).

        H is a multiple of Hk. The scale is ``1 / sqrt(D)`` by default. ``causal``, ``window`` and ``bias``
        are those of :func:`cudnn_ct.attention`, which has the same kernels and rejects the same problems:
        operands are float16 or bfloat16. The operation is alone in its graph. Lengths are (B, 1, 1, 1) int32,
        and need the lengths of both. With page tables (B, 1, pages, 1) int32 and ``seq_len_kv``, k and v are
        blocks (blocks, Hk, block length, D).
        """
        operands: Operands = {
            **{"q": q, "k": k, "v": v, "bias": bias, "seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv},
            **{"page_table_k": page_table_k, "page_table_v": page_table_v},
        }
        return self._attention("sdpa", operands, scale, causal, window, name, stats=False)["o"]

    def sdpa_with_stats(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        *,
        scale: float | None = None,
        causal: Causal = False,
        window: Window | None = None,
        bias: GraphTensor | None = None,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        name: str | None = None,
    ) -> tuple[GraphTensor, GraphTensor]:
        """Return :meth:`sdpa`, and the logarithms of the sums of exponentials (B, H, Sq, 1) in float32."""
        lengths: Operands = {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv}
        operands: Operands = {"q": q, "k": k, "v": v, "bias": bias, **lengths}
        made = self._attention("sdpa", operands, scale, causal, window, name, stats=True)
        return made["o"], made["stats"]

    def sdpa_backward(
        self,
        do: GraphTensor,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        o: GraphTensor,
        stats: GraphTensor,
        *,
        scale: float | None = None,
        causal: Causal = False,
        window: Window | None = None,
        bias: GraphTensor | None = None,
        dbias: bool = False,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        name: str | None = None,
    ) -> GraphAttentionGradients:
        """Return the gradients of :meth:`sdpa` from its results o and stats; ``dbias`` adds that of the bias.

        All of them must be outputs. Sums of dq are in an order that varies from run to run, unless the graph
        is built with ``deterministic=True``.
        """
        operands: Operands = {
            **{"q": q, "k": k, "v": v, "o": o, "do": do, "stats": stats, "bias": bias},
            **{"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv},
        }
        wanted = as_bool(dbias, "dbias")
        made = self._attention("sdpa_backward", operands, scale, causal, window, name, dbias=wanted)
        return GraphAttentionGradients(made["dq"], made["dk"], made["dv"], made.get("dbias"))

    def diagonal_band_mask(
        self,
        x: GraphTensor,
        *,
        left_bound: int | None = None,
        fill: float = float("-inf"),
        name: str | None = None,
    ) -> GraphTensor:
        """Return scores x (B, H, Sq, Sk) with ``fill`` on one side of a diagonal.

        Query i keeps the keys j with ``j <= i``, or with ``left_bound`` those with ``j + left_bound > i``.
        """
        left = None if left_bound is None else self.constant(left_bound, "int32")
        operands: Operands = {"x": x, "left_bound": left, "fill": self.constant(fill, "float32")}
        return self._apply(
            "diagonal_band_mask", operands, name, comparison_mode="cmp_ge" if left is None else "cmp_gt"
        )["y"]

    def softmax(self, x: GraphTensor, *, name: str | None = None) -> GraphTensor:
        """Return the softmax of x (B, H, Sq, Sk) over the last axis."""
        return self._apply("softmax", {"x": x}, name)["y"]

    def rope(
        self,
        x: GraphTensor,
        freqs: GraphTensor,
        *,
        rope_dim: int | None = None,
        output_scale: float | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return x (B, H, S, D), the last ``rope_dim`` elements rotated by the angles freqs (S, 1, 1, D)."""
        return self._rotated("rope", {"x": x, "freqs": freqs}, rope_dim, output_scale, name)["y"]

    def rope_backward(
        self,
        dy: GraphTensor,
        freqs: GraphTensor,
        *,
        rope_dim: int | None = None,
        output_scale: float | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the gradient of :meth:`rope` with respect to x."""
        return self._rotated("rope_backward", {"dy": dy, "freqs": freqs}, rope_dim, output_scale, name)["dx"]

    def _rotated(
        self, kind: str, operands: Operands, rope_dim: int | None, scale: float | None, name: str | None
    ) -> dict[str, GraphTensor]:
        width = None if rope_dim is None else as_int(rope_dim, "rope_dim")
        return self._apply(kind, operands, name, rope_dim=width, output_scale=scale)

    def _scale(self, q: GraphTensor) -> float:
        """Return the scale of scores by default."""
        shape = self._states[self._place(q, "q")].spec.shape
        return float(shape[-1] ** -0.5) if shape else 1.0  # a number has no axes, and is rejected by the rule

    def _attention(
        self,
        kind: str,
        operands: Operands,
        scale: float | None,
        causal: Causal,
        window: Window | None,
        name: str | None,
        **flags: bool,
    ) -> dict[str, GraphTensor]:
        if (operands.get("page_table_k") is None) != (operands.get("page_table_v") is None):
            raise ValueError("page tables are incomplete: pass page_table_k and page_table_v")
        band = attention_band(causal, window)
        given = [operands.get(length) is not None for length in ("seq_len_q", "seq_len_kv")]
        paged = operands.get("page_table_k") is not None
        if (given[0] and not given[1]) or (given[1] and not given[0] and not paged):
            raise ValueError("lengths are incomplete: pass seq_len_q and seq_len_kv")
        if paged and not given[1]:
            raise ValueError("page tables need seq_len_kv, the numbers of keys: got None")
        q = operands["q"]
        number = self._scale(q) if scale is None else as_float(scale, "scale")  # type: ignore[arg-type]
        limited = None if band == Band() else tuple(band)
        return self._apply(kind, {**operands, "scale": number}, name, band=limited, **flags)


# --- graphs as problems ------------------------------------------------------------------------------------

# The fields of an `AttentionProblem` by the roles of the operations, and the axes that the fields keep.
_OPERANDS = {
    **{name: name for name in ("q", "k", "v", "bias")},
    "seq_len_q": "lengths_q",
    "seq_len_kv": "lengths_kv",
    "page_table_k": "page_table",
    "page_table_v": "page_table_v",
}
_FORWARD = {**_OPERANDS, "o": "y", "stats": "stats"}
_BACKWARD = {
    **_OPERANDS,
    **{name: name for name in ("dq", "dk", "dv", "dbias")},
    "do": "dy",
    "o": "saved_y",
    "stats": "saved_stats",
}
_KEPT_AXES = {
    **dict.fromkeys(("seq_len_q", "seq_len_kv"), (0,)),
    **dict.fromkeys(("page_table_k", "page_table_v"), (0, 2)),
    "stats": (0, 1, 2),
}


class GraphAttention(NamedTuple):
    """The problem of attention that a graph is, and the places of its operands among those of the graph."""

    problem: AttentionProblem
    places: tuple[int, ...]


def attention_of(problem: GraphProblem) -> GraphAttention | None:
    """Return a graph as a problem of attention; None if it has no ``sdpa`` and no ``sdpa_backward``.

    Raises
    ------
    NotSupportedError
        The graph has further operations, or a result of the operation is not an output.
    """
    found = [one for one in problem.nodes if one.kind in ("sdpa", "sdpa_backward")]
    if not found:
        return None
    if len(problem.nodes) > 1:
        raise NotSupportedError(
            f"cuDNN computes attention in a graph of its own: got {problem}, expected {found[0].kind} only"
        )
    (one,) = found
    pairs = dict((*one.operands, *one.results))
    if pairs.get("page_table_k") == pairs.get("page_table_v"):
        pairs.pop("page_table_v", None)
    forward, operands = one.kind == "sdpa", dict(one.operands)
    fields, make = (_FORWARD, attention_problem) if forward else (_BACKWARD, attention_gradient_problem)
    specs = {role: _spec(problem, role, place) for role, place in pairs.items() if role in fields}
    given = {fields[role].removeprefix("saved_"): spec for role, spec in specs.items() if role in operands}
    outs = tuple(map(specs.get, ("o", "stats") if forward else ("dq", "dk", "dv", "dbias")))
    parameters = (problem.operands_of(one)["scale"].value, False, None, 0.0, (0, 0))
    facts = {"aligned": problem.aligned, "deterministic": one.attribute("deterministic", False)}
    attention = make(given, outs, outs[-1] is not None, *parameters, **facts)
    attention = attention._replace(band=Band(*one.attribute("band", ())))
    memory = (*problem.inputs, *problem.outputs)
    places = {fields[role]: memory.index(pairs[role]) for role in specs}
    names = [name for name, value in attention._asdict().items() if isinstance(value, TensorSpec)]
    missing = [name for name in names if name not in places]
    if missing:
        roles = {name: role for role, name in fields.items()}
        listed = ", ".join(roles[name] for name in missing)
        raise NotSupportedError(
            f"cuDNN computes all results of {one.kind} together: {listed} must be among the outputs, too"
        )
    return GraphAttention(attention, tuple(places[name] for name in names))


def with_deterministic_sums(problem: GraphProblem) -> GraphProblem:
    """Return a graph whose gradients of attention are summed in one order."""
    wanted = (("deterministic", True),)
    nodes = (
        one._replace(attributes=one.attributes + wanted) if one.kind == "sdpa_backward" else one
        for one in problem.nodes
    )
    return problem._replace(nodes=tuple(nodes))


def _spec(problem: GraphProblem, role: str, place: int) -> TensorSpec:
    spec = problem.values[place].spec
    axes = _KEPT_AXES.get(role)
    if axes is None:
        return spec
    return TensorSpec(
        tuple(spec.shape[axis] for axis in axes), tuple(spec.strides[axis] for axis in axes), spec.dtype
    )
