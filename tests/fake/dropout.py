"""Dropout of the fake cuDNN: a count and a seed in device memory, a byte of mask per element."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .host import view
from .pointwise import descriptor

STATES = 64  # bytes


class Dropout:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnDropoutGetStatesSize(self: Any, handle: Any, size: Any) -> None:
        size[0] = STATES

    def cudnnDropoutGetReserveSpaceSize(self: Any, x: Any, size: Any) -> None:
        size[0] = int(np.prod(self._get(x, "tensor")["shape"]))

    cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor = descriptor("dropout")

    def cudnnSetDropoutDescriptor(
        self: Any, dropout: Any, handle: Any, probability: float, states: int, size: int, seed: int
    ) -> None:
        self._get(dropout, "dropout").update(probability=probability, states=states)
        if probability == 0 and not states:  # nothing is thrown
            return
        assert size == STATES
        self._state(states)[:] = (seed, 0)

    def _state(self: Any, states: int) -> np.ndarray:
        self.host.check(states, STATES)
        return view(self.host, states, (2,), (1,), np.dtype(np.uint64))

    def cudnnDropoutForward(
        self: Any, handle: Any, dropout: Any, x: Any, read: int, y: Any, written: int, mask: int, size: int
    ) -> int:
        if self._get(x, "tensor")["dtype"].name == "bfloat16":
            return 3000
        state = self._get(dropout, "dropout")
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        assert size == source.size
        random_state = self._state(state["states"])
        rng = np.random.default_rng([int(random_state[0]), int(random_state[1])])
        random_state[1] += 1
        kept = rng.random(source.size) >= state["probability"]
        view(self.host, mask, (size,), (1,), np.dtype(np.uint8))[...] = kept
        self._drop(state, source, target, kept)
        return 0

    def cudnnDropoutBackward(
        self: Any, handle: Any, dropout: Any, dy: Any, read: int, dx: Any, written: int, mask: int, size: int
    ) -> None:
        state = self._get(dropout, "dropout")
        source, target = self._memory(dy, "tensor", read), self._memory(dx, "tensor", written)
        assert size == source.size
        kept = view(self.host, mask, (size,), (1,), np.dtype(np.uint8)).astype(bool)
        self._drop(state, source, target, kept)

    def _drop(
        self: Any, state: dict[str, Any], source: np.ndarray, target: np.ndarray, kept: np.ndarray
    ) -> None:
        assert source.shape[1:] == (1, 1, 1), "the fake knows one axis"
        values = source.reshape(-1).astype(np.float64) / (1 - ctypes.c_float(state["probability"]).value)
        target[...] = np.where(kept, values, 0).reshape(source.shape).astype(target.dtype)
