"""Types of the arguments of public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, Protocol, SupportsIndex, SupportsInt, TypeAlias

if TYPE_CHECKING:
    from ctypes import c_void_p

    from numpy.typing import DTypeLike as NumPyDType

__all__ = [
    "Activation",
    "Algo",
    "ArrayLike",
    "ConvMode",
    "DTypeLike",
    "Direction",
    "FusedActivation",
    "Index",
    "Layout",
    "MatmulActivation",
    "NormMode",
    "OpTensorOp",
    "OutLike",
    "Padding",
    "PerAxis",
    "PointerLike",
    "PoolMode",
    "Precision",
    "RNNBias",
    "RNNDirection",
    "RNNMode",
    "ReduceOp",
    "SequenceLayout",
    "Shape",
    "SoftmaxAlgo",
    "SoftmaxMode",
    "StreamLike",
]


class SupportsCudaArrayInterface(Protocol):
    """An array on a GPU that describes its memory, such as those of CuPy, Numba and PyTorch."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]: ...


class SupportsDLPackDevice(Protocol):
    """An array that exports DLPack tensors, such as those of PyTorch, CuPy and JAX."""

    def __dlpack_device__(self) -> tuple[object, object]: ...


class SupportsCudaStream(Protocol):
    """A stream in the protocol of cuda.core; PyTorch and CuPy have it, too."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class TorchStream(Protocol):
    """A stream of a PyTorch without the protocol."""

    @property
    def cuda_stream(self) -> int: ...


class CuPyStream(Protocol):
    """A stream of a CuPy without the protocol."""

    @property
    def ptr(self) -> int: ...


class TorchDType(Protocol):
    """A dtype of PyTorch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...


class CoreBuffer(Protocol):
    """A Buffer of cuda.core."""

    @property
    def handle(self) -> object: ...
    @property
    def size(self) -> int: ...


class AlgorithmRow(Protocol):
    """A row of a table of algorithms: a :class:`cudnn_ct.Candidate`."""

    @property
    def backend(self) -> str: ...

    @property
    def algorithm(self) -> str: ...


ArrayLike: TypeAlias = SupportsCudaArrayInterface | SupportsDLPackDevice
"""An array in GPU memory: of this package or of any library with one of the two protocols."""

OutLike: TypeAlias = ArrayLike | tuple[ArrayLike | None, ...]
"""An array for the first result, or a tuple with an array for each result, None for a new one."""

StreamLike: TypeAlias = SupportsIndex | SupportsCudaStream | TorchStream | CuPyStream
"""A CUDA stream: an object of any library, or its address as an integer."""

DTypeLike: TypeAlias = "str | NumPyDType | TorchDType"
"""A dtype by name, such as ``"bfloat16"``, or of NumPy, ml_dtypes, JAX or PyTorch."""

PointerLike: TypeAlias = "SupportsIndex | SupportsInt | c_void_p | CoreBuffer"
"""An address: an int, a ``CUdeviceptr``, a ``ctypes.c_void_p`` or a ``cuda.core.Buffer``."""

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""A shape; an integer is the shape of one axis."""

Index: TypeAlias = (
    SupportsIndex | slice | EllipsisType | tuple[SupportsIndex | slice | EllipsisType | None, ...] | None
)
"""The key of a view ``x[key]``."""

PerAxis: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""One integer for all spatial axes, or one for each; also a NumPy array of them, which checkers reject."""

Padding: TypeAlias = (
    Literal["valid", "half", "full"]
    | SupportsIndex
    | Sequence[SupportsIndex | tuple[SupportsIndex, SupportsIndex]]
)
"""A number of elements for all sides, one for each axis, a pair (before, after) for each, or a name."""

Algo: TypeAlias = str | AlgorithmRow
"""A policy, the name of an algorithm or engine, or a row of a table such as `conv_algorithms`."""

Activation: TypeAlias = Literal["identity", "relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "silu"]
FusedActivation: TypeAlias = Activation | Literal["gelu"]
ConvMode: TypeAlias = Literal["cross_correlation", "convolution"]
Direction: TypeAlias = Literal["forward", "backward_data", "backward_filter"]
Layout: TypeAlias = Literal["nchw", "nhwc"]
MatmulActivation: TypeAlias = Literal[
    "identity", "relu", "gelu", "gelu_tanh", "silu", "swish", "sigmoid", "tanh"
]
NormMode: TypeAlias = Literal["per_activation", "spatial", "spatial_persistent"]
PoolMode: TypeAlias = Literal[
    "max",
    "max_deterministic",
    "average",
    "average_inc_pad",
    "average_exc_pad",
    "average_count_include_padding",
    "average_count_exclude_padding",
    "sum",
]
Precision: TypeAlias = Literal["as_input_f32", "as_input", "float16", "tf32", "float32", "float64"]
SoftmaxAlgo: TypeAlias = Literal["accurate", "fast", "log"]
SoftmaxMode: TypeAlias = Literal["channel", "instance"]
OpTensorOp: TypeAlias = Literal["add", "mul", "min", "max", "sqrt", "not"]
ReduceOp: TypeAlias = Literal[
    "add", "mul", "min", "max", "amax", "average", "avg", "norm1", "norm2", "mul_no_zeros"
]
RNNMode: TypeAlias = Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
RNNDirection: TypeAlias = Literal["unidirectional", "bidirectional"]
RNNBias: TypeAlias = Literal["no_bias", "single_inp_bias", "single_rec_bias", "double_bias"]
SequenceLayout: TypeAlias = Literal["sequence_major", "batch_major", "packed"]
