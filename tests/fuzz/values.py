"""Values of hostile arguments. A line of the fuzzer is Python text with these names."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype

__all__ = ["ARRAYS", "FLOATS", "INTEGERS", "NAMES", "POOLS", "SEQUENCES", "STREAMS", "TEXTS"]


def host(shape: tuple[int, ...], dtype: str = "float32", layout: str | None = None) -> np.ndarray:
    """Return small integers in host memory, the same ones each time."""
    return np.random.default_rng(0).integers(-3, 4, shape).astype(as_dtype(dtype).numpy)


def array(shape: tuple[int, ...], dtype: str = "float32", layout: str | None = None) -> ct.DeviceArray:
    """Return the same integers on the device."""
    return ct.asarray(host(shape, dtype), layout=layout if len(shape) in (3, 4, 5) else None)


def strided(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float32", offset: int = 0
) -> ct.DeviceArray:
    """Return an array with any strides, negative and zero ones too, in memory that is large enough for it."""
    spec = ct.TensorSpec(shape, strides, dtype)
    low, high = spec.extent
    memory = array((high - low + 1 + offset,), dtype)
    pointer = memory.pointer + (offset - low) * memory.itemsize
    return ct.DeviceArray.over(spec, pointer, memory, memory.writer, memory.home)


def unaligned(shape: tuple[int, ...] = (2, 3, 4, 5), dtype: str = "float32") -> ct.DeviceArray:
    """Return an array that starts where kernels may not load several elements at once."""
    return strided(shape, ct.TensorSpec.packed(shape, dtype).strides, dtype, offset=1)


def closed(shape: tuple[int, ...] = (2, 3, 4, 5)) -> ct.DeviceArray:
    """Return an array whose memory was freed."""
    one = array(shape)
    one.close()
    return one


def readonly(shape: tuple[int, ...] = (2, 3, 4, 5)) -> ct.DeviceArray:
    one = array(shape)
    return ct.DeviceArray.over(one.spec, one.pointer, one, one.writer, one.home, readonly=True)


def elsewhere(shape: tuple[int, ...] = (2, 3, 4, 5)) -> ct.DeviceArray:
    """Return an array on another device, if one exists."""
    with ct.use(device=1):
        return array(shape)


class Trained(NamedTuple):
    """A network, and the reserve of a training step for the gradients."""

    net: ct.RNN
    reserve: ct.RNNReserve

    def with_gradients(self) -> Trained:
        self.net.backward_data(array((4, 3, 3)), self.reserve)
        return self


def trained() -> Trained:
    net = ct.RNN("gru", 2, 3)
    return Trained(net, net.forward(array((4, 3, 2)), array((63,)), training=True).reserve)


class Product(NamedTuple):
    """A graph of two operations, its inputs and its result."""

    graph: ct.Graph
    a: ct.GraphTensor
    b: ct.GraphTensor
    y: ct.GraphTensor


def product() -> Product:
    graph = ct.Graph()
    a, b = graph.input((3, 16, 32), name="a"), graph.input((3, 32, 24), name="b")
    return Product(graph, a, b, graph.relu(a @ b))


def dropped() -> tuple[ct.DropoutMask, ct.DropoutState]:
    mask = ct.dropout(array((2, 8, 9, 10)), ct.DropoutState(0.5, seed=1)).mask
    return mask, mask.state


class Liar:
    """An object with the given attributes, whether they make sense or not."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def interface(**changed: Any) -> Liar:
    """Return an object with the interface of an array on the device, of which a part is ``changed``."""
    one = array((2, 3, 4, 5))
    parts = dict(one.__cuda_array_interface__) | changed
    return Liar(__cuda_array_interface__={k: v for k, v in parts.items() if v != "missing"}, owner=one)


def host_interface() -> Liar:
    """Return an array in host memory that calls it device memory."""
    values = host((2, 3, 4, 5))
    parts = {"version": 3, "shape": values.shape, "typestr": "<f4", "data": (values.ctypes.data, False)}
    return Liar(__cuda_array_interface__=parts, owner=values)


def dlpack(device: Any = (2, 0), capsule: Any = None) -> Liar:
    """Return an object with the methods of DLPack and without an array."""
    return Liar(__dlpack_device__=lambda: device, __dlpack__=lambda **_: capsule)


