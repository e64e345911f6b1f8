"""What of the fake cuDNN works on whole tensors: plain loops, within the limits that cuDNN has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .host import view
from .pointwise import factors

BAD_PARAM, NOT_SUPPORTED = 2000, 3000

ADD, MUL, MIN, MAX, SQRT, NOT = range(6)

# What cudnnOpTensor reads and writes, as the manual has it: dtypes of a and of c. b has that of a.
_OP_TENSOR = {
    ("float32", "float32"), ("float32", "float16"), ("float32", "bfloat16"),
    ("float16", "float32"), ("float16", "float16"),
    ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
    ("float64", "float64"),
}  # fmt: skip


def _two(op: int, propagate: bool, a: float, b: float) -> float:
    if op in (MIN, MAX):
        if math.isnan(a) or math.isnan(b):
            if propagate:
                return math.nan
            return b if math.isnan(a) else a
        return min(a, b) if op == MIN else max(a, b)
    with np.errstate(all="ignore"):
        return float(np.add(a, b) if op == ADD else np.multiply(a, b))


def _one(op: int, a: float) -> float:
    if op == NOT:
        return 1 - a
    return math.sqrt(a) if a >= 0 else math.nan


_R_ADD, _R_MUL, _R_MIN, _R_MAX, _R_AMAX, _R_AVG, _R_NORM1, _R_NORM2, _R_NO_ZEROS = range(9)


def _reduced(op: int, propagate: bool, terms: list[float]) -> tuple[float, int]:
    """The result of a row, and which element of it that is, for the smallest and largest."""
    if op in (_R_MIN, _R_MAX, _R_AMAX):
        best = -1
        for i, term in enumerate(terms):
            value = abs(term) if op == _R_AMAX else term
            held = math.nan if best < 0 else abs(terms[best]) if op == _R_AMAX else terms[best]
            if math.isnan(value):
                better = best < 0 or (propagate and not math.isnan(held))
            elif math.isnan(held):
                better = best < 0 or not propagate
            else:
                better = value < held if op == _R_MIN else value > held
            if better:
                best = i
        return (abs(terms[best]) if op == _R_AMAX else terms[best]), best
    total = 1.0 if op in (_R_MUL, _R_NO_ZEROS) else 0.0
    for term in terms:
        if op in (_R_ADD, _R_AVG):
            total += term
        elif op == _R_MUL or (op == _R_NO_ZEROS and term != 0):
            total *= term
        elif op == _R_NORM1:
            total += abs(term)
        elif op == _R_NORM2:
            total += term * term
    if op == _R_AVG:
        total /= len(terms)
    return (math.sqrt(total) if op == _R_NORM2 else total), 0


def _workspace_size(terms: int, results: int) -> int:
    return 16 * results if terms > 4 else 0


class Tensors:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnCreateOpTensorDescriptor(self: Any, out: Any) -> None:
        self._create(out, "op_tensor")

    def cudnnDestroyOpTensorDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetOpTensorDescriptor(self: Any, operation: Any, op: int, code: int, nan: int) -> None:
        self._get(operation, "op_tensor").update(op=op, compute=code, nan=nan)

    def cudnnOpTensor(self: Any, handle: Any, operation: Any, *arguments: Any) -> int:
        self._get(handle, "handle")
        state = self._get(operation, "op_tensor")
        alpha1, a, a_pointer, alpha2, b, b_pointer, beta, c, c_pointer = arguments
        if b_pointer == c_pointer != a_pointer:  # which the manual rules out
            return NOT_SUPPORTED
        first, second, target = (
            self._memory(descriptor, "tensor", pointer)
            for descriptor, pointer in ((a, a_pointer), (b, b_pointer), (c, c_pointer))
        )
        names = tuple(self._get(one, "tensor")["dtype"].name for one in (a, b, c))
        if names[0] != names[1] or (names[0], names[2]) not in _OP_TENSOR:
            return NOT_SUPPORTED
        if state["compute"] != (1 if names[0] == "float64" else 0) or not 4 <= target.ndim <= 5:
            return NOT_SUPPORTED
        pairs = zip(second.shape, target.shape, strict=True)
        if first.shape != target.shape or any(m not in (1, n) for m, n in pairs):
            return BAD_PARAM
        a1, a2, old = factors(first.dtype, alpha1, alpha2, beta)
        values = np.empty(target.shape)
        for index in np.ndindex(*target.shape):
            left = a1 * float(first[index])
            if state["op"] in (SQRT, NOT):
                values[index] = _one(state["op"], left)
                continue
            other = tuple(0 if n == 1 else i for i, n in zip(index, second.shape, strict=True))
            values[index] = _two(state["op"], bool(state["nan"]), left, a2 * float(second[other]))
        with np.errstate(all="ignore"):
            before = old * target.astype(np.float64) if old else 0
            target[...] = (values + before).astype(target.dtype)
        return 0

    def cudnnCreateReduceTensorDescriptor(self: Any, out: Any) -> None:
        self._create(out, "reduction")

    def cudnnDestroyReduceTensorDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetReduceTensorDescriptor(
        self: Any, reduction: Any, op: int, code: int, nan: int, indices: int, width: int
    ) -> None:
        self._get(reduction, "reduction").update(op=op, compute=code, nan=nan, indices=indices, width=width)

    def cudnnGetReductionWorkspaceSize(
        self: Any, handle: Any, reduction: Any, a: Any, c: Any, size: Any
    ) -> None:
        self._get(handle, "handle")
        whole, kept = (math.prod(self._get(one, "tensor")["shape"]) for one in (a, c))
        size[0] = _workspace_size(whole // kept, kept)

    def cudnnGetReductionIndicesSize(
        self: Any, handle: Any, reduction: Any, a: Any, c: Any, size: Any
    ) -> None:
        self._get(handle, "handle")
        wanted = self._get(reduction, "reduction")["indices"]
        size[0] = 4 * math.prod(self._get(c, "tensor")["shape"]) if wanted else 0

    def cudnnReduceTensor(self: Any, handle: Any, reduction: Any, *arguments: Any) -> int:
        self._get(handle, "handle")
        state = self._get(reduction, "reduction")
        indices, indices_size, workspace, size, alpha, a, read, beta, c, written = arguments
        source, target = self._memory(a, "tensor", read), self._memory(c, "tensor", written)
        names = tuple(self._get(one, "tensor")["dtype"].name for one in (a, c))
        pairs = list(zip(target.shape, source.shape, strict=True))
        if "bfloat16" in names or not 4 <= source.ndim <= 8 or target.shape == source.shape:
            return NOT_SUPPORTED
        if names[0] != names[1] or any(m not in (1, n) for m, n in pairs):
            return BAD_PARAM
        if state["compute"] != (1 if names[0] == "float64" else 0):
            return NOT_SUPPORTED
        needed = _workspace_size(source.size // target.size, target.size)
        if size < needed:
            return BAD_PARAM
        if needed:
            self.host.check(workspace or 0, size)
            view(self.host, workspace or 0, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        places = None
        if state["indices"]:
            assert state["op"] in (_R_MIN, _R_MAX)
            assert state["width"] == 0, "only indices of 32 bits are computed"
            if indices_size < 4 * target.size:
                return BAD_PARAM
            places = view(self.host, indices or 0, (target.size,), (1,), np.dtype(np.int32))
        scale, old = factors(source.dtype, alpha, beta)
        for place, index in enumerate(np.ndindex(*target.shape)):
            row = source[tuple(i if m == n else slice(None) for i, (m, n) in zip(index, pairs, strict=True))]
            value, which = _reduced(state["op"], bool(state["nan"]), [float(v) for v in row.reshape(-1)])
            before = old * float(target[index]) if old else 0
            with np.errstate(all="ignore"):
                target[index] = np.float64(scale * value + before).astype(target.dtype)
            if places is not None:
                places[place] = which
        return 0
