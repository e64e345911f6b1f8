"""Native descriptors: built from specs, read back as specs, one row of a table for each kind."""

from .base import Descriptor
from .conv import MATH_NAMES, ConvolutionDescriptor
from .ctc import CTCLossDescriptor
from .layers import (
    ActivationDescriptor,
    LRNDescriptor,
    OpTensorDescriptor,
    PoolingDescriptor,
    ReduceDescriptor,
    SpatialTransformerDescriptor,
)
from .recurrent import RNNDataDescriptor, RNNDescriptor
from .tensors import FilterDescriptor, TensorDescriptor

__all__ = [
    "MATH_NAMES",
    "ActivationDescriptor",
    "CTCLossDescriptor",
    "ConvolutionDescriptor",
    "Descriptor",
    "FilterDescriptor",
    "LRNDescriptor",
    "OpTensorDescriptor",
    "PoolingDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "ReduceDescriptor",
    "SpatialTransformerDescriptor",
    "TensorDescriptor",
]
