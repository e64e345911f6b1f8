"""CTC losses of the fake cuDNN, by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.shapes.ctc import ctc_min_steps

from .host import NOT_SUPPORTED, view
from .pointwise import descriptor

NON_DETERMINISTIC = 1


class CTC:
    """A part of the fake: it reads descriptors and memory through the rest of it.

    As torch saw of cuDNN, nothing good comes of more labels than steps, so no such sequence may arrive here.
    As cuDNN does, it rounds probabilities to the dtype of logits before it takes their logarithms, and uses 0
    as the logarithm of a sum without terms. So a symbol gets the gradient p, without its -q, where all
    alignments name it with a probability that rounds to 1, and where p rounds to 0. Sequences without labels
    get the loss -0.0, and the probabilities as their gradient. Without softmax the gradient is -q / p, by the
    probabilities p, for the probability q of an alignment to name a symbol at a step, but p where that is p
    with softmax. If no alignment is possible the other algorithm gives NaN. Past the end of a sequence
    nothing is written. With labels on the device there is no other algorithm than the deterministic one,
    unless ``ctc_of_any_kind`` says so.
    """

    ctc_of_any_kind = False

    cudnnCreateCTCLossDescriptor, cudnnDestroyCTCLossDescriptor = descriptor("ctc")

    def cudnnSetCTCLossDescriptor_v9(
        self: Any, ctc: Any, code: int, normalization: int, gradients: int, most: int
    ) -> None:
        assert gradients in (0, 1)
        self._get(ctc, "ctc").update(softmax=normalization == 1, most=most, compute=code)

    def cudnnGetCTCLossWorkspaceSize_v8(
        self: Any, handle: Any, algo: int, ctc: Any, logits: Any, gradients: Any, size: Any
    ) -> int:
        if algo == NON_DETERMINISTIC and not self.ctc_of_any_kind:
            return NOT_SUPPORTED
        self._get(handle, "handle")
        size[0] = self._room(self._get(ctc, "ctc")["most"], logits, gradients)
        return 0

    def cudnnCTCLoss_v8(self: Any, *arguments: Any) -> int:
        _, algo, ctc, logits, read, labels, counts, steps, costs, *rest = arguments
        gradients, written, size, workspace = rest
        state = self._get(logits, "tensor")
        batch = state["shape"][1]
        integers = np.dtype(np.int32)
        lengths = [view(self.host, pointer, (batch,), (1,), integers) for pointer in (counts, steps)]
        total = max(int(lengths[0].sum()), 1)
        flat = view(self.host, labels, (total,), (1,), integers)
        assert max(lengths[0]) <= self._get(ctc, "ctc")["most"]
        self._scratch(workspace, size, self._room(self._get(ctc, "ctc")["most"], logits, gradients))
        return int(self._ctc(algo, ctc, logits, read, flat, *lengths, costs, gradients, written))

    def cudnnGetCTCLossWorkspaceSize(self: Any, *arguments: Any) -> None:
        _, logits, gradients, _, counts, _, _, _, size = arguments
        batch = self._get(logits, "tensor")["shape"][1]
        size[0] = self._room(max(counts[:batch]), logits, gradients)

    def cudnnCTCLoss(self: Any, *arguments: Any) -> int:
        _, logits, read, labels, counts, steps, costs, gradients, written, *rest = arguments
        algo, ctc, workspace, size = rest
        batch = self._get(logits, "tensor")["shape"][1]
        lengths = counts[:batch], steps[:batch]
        self._scratch(workspace, size, self._room(max(lengths[0]), logits, gradients))
        flat = labels[: sum(lengths[0])]
        return int(self._ctc(algo, ctc, logits, read, flat, *lengths, costs, gradients, written))

    def _room(self: Any, most: int, *tensors: Any) -> int:
        first, second = (self._get(tensor, "tensor") for tensor in tensors)
        assert first == second
        steps, batch, _ = first["shape"]
        return 4 * steps * batch * (2 * most + 1)

    def _scratch(self: Any, workspace: int, size: int, least: int) -> None:
        assert size >= least
        view(self.host, workspace, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE

    def _ctc(
        self: Any,
        algo: int,
        ctc: Any,
        logits: Any,
        read: int,
        labels: Any,
        counts: Any,
        steps: Any,
        costs: int,
        gradients: Any,
        written: int,
    ) -> int:
        state = self._get(logits, "tensor")
        if state["dtype"].name not in ("float32", "float64"):
            return NOT_SUPPORTED
        assert state["dtype"].code == self._get(ctc, "ctc")["compute"]
        assert not any(pointer % 16 for pointer in (read, costs, written)), "kernels may load vectors"
        lengths = state["shape"]
        assert state["strides"] == (lengths[1] * lengths[2], lengths[2], 1), "the fake knows one order"
        x = self._memory(logits, "tensor", read).astype(np.float64)
        out = self._memory(gradients, "tensor", written)
        losses = view(self.host, costs, (lengths[1],), (1,), state["dtype"].numpy)
        softmax, begin = self._get(ctc, "ctc")["softmax"], 0
        for n, (count, end) in enumerate(zip(counts, steps, strict=True)):
            row = [int(label) for label in labels[begin : begin + count]]
            begin += int(count)
            assert 0 < max(ctc_min_steps(row), 1) <= end <= lengths[0], f"sequence {n} is out of bound"
            p = x[:end, n]
            if softmax:
                p = np.exp(p - p.max(axis=1, keepdims=True))
                p /= p.sum(axis=1, keepdims=True)
            p = p.astype(out.dtype).astype(np.float64)
            losses[n], out[:end, n] = _loss(p, row, bool(softmax), algo == NON_DETERMINISTIC)
        return 0


@np.errstate(divide="ignore", invalid="ignore")
def _loss(p: Any, labels: list[int], softmax: bool, nan: bool) -> tuple[float, Any]:
    """Return loss and gradient of one sequence, from probabilities of shape (steps, symbols)."""
    if not labels:
        return -0.0, p
    places = [0, *(symbol for label in labels for symbol in (label, 0))]
    logs = np.log(p)[:, places]
    before, after = _sums(logs, places), _sums(logs[::-1, ::-1], places[::-1])[::-1, ::-1]
    loss = -np.logaddexp(*before[-1, -2:])
    sums = np.full(p.shape, -np.inf)  # of the alignments that name a symbol at a step, times its probability
    for place, symbol in enumerate(places):
        sums[:, symbol] = np.logaddexp(sums[:, symbol], before[:, place] + after[:, place])
    by_softmax = np.exp(sums - np.log(p) + loss)
    gradient = p - by_softmax if softmax else -by_softmax / p
    gradient = np.where((sums == 0) | (sums == -np.inf) | (p == 0), p, gradient)
    return loss, np.where(nan & (loss == np.inf), np.nan, gradient)


def _sums(logs: Any, places: list[int]) -> Any:
    """Return the logarithms of the sums over all partial alignments that end at each place and step."""
    skips = [k >= 2 and symbol not in (0, places[k - 2]) for k, symbol in enumerate(places)]
    sums = np.full(logs.shape, -np.inf)
    sums[0, :2] = logs[0, :2]
    for t in range(1, len(logs)):
        for k, skip in enumerate(skips):
            reached = np.logaddexp(sums[t - 1, k], sums[t - 1, k - 1] if k else -np.inf)
            sums[t, k] = logs[t, k] + np.logaddexp(reached, sums[t - 1, k - 2] if skip else -np.inf)
    return sums
