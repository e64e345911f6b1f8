"""CTC losses of the fake cuDNN, by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.reference.ctc import ctc_loss
from cudnn_ct.shapes.ctc import ctc_min_steps

from .host import view

NOT_SUPPORTED = 3000
NON_DETERMINISTIC = 1


class CTC:
    """A part of the fake: it reads descriptors and memory through the rest of it.

    As torch saw of cuDNN, nothing good comes of more labels than steps, so no such sequence may arrive here.
    As cuDNN does, it gives sequences without labels the loss -0.0, and the probabilities as their gradient.
    Without softmax the gradient is -q / p, by the probabilities p, for the probability q of an alignment to
    name a symbol at a step, but p where q is 0. Past the end of a sequence nothing is written. With labels on
    the device there is no other algorithm than the deterministic one, unless ``ctc_of_any_kind`` says so.
    """

    ctc_of_any_kind = False

    def cudnnCreateCTCLossDescriptor(self: Any, out: Any) -> None:
        self._create(out, "ctc")

    def cudnnDestroyCTCLossDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

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
        _, _, ctc, logits, read, labels, counts, steps, costs, *rest = arguments
        gradients, written, size, workspace = rest
        state = self._get(logits, "tensor")
        batch = state["shape"][1]
        integers = np.dtype(np.int32)
        lengths = [view(self.host, pointer, (batch,), (1,), integers) for pointer in (counts, steps)]
        total = max(int(lengths[0].sum()), 1)
        flat = view(self.host, labels, (total,), (1,), integers)
        assert max(lengths[0]) <= self._get(ctc, "ctc")["most"]
        self._scratch(workspace, size, self._room(self._get(ctc, "ctc")["most"], logits, gradients))
        return int(self._ctc(ctc, logits, read, flat, *lengths, costs, gradients, written))

    def cudnnGetCTCLossWorkspaceSize(self: Any, *arguments: Any) -> None:
        _, logits, gradients, _, counts, _, _, _, size = arguments
        batch = self._get(logits, "tensor")["shape"][1]
        size[0] = self._room(max(counts[:batch]), logits, gradients)

    def cudnnCTCLoss(self: Any, *arguments: Any) -> int:
        _, logits, read, labels, counts, steps, costs, gradients, written, *rest = arguments
        _, ctc, workspace, size = rest
        batch = self._get(logits, "tensor")["shape"][1]
        lengths = counts[:batch], steps[:batch]
        self._scratch(workspace, size, self._room(max(lengths[0]), logits, gradients))
        flat = labels[: sum(lengths[0])]
        return int(self._ctc(ctc, logits, read, flat, *lengths, costs, gradients, written))

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
            p = x[:end, n : n + 1]
            normalization = "softmax" if softmax else "none"
            (loss,), gradient = ctc_loss(p, [row], [count], [end], normalization=normalization)
            if softmax:
                p = np.exp(p - p.max(axis=2, keepdims=True))
                p /= p.sum(axis=2, keepdims=True)
            if not row:
                loss, gradient = -0.0, p
            elif not softmax:
                named = p - gradient
                with np.errstate(divide="ignore", invalid="ignore"):
                    gradient = np.where(named > 0, -named / p, p)
            losses[n], out[:end, n] = loss, gradient[:, 0]
        return 0
