"""A libcublasLt of Python functions on host memory: it computes by NumPy, and can be told to fail.

Layouts are read as its documentation has them: a matrix is one by columns, with a leading dimension.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, c_int, c_size_t, c_void_p
from typing import Any
from unittest import mock

import numpy as np

from cudnn_ct import _cublaslt
from cudnn_ct._cublaslt import _FUNCTIONS, DTYPES, Algorithm
from cudnn_ct.dtypes import GRAPH_DTYPES
from cudnn_ct.ops.matmul import cublaslt
from cudnn_ct.shapes.arithmetic import FLOAT8

from .host import Host, view

INVALID_VALUE, NOT_SUPPORTED = 7, 15
NAMES = {0: "SUCCESS", 1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
         13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED"}  # fmt: skip
TEXTS = {
    status: ctypes.create_string_buffer(f"CUBLAS_STATUS_{name}".encode()) for status, name in NAMES.items()
}
MAGIC = 0xA160  # the first word of an algorithm, plus its number

# Attributes: how many bytes each has, and the numbers of those that are pointers.
OPERATION = {3: 4, 4: 4, 7: 4, 8: 8, 17: 8, 18: 8, 20: 8, 21: 8, 26: 4}
LAYOUT = {5: 4, 6: 8}
PREFERENCE = {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}
SIZES = {"MatmulDesc": OPERATION, "MatrixLayout": LAYOUT, "MatmulPreference": PREFERENCE}
CODES = {code: name for name, code in DTYPES.items()}


class FakeCublasLt:
    """The state of the fake: objects that are alive, calls so far, and the failures that were ordered."""

    cudnn: Any = None  # the fake cuDNN that uses it
    version = 120903
    workspaces = (0, 256, 1 << 20)  # of its algorithms, the first of the heuristics first
    costs = (0.25, 0.5, 1.0)  # milliseconds of their runs
    wrong: frozenset[int] = frozenset()  # algorithms that add 1 to results
    fails_in_runs: frozenset[int] = frozenset()  # algorithms that only their run rejects

    def __init__(self, host: Host) -> None:
        self.host = host
        self.objects: dict[int, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.ran: list[int] = []  # the numbers of algorithms
        self.arithmetic: list[int] = []  # the types of computation of these runs
        self.fail: dict[str, int] = {}
        self.raised: BaseException | None = None
        self.preferred: dict[int, int] = {}
        self._next = 0x7000

    def lookup(self, name: str) -> Any:
        name = name.removeprefix("cublasLt")
        if name == "GetStatusName":
            return CFUNCTYPE(c_void_p, c_int)(lambda status: ctypes.addressof(TEXTS[status]))
        if name == "GetVersion":
            return CFUNCTYPE(c_size_t)(lambda: self.version)
        body = getattr(self, name, None)

        def function(*args: Any) -> int:
            self.calls[name] += 1
            if name in self.fail:
                return self.fail[name]
            try:
                return (body(*args) if body else self._object(name, *args)) or 0
            except BaseException as error:  # ctypes would print it and go on
                self.raised = error
                return 14

        return CFUNCTYPE(c_int, *_FUNCTIONS[name])(function)

    # --- objects ---

    def _object(self, name: str, *args: Any) -> int:
        """Create, destroy or change an object."""
        for kind in (*SIZES, ""):
            if name == f"{kind}Create":
                self._next += 16
                self.objects[self._next] = {"kind": kind, "given": args[1:], "device": self.host.device}
                args[0][0] = c_void_p(self._next)
                return 0
            if name == f"{kind}Destroy":
                gone = self.objects.pop(args[0])
                assert gone["kind"] == kind
                assert kind or gone["device"] == self.host.device
                return 0
            if name == f"{kind}SetAttribute":
                address, attribute, value, size = args
                assert self.objects[address]["kind"] == kind
                if SIZES[kind].get(attribute) != size:
                    return INVALID_VALUE
                self.objects[address][attribute] = int.from_bytes(ctypes.string_at(value, size), "little")
                return 0
        raise AssertionError(f"{name} is not a function of this fake")

    # --- products ---

    def _why_not(self, operation: int, layouts: tuple[int, ...]) -> int:
        """Return the status for a product that the library does not have."""
        op = self.objects[operation]
        a, b, c, d = (self.objects[one] for one in layouts)
        kinds = [CODES[one["given"][0]] for one in (a, b, c, d)]
        if any(one["given"][3] < one["given"][1] for one in (a, b, c, d)):
            return INVALID_VALUE
        (m, k), (terms, n) = (
            one["given"][2:0:-1] if op[code] else one["given"][1:3] for one, code in ((a, 3), (b, 4))
        )
        if k != terms or any(one["given"][1:3] != (m, n) for one in (c, d)):
            return INVALID_VALUE
        float8 = [kind in FLOAT8 for kind in kinds]
        if (17 in op or 18 in op) and not (float8[0] and float8[1]):
            return INVALID_VALUE
        if (20 in op or 21 in op) and not float8[3]:
            return INVALID_VALUE
        if float8[0] and (op[3], op[4]) != (1, 0):  # as on GPUs before Blackwell
            return NOT_SUPPORTED
        if float8[2] or kinds[0:2].count("float8_e5m2") == 2:
            return NOT_SUPPORTED
        bias = CODES[op[26]] if op[7] & 4 else ""
        if bias and bias != (kinds[2] if float8[3] else kinds[3]):
            return NOT_SUPPORTED
        return 0

    def MatmulAlgoGetHeuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, wanted: int, count: int, *out: Any
    ) -> int:
        results, returned = out
        assert self.objects[handle]["kind"] == ""
        assert self.objects[handle]["device"] == self.host.device
        self.preferred = self.objects[wanted]
        status = self._why_not(operation, (a, b, c, d))
        if status:
            return status
        fitting = [one for one, room in enumerate(self.workspaces) if room <= self.preferred[1]]
        for place, number in enumerate(fitting[:count]):
            results[place].algorithm = Algorithm((ctypes.c_uint64 * 8)(MAGIC + number, 0, 7))
            results[place].workspace, results[place].state = self.workspaces[number], 0
        returned[0] = len(fitting[:count])
        return 0

    def MatmulAlgoCheck(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, algorithm: Any, result: Any
    ) -> int:
        assert self.objects[handle]["kind"] == ""
        words = list(algorithm[0].words)
        if words[0] - MAGIC not in range(len(self.workspaces)) or words[1:] != [0, 7, *[0] * 5]:
            return INVALID_VALUE
        result[0].workspace = self.workspaces[words[0] - MAGIC]
        return self._why_not(operation, (a, b, c, d))

    def Matmul(self, handle: int, operation: int, *args: Any) -> int:
        """Compute a product, or put it into the graph that is captured."""
        assert self.objects[handle]["kind"] == ""
        assert self.objects[handle]["device"] == self.host.device
        alpha, a, a_at, b, b_at, beta, c, c_at, d, d_at, algorithm, room, size, stream = args
        op, layouts = (
            self.objects[operation].copy(),
            [self.objects[one].copy() for one in (a_at, b_at, c_at, d_at)],
        )
        number = algorithm[0].words[0] - MAGIC
        assert size >= self.workspaces[number]
        if number in self.fails_in_runs:
            return NOT_SUPPORTED
        status = self._why_not(operation, (a_at, b_at, c_at, d_at))
        if status:
            return status
        real = ctypes.c_double if op["given"][1] == DTYPES["float64"] else ctypes.c_float
        factors = [real.from_address(one).value for one in (alpha, beta)]
        assert c or not factors[1]
        assert c != d or c_at == d_at, "C in the memory of D has the layout of D"

        def work(words: list[int]) -> None:
            pointers, room = words[:4], words[4]
            op.update(zip(moving, words[5:], strict=True))
            self.host.clock += self.costs[number]
            if size:
                view(self.host, room, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
            self.ran.append(number)
            self.arithmetic.append(op["given"][0])
            self._compute(op, layouts, pointers, factors, number in self.wrong)

        moving = [place for place in (8, 17, 18) if op.get(place)]  # a bias, and two factors
        words = [one or 0 for one in (a, b, c, d, room, *[op[place] for place in moving])]
        self.host.check_stream(stream)
        capture = self.host.capturing.get(stream)
        if capture is not None and capture.deferred:
            capture.add(work, words)
        else:
            work(words)
        return 0

    def _compute(
        self, op: dict[Any, Any], layouts: list[Any], pointers: Any, factors: list[float], wrong: bool
    ) -> None:
        a, b = (self._matrix(pointers[i], layouts[i]).astype(np.float64) for i in (0, 1))
        a, b = (one.transpose(0, 2, 1) if op[code] else one for one, code in ((a, 3), (b, 4)))
        d = self._matrix(pointers[3], layouts[3])
        value = factors[0] * self._scalar(op, 17) * self._scalar(op, 18) * (a @ b)
        if factors[1]:
            value += factors[1] * self._matrix(pointers[2], layouts[2]).astype(np.float64)
        if op[7] & 4:
            dtype = GRAPH_DTYPES[CODES[op[26]]].numpy
            assert op[8] % 16 == 0
            bias = view(self.host, op[8], (d.shape[1],), (1,), dtype)
            value += bias.astype(np.float64)[None, :, None]
        if op[7] & 2:
            value = np.maximum(value, 0)
        if op[7] & 32:
            value = 0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        if 21 in op:
            view(self.host, op[21], (1,), (1,), np.dtype(np.float32))[0] = np.abs(value).max()
        value = value * self._scalar(op, 20) + wrong
        with np.errstate(all="ignore"):
            d[...] = value.astype(d.dtype)

    def _matrix(self, address: int, layout: dict[Any, Any]) -> np.ndarray:
        code, rows, columns, leading = layout["given"]
        assert address % 16 == 0
        return view(self.host, address, (layout[5], rows, columns), (layout[6], 1, leading),
                    GRAPH_DTYPES[CODES[code]].numpy)  # fmt: skip

    def _scalar(self, op: dict[Any, Any], code: int) -> float:
        if code not in op:
            return 1.0
        return float(view(self.host, op[code], (1,), (1,), np.dtype(np.float32))[0])


@contextmanager
def cublaslt_installed(host: Host) -> Iterator[FakeCublasLt]:
    """Give the fake cuDNN a libcublasLt; check that the block frees its objects."""
    fake = FakeCublasLt(host)

    def error(self: Any, status: int, name: str) -> Exception:
        if fake.raised is not None:
            raised, fake.raised = fake.raised, None
            raise raised
        return made(self, status, name)

    made = _cublaslt.CublasLt.error
    with (
        mock.patch.object(_cublaslt, "lookup_of", return_value=fake.lookup),
        mock.patch.object(_cublaslt.CublasLt, "error", error),
    ):
        cublaslt.forget()
        try:
            yield fake
        finally:
            cublaslt.forget()
