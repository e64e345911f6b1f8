"""Batch normalisation of the fake cuDNN, by the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct

from .host import BAD_PARAM, NOT_SUPPORTED, view
from .pointwise import factors, write

PER_ACTIVATION, SPATIAL, PERSISTENT = MODES = range(3)
BN, ACTIVATION, ADD_ACTIVATION = range(3)

SUCCESS, IN_PROGRESS, OVERFLOW = 0, 1006, 1007


def _wide(*arrays: np.ndarray | None) -> list[Any]:
    return [None if array is None else array.astype(np.float64) for array in arrays]


def _mode(mode: int) -> str:
    return "per_activation" if mode == PER_ACTIVATION else "spatial"


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
        values, s, b, *running = _wide(source, s, b, old_mean, old_var)
        options = {"activation": None if ops == BN else "relu", "residual": added, "momentum": factor}
        given = dict(zip(("running_mean", "running_var"), running, strict=True))
        step = ct.reference.batch_norm_training(
            values, s, b, mode=_mode(mode), epsilon=epsilon, **options, **given
        )
        m[...], i[...] = step.mean, step.invstd
        if old_mean is not None:
            old_mean[...], old_var[...] = running
        write(target, step.y, alpha, beta)
        return 0

    def cudnnBatchNormalizationForwardInference(self: Any, handle: Any, *arguments: Any) -> int:
        mode, alpha, beta, x, xp, y, yp, parameters, scale, bias, mean, var, epsilon = arguments
        self._norm_aligned(xp, yp, scale, bias, mean, var)
        source, target = self._memory(x, "tensor", xp), self._memory(y, "tensor", yp)
        status = self._norm_ready(handle, mode, BN, x, None, None)
        if status or source.shape[0] > self.norm_batch:
            return status or NOT_SUPPORTED
        arrays = self._norm_parameters(parameters, source, mode, scale, bias, mean, var)
        y = ct.reference.batch_norm_inference(*_wide(source, *arrays), mode=_mode(mode), epsilon=epsilon)
        write(target, y, alpha, beta)
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
        wide = _wide(gradient, source, s, m, i)
        step = ct.reference.batch_norm_backward(*wide, mode=_mode(mode), epsilon=epsilon)
        ds[...], db[...] = step.dscale, step.dbias
        write(target, step.dx, alpha, beta)
        return 0
