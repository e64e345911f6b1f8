"""What of the fake cuDNN normalises batches: plain loops over single parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .host import view
from .pointwise import factors

BAD_PARAM, NOT_SUPPORTED = 2000, 3000
PER_ACTIVATION, SPATIAL, PERSISTENT = MODES = range(3)
BN, ACTIVATION, ADD_ACTIVATION = range(3)

SUCCESS, IN_PROGRESS, OVERFLOW = 0, 1006, 1007


def _samples(shape: tuple[int, ...], mode: int) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Each place of a parameter, with the places of its samples."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for at in np.ndindex(*shape):
        own = (0, *at[1:]) if mode == PER_ACTIVATION else (0, at[1], *[0] * (len(shape) - 2))
        found.setdefault(own, []).append(at)
    return list(found.items())


class Norm:
    """A part of the fake: it reads descriptors and memory through the rest of it.

    ``norm_refused`` are the unsupported modes, ``norm_sizes`` the bytes of workspace and of reserve space,
    ``norm_batch`` the largest batch of inference. As in cuDNN only half precision with channels last is
    fused.
    """

    norm_refused: frozenset[int] = frozenset()
    norm_sizes = (0, 0)
    norm_batch = 65_535
    runtime_status = SUCCESS

    def cudnnQueryRuntimeError(self: Any, handle: Any, status: Any, how: int, tag: Any) -> None:
        self._get(handle, "handle")
        waited = how == 2
        status[0] = SUCCESS if waited and self.runtime_status == IN_PROGRESS else self.runtime_status

    def cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        self: Any, handle: Any, *arguments: Any
    ) -> int:
        mode, ops, x, z, _, _, activation, size = arguments
        size[0] = self.norm_sizes[0]
        return self._norm_ready(handle, mode, ops, x, z, activation)

    def cudnnGetBatchNormalizationTrainingExReserveSpaceSize(self: Any, handle: Any, *arguments: Any) -> int:
        mode, _, activation, x, size = arguments
        size[0] = self.norm_sizes[1]
        return self._norm_ready(handle, mode, BN, x, None, activation)

    def cudnnGetBatchNormalizationBackwardExWorkspaceSize(self: Any, handle: Any, *arguments: Any) -> int:
        mode, ops, x, *others, activation, size = arguments
        assert [bool(one) for one in others] == [False, True, False, True, True]  # y, dy, dz, dx, parameters
        assert ops == BN, "a fused gradient needs what no forward step has kept"
        size[0] = self.norm_sizes[0]
        return self._norm_ready(handle, mode, ops, x, None, activation)

    def _norm_aligned(self: Any, *pointers: int | None) -> None:
        """cuDNN's kernels load 16 bytes at once: on other memory they end the CUDA context."""
        bad = [hex(pointer) for pointer in pointers if pointer and pointer % 16]
        assert not bad, f"misaligned operands of a batch normalisation: {bad}"

    def _norm_ready(self: Any, handle: Any, mode: int, ops: int, x: Any, z: Any, activation: Any) -> int:
        self._get(handle, "handle")
        data = self._get(x, "tensor")
        if mode in self.norm_refused:
            return NOT_SUPPORTED
        if not 4 <= len(data["shape"]) <= 5:
            return BAD_PARAM
        if ops == BN:
            return 0
        assert self._get(activation, "activation")["mode"] == 1
        assert bool(z) == (ops == ADD_ACTIVATION)
        halves = data["dtype"].itemsize == 2
        last = data["strides"][1] == 1 and data["shape"][1] % 4 == 0
        return 0 if mode == PERSISTENT and halves and last else NOT_SUPPORTED

    def _norm_scratch(self: Any, pointer: int | None, size: int, needed: int) -> None:
        """Overwrite scratch memory, after checking that all of it is memory that is alive."""
        assert size >= needed
        assert (size == 0) == (not pointer)
        if size:
            view(self.host, pointer, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE

    def _norm_parameters(self: Any, descriptor: Any, x: np.ndarray, mode: int, *pointers: Any) -> list[Any]:
        """The arrays behind pointers to parameters: always in C order; None for null."""
        state = self._get(descriptor, "tensor")
        shape = (1, *x.shape[1:]) if mode == PER_ACTIVATION else (1, x.shape[1], *[1] * (x.ndim - 2))
        assert state["shape"] == shape
        assert state["dtype"].name == ("float64" if x.dtype == np.float64 else "float32")
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        dtype = state["dtype"].numpy
        return [view(self.host, p, shape, strides, dtype) if p else None for p in pointers]

    def cudnnBatchNormalizationForwardTrainingEx(self: Any, handle: Any, *arguments: Any) -> int:
        mode, ops, alpha, beta, x, xp, z, zp, y, yp, parameters, *rest = arguments
        scale, bias, factor, running_mean, running_var, epsilon, mean, invstd, activation, *scratch = rest
        self._norm_aligned(xp, zp, yp, scale, bias, running_mean, running_var, mean, invstd)
        self._norm_aligned(scratch[0], scratch[2])
        status = self._norm_ready(handle, mode, ops, x, z, activation)
        if status:
            return int(status)
        self._norm_scratch(*scratch[:2], self.norm_sizes[0])
        self._norm_scratch(*scratch[2:], self.norm_sizes[1])
        source, target = self._memory(x, "tensor", xp), self._memory(y, "tensor", yp)
        added = self._memory(z, "tensor", zp).astype(np.float64) if ops == ADD_ACTIVATION else None
        pointers = scale, bias, running_mean, running_var, mean, invstd
        s, b, old_mean, old_var, m, i = self._norm_parameters(parameters, source, mode, *pointers)
        assert (old_mean is None) == (old_var is None)
        values, after = source.astype(np.float64), np.empty(source.shape)
        for own, places in _samples(source.shape, mode):
            elements = np.array([values[at] for at in places])
            center, var = elements.mean(), elements.var()
            with np.errstate(divide="ignore", invalid="ignore"):
                inverse = 1 / np.sqrt(var + epsilon)
                for at in places:
                    one = float(s[own]) * (values[at] - center) * inverse + float(b[own])
                    one += added[at] if added is not None else 0
                    after[at] = max(one, 0) if ops != BN else one
            m[own], i[own] = center, inverse
            if old_mean is not None:
                count = len(places)
                old_mean[own] = (1 - factor) * float(old_mean[own]) + factor * center
                old_var[own] = (1 - factor) * float(old_var[own]) + factor * var * count / (count - 1)
        self._norm_write(target, after, alpha, beta)
        return 0

    def cudnnBatchNormalizationForwardInference(self: Any, handle: Any, *arguments: Any) -> int:
        mode, alpha, beta, x, xp, y, yp, parameters, scale, bias, mean, var, epsilon = arguments
        self._norm_aligned(xp, yp, scale, bias, mean, var)
        source, target = self._memory(x, "tensor", xp), self._memory(y, "tensor", yp)
        status = self._norm_ready(handle, mode, BN, x, None, None)
        if status or source.shape[0] > self.norm_batch:
            return status or NOT_SUPPORTED
        s, b, m, v = self._norm_parameters(parameters, source, mode, scale, bias, mean, var)
        after = np.empty(source.shape)
        for own, places in _samples(source.shape, mode):
            factor = float(s[own]) / np.sqrt(float(v[own]) + epsilon)
            for at in places:
                after[at] = (float(source[at]) - float(m[own])) * factor + float(b[own])
        self._norm_write(target, after, alpha, beta)
        return 0

    def cudnnBatchNormalizationBackwardEx(self: Any, handle: Any, *arguments: Any) -> int:
        mode, ops, a, b, pa, pb, x, xp, y, yp, dy, dyp, dz, dzp, *rest = arguments
        dx, dxp, parameters, scale, bias, dscale, dbias, epsilon, mean, invstd, activation, *scratch = rest
        assert ops == BN
        assert not any((y, yp, dz, dzp, bias, activation))
        self._norm_aligned(scratch[0], scratch[2])
        self._norm_scratch(*scratch[:2], self.norm_sizes[0])
        self._norm_scratch(*scratch[2:], 0)
        results = dx, dxp, parameters, scale, dscale, dbias, epsilon, mean, invstd
        return int(self.cudnnBatchNormalizationBackward(handle, mode, a, b, pa, pb, x, xp, dy, dyp, *results))

    def cudnnBatchNormalizationBackward(self: Any, handle: Any, *arguments: Any) -> int:
        mode, alpha, beta, p_alpha, p_beta, x, xp, dy, dyp, dx, dxp, parameters, *rest = arguments
        scale, dscale, dbias, epsilon, mean, invstd = rest
        self._norm_aligned(xp, dyp, dxp, scale, dscale, dbias, mean, invstd)
        status = self._norm_ready(handle, mode, BN, x, None, None)
        if status:
            return int(status)
        pairs = ((x, xp), (dy, dyp), (dx, dxp))
        source, gradient, target = (self._memory(d, "tensor", p) for d, p in pairs)
        assert factors(source.dtype, p_alpha, p_beta) == [1, 0]
        pointers = scale, dscale, dbias, mean, invstd
        s, ds, db, m, i = self._norm_parameters(parameters, source, mode, *pointers)
        assert (m is None) == (i is None)
        after = np.empty(source.shape)
        for own, places in _samples(source.shape, mode):
            elements = np.array([float(source[at]) for at in places])
            center = elements.mean() if m is None else float(m[own])
            inverse = 1 / np.sqrt(elements.var() + epsilon) if i is None else float(i[own])
            normal = [(v - center) * inverse for v in elements]
            dys = [float(gradient[at]) for at in places]
            first, second = sum(dys), sum(d * n for d, n in zip(dys, normal, strict=True))
            ds[own], db[own] = second, first
            for at, d, n in zip(places, dys, normal, strict=True):
                after[at] = float(s[own]) * inverse * (d - first / len(places) - n * second / len(places))
        self._norm_write(target, after, alpha, beta)
        return 0

    def _norm_write(self: Any, target: np.ndarray, values: np.ndarray, alpha: int, beta: int) -> None:
        a, b = factors(target.dtype, alpha, beta)
        target[...] = (a * values + (b * target.astype(np.float64) if b else 0)).astype(target.dtype)
