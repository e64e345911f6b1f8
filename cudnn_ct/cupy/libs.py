"""The constants of ``cupy_backends.cuda.libs.cudnn``, and the version of the library."""

from __future__ import annotations

from .. import _lib
from .._bindings import enums
from ..errors import CudnnError

__all__ = ["CuDNNError", "getVersion"]

CuDNNError = CudnnError

# Enums of cuDNN's headers, by the beginning of the names of their members.
_NAMES = {
    "ACTIVATION_": enums.ActivationMode,
    "BATCHNORM_": enums.BatchNormMode,
    "DATA_": enums.DataType,
    "POOLING_": enums.PoolingMode,
    "SOFTMAX_": enums.SoftmaxAlgorithm,
    "SOFTMAX_MODE_": enums.SoftmaxMode,
    "TENSOR_": enums.TensorFormat,
    "": enums.ConvolutionMode,
}
globals().update(
    {f"CUDNN_{begin}{one.name}": int(one) for begin, kind in _NAMES.items() for one in kind}
    | {f"CUDNN_{one.name}": int(one) for one in enums.NanPropagation}
)


def getVersion() -> int:  # noqa: N802 - CuPy's name
    """Return the version of cuDNN, such as 92700."""
    return _lib.version()


get_build_version = getVersion


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"cudnn_ct.cupy has no {name!r}: the page 'From cupy.cudnn' has what to write in its place"
    )