class Index:
    """A number by ``__index__`` alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


def recursive(kind: str = "list") -> Any:
    """Return a container that contains itself."""
    if kind == "dict":
        table: dict[str, Any] = {}
        table["a"] = table
        return table
    inner: list[Any] = []
    inner.append((inner,) if kind == "tuple" else inner)
    return inner


def deep(depth: int) -> Any:
    """Return tuples in tuples."""
    return reduce(lambda inner, _: (inner,), range(depth), ())


NAMES: dict[str, Any] = {
    **{f.__name__: f for f in (array, host, strided, closed, unaligned, readonly, elsewhere)},
    **{f.__name__: f for f in (trained, dropped, product, Liar, interface, dlpack, host_interface)},
    **{f.__name__: f for f in (Index, recursive, deep, Decimal, Fraction, Path)},
    "ANY": ANY,  # equal to everything, and without a hash
    "ct": ct,
    "np": np,
    "nan": math.nan,
    "inf": math.inf,
    "set_config": partial(setattr, ct.config),
}

_INTEGERS = """
    -1 | 0 | 1 | 2 | 3 | 4 | 5 | 7 | 8 | 16 | -3 | 255 | 256 | -2**63 | 2**15 | 2**16 | 2**31-1 | 2**31 |
    2**32 | 2**32-1 | 2**62 | 2**63-1 | 2**63 | 2**64 | 10**30 | True | False | np.int8(3) | np.int64(2**62) |
    np.uint64(2**64-1) | np.array(2) | Index(2) | Index(2**70)
"""
_FLOATS = """
    0.0 | -0.0 | 0.5 | 1.0 | -1.5 | nan | inf | -inf | 1e-320 | 1e308 | 3.4e38 | np.float16(0.5) |
    np.float32(nan) | np.float64(2) | Decimal('nan') | Fraction(1,2) | Fraction(1,3) | Decimal('0.1') | 1j
"""
_TEXTS = r"""
    '' | 'relu' | 'tanh' | 'max' | 'add' | 'nchw' | 'nhwc' | 'NHWC' | 'float32' | 'float16' | 'int8' | 'half'
    | 'valid' | 'full' | 'same' | 'cross_correlation' | 'spatial' | 'time_once' | 'none' | 'small' | 'fft' |
    'batch_major' | 'packed' | 'lstm' | '1' | '\0' | '\ud800' | 'e\u0301' | '\U0001f92f' * 3 | 'x' * 10**6 |
    b'relu' | np.str_('relu') | '%s{0}' | 'relu\n'
"""
_SEQUENCES = """
    () | [] | (1,) | (2, 3) | [1, 1] | (0, 0) | (-1, -1) | ((0, 1), (2, 1)) | ((1, 1), 2) | (1, 2, 3) |
    (2, 3, 4, 5) | (2, 8, 9, 10) | [2, 8, 9, 10] | (2, 3, 4, 5, 6, 7, 8, 9, 1) | (1,) * 64 | (1,) * 9 |
    range(3) | {1, 2} | {} | (nan, 1) | (2**31, 2) | (2**31, 2**31, 2, 2) | (2**63, 1) | (2**16, 2**16, 2, 2)
    | (2**20,) * 4 | (1, 1, 2**31, 1) | (0, 3, 4, 5) | (2, 0, 4, 5) | ('a', 'b') | (None, None) |
    (True, False) | recursive() | recursive('tuple') | recursive('dict') | deep(50) | deep(5000) |
    iter((1, 1)) | np.array([1, 1]) | np.array([2, 8, 9, 10]) | np.array([1.5, 2.5]) | slice(0, 2) |
    (1.0, 1.0) | ((),) | [[1, 1], [1, 1]]
"""
_ARRAYS = """
    array(()) | array((3,)) | array((2, 3)) | array((2, 3, 4)) | array((2, 3, 4, 5)) | array((2, 8, 9, 10)) |
    array((2, 8, 7, 9)) | array((8, 8, 3, 3)) | array((2, 3, 4, 5, 2)) | array((2,) * 8) | array((1,) * 12) |
    array((0, 3, 4, 5)) | array((2, 0, 4, 5)) | array((2, 8, 9, 10), 'float16', 'nhwc') |
    array((2, 8, 9, 10), 'float64') | array((2, 8, 9, 10), 'bfloat16') | array((2, 8, 9, 10), 'int8') |
    array((2, 8, 9, 10), 'int32') | array((2, 8, 9, 10), 'uint8') | array((2, 8, 9, 10), 'int64') |
    array((4, 3, 8)) | strided((2, 3, 4, 5), (60, 20, -5, 1)) | strided((2, 8, 9, 10), (0, 0, 0, 0)) |
    strided((2, 3), (1, 2)) | strided((2, 8, 9, 10), (2000, 200, 20, 2)) | closed() | closed((2, 8, 9, 10)) |
    unaligned() | unaligned((2, 8, 9, 10)) | unaligned((2, 8, 9, 10), 'float16') | readonly() |
    readonly((2, 8, 9, 10)) | elsewhere() | elsewhere((2, 8, 9, 10)) | host((2, 8, 9, 10)) |
    host((2, 8, 9, 10), 'bfloat16') | host(()) | np.zeros(3, 'datetime64[s]') | np.zeros(3, complex) |
    np.array(['a']) | np.array([object()]) | np.zeros(0) | np.zeros((2, 2), 'f4,i4') | np.zeros(3, '>f4') |
    np.float128(1) | np.broadcast_to(np.float32(1), (2**20, 2**20, 2**10)) |
    np.broadcast_to(np.float32(1), (2**60, 0)) | np.ma.masked_array([1.0, 2.0], [True, False])
