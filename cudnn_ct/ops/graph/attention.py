"""Attention and its parts: methods of :class:`cudnn_ct.Graph`."""

from __future__ import annotations

from typing import NamedTuple

from ...shapes.parse import as_bool, as_float, as_int
from .builder import GraphBuilder
from .tensors import GraphTensor, Operand

__all__ = ["AttentionMethods", "GraphAttentionGradients"]


class GraphAttentionGradients(NamedTuple):
    """Gradients of attention."""

    dq: GraphTensor
    dk: GraphTensor
    dv: GraphTensor


class AttentionMethods(GraphBuilder):
    """Attention in one operation, forward and backward, softmax, masks and rotary embeddings."""

    def sdpa(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        page_table_k: GraphTensor | None = None,
        page_table_v: GraphTensor | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return ``softmax(scale * q @ k.T) @ v`` of q (B, H, Sq, D), k and v (B, Hk, Sk, D).

        H is a multiple of Hk. The scale is ``1 / sqrt(D)`` by default. With ``causal``, query i attends to
        keys up to i, and with ``window`` to the last ``window`` of these. Lengths are (B, 1, 1, 1) int32, and
        need the lengths of both.
        """
        return self._sdpa(
            False, q, k, v, scale, causal, window, seq_len_q, seq_len_kv, page_table_k, page_table_v, name
        )["o"]

    def sdpa_with_stats(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        name: str | None = None,
    ) -> tuple[GraphTensor, GraphTensor]:
        """Return :meth:`sdpa`, and the logarithms of the sums of exponentials (B, H, Sq, 1) in float32."""
        made = self._sdpa(True, q, k, v, scale, causal, window, seq_len_q, seq_len_kv, None, None, name)
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
        causal: bool = False,
        window: int | None = None,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        name: str | None = None,
    ) -> GraphAttentionGradients:
        """Return the gradients of :meth:`sdpa` from its results o and stats."""
        causal, window = _mask(causal, window)
        operands: dict[str, Operand | None] = {
            **{"q": q, "k": k, "v": v, "o": o, "do": do, "stats": stats},
            "scale": self._scale(q) if scale is None else as_float(scale, "scale"),
            "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv,
        }
        made = self._apply("sdpa_backward", operands, name, causal=causal or None, window=window)
        return GraphAttentionGradients(made["dq"], made["dk"], made["dv"])

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
        operands: dict[str, Operand | None] = {
            "x": x,
            "left_bound": left,
            "fill": self.constant(fill, "float32"),
        }
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
        return self._apply(
            "rope",
            {"x": x, "freqs": freqs},
            name,
            rope_dim=None if rope_dim is None else as_int(rope_dim, "rope_dim"),
            output_scale=output_scale,
        )["y"]

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
        return self._apply(
            "rope_backward",
            {"dy": dy, "freqs": freqs},
            name,
            rope_dim=None if rope_dim is None else as_int(rope_dim, "rope_dim"),
            output_scale=output_scale,
        )["dx"]

    def _scale(self, q: GraphTensor) -> float:
        """Return the scale of scores by default."""
        shape = self._states[self._place(q, "q")].spec.shape
        return float(shape[-1] ** -0.5) if shape else 1.0  # a number has no axes, and is rejected by the rule

    def _sdpa(
        self,
        stats: bool,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        scale: float | None,
        causal: bool,
        window: int | None,
        seq_len_q: GraphTensor | None,
        seq_len_kv: GraphTensor | None,
        page_table_k: GraphTensor | None,
        page_table_v: GraphTensor | None,
        name: str | None,
    ) -> dict[str, GraphTensor]:
        causal, window = _mask(causal, window)
        if (page_table_k is None) != (page_table_v is None):
            raise ValueError("page tables are incomplete: pass page_table_k and page_table_v")
        operands: dict[str, Operand | None] = {
            **{"q": q, "k": k, "v": v},
            "scale": self._scale(q) if scale is None else as_float(scale, "scale"),
            "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv,
            "page_table_k": page_table_k,
            "page_table_v": page_table_v,
        }
        return self._apply("sdpa", operands, name, stats=stats or None, causal=causal or None, window=window)


def _mask(causal: bool, window: int | None) -> tuple[bool, int | None]:
    causal = as_bool(causal, "causal")
    window = None if window is None else as_int(window, "window")
    if window is not None and (not causal or window < 1):
        raise ValueError(
            f"window is invalid: got {window} with causal={causal}, expected causal and 1 or more"
        )
    return causal, window