"""
_LIARS = """
    interface(shape=(2, -3, 4, 5)) | interface(shape=()) | interface(shape=None) | interface(shape=(2.5,)) |
    interface(shape='ab') | interface(shape=[2, 3, 4, 5]) | interface(strides=(4,)) |
    interface(strides='abcd') | interface(typestr='<x4') | interface(typestr=None) |
    interface(typestr='>f4') | interface(typestr='<c8') | interface(data=None) |
    interface(data=('a', False)) | interface(data=(0, False)) | interface(data=()) |
    interface(data=(-1, False)) | interface(data=(2**64, False)) | interface(version=99) |
    interface(version='3') | interface(stream=0) | interface(stream='x') | interface(stream=-1) |
    interface(stream=2) | interface(stream=2**64) | interface(data='missing') | interface(shape='missing') |
    interface(typestr='missing') | interface(mask=5) | interface(shape=(2**62, 4)) |
    Liar(__cuda_array_interface__=None) | Liar(__cuda_array_interface__=5) |
    Liar(__cuda_array_interface__={}) | Liar(__cuda_array_interface__=[]) | host_interface() | dlpack() |
    dlpack((1, 0)) | dlpack((2, -5)) | dlpack((2, 2**40)) | dlpack(None) | dlpack(()) | dlpack((2,)) |
    dlpack('cuda') | dlpack((2, 0), b'x') | dlpack((2, 0), object()) | dlpack(('cuda', 0)) |
    dlpack((99, 0), np.zeros(3).__dlpack__()) | dlpack((2, 0), np.zeros(3).__dlpack__()) |
    Liar(__dlpack__=None) | Liar(__dlpack_device__=None, __dlpack__=None) | Liar(__cuda_stream__=(0, 1)) |
    Liar(__cuda_stream__=5) | Liar(__cuda_stream__=lambda: (0, 'x')) |
    Liar(__cuda_stream__=lambda: (0, -1)) | Liar(ptr=-7) | Liar(cuda_stream=2) |
    Liar(shape=(2, 3), dtype='float32') | Liar(__array_interface__={}) | Liar(__len__=lambda: -1)
"""
_OBJECTS = """
    None | object() | int | len | lambda: 0 | ct | ct.conv | Ellipsis | NotImplemented | ANY |
    Path('x') | ct.config | ct.TensorSpec((2, 3), (3, 1), 'float32') | ct.TensorSpec((2,), (3, 1), 'x') |
    ct.TensorSpec(None, None, None) | np.dtype('float32') | Exception('x') | bytearray(b'abc') |
    memoryview(b'abcd') | ct.PoolingSpec('max', 'propagate', (2, 2), (0, 0), (1, 1)) |
    ct.Candidate('graph', 'x', 'x', 0, True)
"""
POOLS = tuple(
    tuple(text.strip() for text in pool.split("|"))
    for pool in (_INTEGERS, _FLOATS, _TEXTS, _SEQUENCES, _ARRAYS, _LIARS, _OBJECTS)
)
# Any other number is used as the address of a stream, for which the driver ends the process.
_STREAMS = """
    0 | 1 | 2 | -1 | True | -2**63 | 2**64 | 1.0 | 'x' | None | object() | () | array((2, 3))
"""
STREAMS = (
    *(text.strip() for text in _STREAMS.split("|")),
    *(text for text in POOLS[5] if "stream" in text or text.startswith("Liar(")),
)
INTEGERS, FLOATS, TEXTS, SEQUENCES, ARRAYS, *_ = POOLS
