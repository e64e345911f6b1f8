"""Calls with arguments that an operation rejects, as lines of Python, each with its error.

The arguments that all operations reject alike are in test_operations.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import interop
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError
from cudnn_ct.shapes.ctc import check_ctc_operands
from cudnn_ct_dnn.checks import check_context as dnn_context

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images
from .test_ctc import call as ctc


class Fake:
    """An object with the given attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def closed() -> ct.DeviceArray:
    array = images(2, 3)
    array.close()
    return array


def elsewhere(*shape: int) -> ct.DeviceArray:
    with ct.use(device=1):
        return images(*shape)


def strided(x: ct.DeviceArray, *strides: int) -> ct.DeviceArray:
    return x.view_as(x.spec._replace(strides=strides))


E4 = "float8_e4m3"


def heads(*shape: int, dtype: str = E4) -> ct.DeviceArray:
    return ct.zeros(shape or (1, 2, 4, 16), dtype)


def eights(shape: tuple[int, ...], dtype: str = E4) -> ct.DeviceArray:
    return ct.full(shape, 1, dtype, layout="nhwc")


def gated(**changed: ct.DeviceArray) -> ct.DeviceArray:
    shapes = {"x": (2, 3, 3, 9), "w_proj": (3, 3, 4), "w_mixer": (3, 7), "skip_bias": (3,)}
    operands = {name: ct.zeros(shape) for name, shape in shapes.items()}
    return ct.b2b_causal_conv1d(**operands | changed)


def perceptron() -> Any:
    g = ct.Graph()
    x, w, b = g.input((4, 6), name="x"), g.input((6, 5), name="w"), g.input((5,), name="b")
    return g.build(g.relu(x @ w + b))


def squared() -> Any:
    g = ct.Graph()
    return g.build(g.matmul(*[g.input((4, 4))] * 2))


def graph(**changed: tuple[tuple[int, ...], str]) -> dict[str, ct.DeviceArray]:
    given = {"offsets": ((4,), "int32"), "indices": ((7,), "int32"), "x": ((5, 4), "float32")} | changed
    return {name: ct.zeros(*row) for name, row in given.items()}


# x is float32[2, 3, 5, 6], w float32[4, 3, 3, 3], v float32[3] and `many` a NumPy array of two elements.
CONV = r"""
ct.conv(x, w, dilation=9) | ValueError: the output would be empty along spatial axis 0
ct.conv(x, w, padding="same") | ValueError: padding must be one of valid, half, full.* use 'half'
ct.conv(x, w, padding=(1, 2, 3)) | ValueError: has 3 numbers; the window has 2 axes
ct.conv(x, w, algo="fastest") | ValueError: algo is unknown: got 'fastest', expected one of .* names none,
ct.conv(x, w, algo="deterministic") | ValueError: forward of float32 with 2 spatial axes; none, small
ct.conv(images(1, 1, 4, 4, 4), images(1, 1, 2, 2, 2), algo="winograd") | ValueError: 3 spatial axes; none
ct.conv(ct.zeros((1, 1, 4), "float64"), ct.zeros((1, 1, 2), "float64"), algo="fft") | ValueError: of float64
ct.conv(x, w, algo=3) | TypeError: algo must be a name or a Candidate, not 3
ct.conv(x, w, workspace_limit=-1) | ValueError: workspace_limit must be at least 0 bytes: got -1
ct.conv(x, w, workspace_limit=True) | TypeError: workspace_limit must be an int: got True
ct.conv(x, w, workspace_limit="1G") | TypeError: workspace_limit must be an int: got '1G'
ct.conv(x, w, alpha=None) | TypeError: alpha must be a number: got None
ct.conv(x, images(4, 3, 3, 3, dtype="float64")) | TypeError: x is float32 and w is float64
ct.conv(x, images(4, 3, 3)) | ValueError: w has 3 dimensions \(4, 3, 3\)
ct.conv(images(2, 3), images(4, 3)) | ValueError: with 1 to 3 spatial axes
ct.conv(elsewhere(2, 3, 5, 6), w) | ValueError: w is on another device: got 0, expected 1
ct.conv(images(2, 3, 5, 6, dtype="uint8"), images(4, 3, 3, 3, dtype="uint8")) | TypeError: int8, not uint8
ct.conv_plan(x, w, beta=x) | TypeError: beta must be a number
ct.conv_algorithms(x, w, alpha="1") | TypeError: alpha must be a number: got '1'
ct.conv(i, j, padding=((0, 1), (0, 1))) | NotSupportedError: pad both sides of an axis alike
ct.conv_bias_activation(x, w, None, activation="softmax") | ValueError: activation must be one of identity,
ct.conv_bias_activation(x, w, v) | ValueError: bias has shape \(3,\); y of shape \(2, 4, 3, 4\) needs \(4,\)
ct.conv_bias_activation(x, w, None, residual=x) | ValueError: residual has shape \(2, 3, 5, 6\); y has
ct.conv_bias_activation(x, w, images(4, dtype="float64")) | TypeError: bias is float64 and x is float32
ct.conv_bias_activation(x, w, None, residual=ct.zeros((2, 4, 3, 4), "float64")) | TypeError: residual is
ct.conv_bias_activation(x, w, None, algo="fft", stride=2, strict=True) | NotSupportedError: fft needs stride 1
ct.conv_bias_activation(x, w, None, activation="gelu") | NotSupportedError: the legacy calls do not support
"""

# i, j and dy are int8 operands of a convolution.
INT8 = r"""
ct.conv(i, j, beta=1, out=ct.zeros(dy.shape, "int32")) | ValueError: beta is not supported for int32 results
ct.conv(i, j, precision="float64") | ValueError: precision='float64' is for float16 or .* data, not int8
ct.conv(i, j, algo="fft") | ValueError: algo='fft' is not for forward of int8 .*; none, small are
ct.conv(i, j) | NotSupportedError: the legacy calls write sums of int8 as float32, not int32
ct.conv_transpose(dy, j) | TypeError: a gradient of a convolution takes float16, .*, not int8
ct.conv_backward_bias(dy) | TypeError: a gradient of a convolution takes float16, .*, not int8
ct.conv_bias_activation(i, j, None) | TypeError: a fused convolution takes float16, .*, not int8
"""

LAYERS = r"""
ct.affine_grid(images(2, 2, 2), (2, 3, 4)) | ValueError: theta has shape \(2, 2, 2\)
ct.affine_grid(images(2, 2, 3), (3, 3, 4)) | ValueError: a batch of 3 needs \(3, 2, 3\)
ct.grid_sample(x, images(3, 2, 2, 2)) | ValueError: x and grid differ in batch size: got 2 and 3
ct.spatial_transformer(x, images(2, 2, 3), scale_width=0) | ValueError: scale_width must be more than 0
ct.spatial_transformer(ct.TensorSpec(None, None, "x"), x) | TypeError: x must be an array on
ct.lrn(x, k=float("nan")) | ValueError: must be finite
ct.activation(x, coefficient=10**400) | ValueError: too large for a float
ct.spatial_transformer(x, images(2, 2, 3), scale_width=1e308) | ValueError: 5 x inf pixels
ct.lrn(x, lrn_beta=0) | ValueError: lrn_beta must be at least 0.01: got 0
ct.lrn(images(2, 3)) | ValueError: expected \(N, C, \*spatial\)
ct.activation_backward(images(3, 5), images(2, 3, 5), images(2, 3, 5)) | ValueError: dy has shape \(3, 5\)
ct.activation_backward(x, x, x, mode="elu", coefficient=-0.5) | ValueError: coefficient is negative .*at
ct.softmax(x, axis=4) | ValueError: axis is out of range: got 4
ct.softmax(x, axis=(0, 2)) | ValueError: must name adjacent axes
ct.softmax(x, axis=(1, 1)) | ValueError: contains an axis twice
ct.softmax_backward(images(2, 2), images(2, 3)) | ValueError: dy has shape \(2, 2\); y has \(2, 3\)
ct.softmax(x, beta=many, out=x) | TypeError: beta must be a number
ct.pool(x, window=9) | ValueError: window of 9 is larger than spatial axis 0: the input has 5
ct.pool(x, window=2, padding=2) | ValueError: padding \(2, 2\) of spatial axis 0 must be smaller
ct.pool(x, window=(2, 2, 2)) | ValueError: has 3 axes; x of shape .* has 2 spatial axes
ct.pool(x, window="all") | ValueError: or 'global': got 'all'
ct.pool(x, window=2, padding=((0, 1), (0, 0)), mode="average_exc_pad") | NotSupportedError: cannot leave the
ct.pool(x, window={2}) | TypeError: is not a valid parameter
ct.pool(x, window=(2, {3})) | TypeError: is not a valid parameter
ct.pool_backward(images(2, 3, 2, 2), x, ct.pool(x, window=2), window=2) | ValueError: dy .*gives \(2, 3, 2,
"""

# `dropped` is the mask of a dropout of float32[2, 3].
DROPOUT = r"""
ct.DropoutState().restore([-1] * 2) | ValueError: saved has invalid values: got int64 \[-1 -1\], exp
ct.DropoutState().restore([0.5]) | ValueError: saved has invalid values: got float64 \[0.5\], expected bytes
ct.DropoutState(1) | ValueError: probability must be at least 0 and less than 1: got 1
ct.DropoutState("half") | TypeError: probability must be a number
ct.DropoutState(0.5, seed=-1) | ValueError: seed must be between 0 and .*, got -1
ct.dropout(x, 0.5) | TypeError: state must be a ct.DropoutState, not float
ct.dropout_backward(images(2, 3), dropped, ct.DropoutState()) | ValueError: mask belongs to another state
ct.dropout_backward(images(2, 3).T, dropped, dropped.state) | ValueError: dy does not fit the mask: got
    float32
ct.dropout_backward(x, x, dropped.state) | TypeError: mask must be a ct.DropoutMask, not Device
"""

# `ctc` is a call on the batch of test_ctc, with other arguments.
CTC = r"""
ctc(logits=np.zeros((6, 3, 4), "f")) | TypeError: logits must be an array on the device
ctc(logits=z((6, 3, 4), "int32")) | TypeError: float32, float64, not int32
ctc(logits=z((6, 12))) | ValueError: have shape \(6, 12\); expected \(T, N, A\)
ctc(labels=[1, 2, 3, 4]) | ValueError: sequence 2 has the label 4; .* between 0 and 3
ctc(blank=3) | NotSupportedError: blank is 3; cuDNN has the blank at 0
ctc(blank=4) | ValueError: blank must be between 0 and 3
ctc(algo="quick") | ValueError: algo must be one of deterministic, non_deterministic
ctc(out=(None, None, None)) | ValueError: out has 3 arrays; the results are loss, gradient
ctc(out=z((6, 3, 5))) | ValueError: out.gradient has shape \(6, 3, 5\)
ctc(out=(z((3,), "float16"), None)) | TypeError: out.loss is float16; the result is
ct.ctc_loss(images(2, 1, 1), [], [0], [2]) | NotSupportedError: shape \(2, 1, 1\): a blank alone; cuDNN
    wants a label
ct.ctc_loss(images(512, 2, 3), [[1] * 256] * 2, [2, 256], [512, 512]) | NotSupportedError: sequence 1 has 256
    labels; cuDNN takes 255
"""

CAUSAL = r"""
ct.causal_conv1d(z((2, 3, 7)), z((3, 4), "float16")) | TypeError: x is float32 and w is float16
ct.causal_conv1d(z((2, 3, 7), "int8"), z((3, 4), "int8")) | TypeError: not int8
ct.causal_conv1d(z((2, 3, 7)), z((3, 4)), activation="relu") | ValueError: activation must be one of silu,
    swish, identity: got 'relu'
gated(skip_bias=z((3,), "float16")) | TypeError: x is float32 and skip_bias is float16
gated(x=z((2, 9, 9))) | ValueError: got \(2, 9, 9\), expected \(N, channels, 3, length\); pass
    x.reshape\(2, 3, 3, 9\)
gated(w_proj=z((3, 2, 4))) | ValueError: w_proj has a wrong shape: got \(3, 2, 4\), expected \(3, 3, width\)
gated(w_proj=z((3, 3, 33))) | ValueError: the width of w_proj is not supported: got 33, expected 2 to 32
gated(w_mixer=z((3, 1))) | ValueError: the width of w_mixer is not supported: got 1, expected 2 to 256
gated(skip_bias=z((4,))) | ValueError: skip_bias has a wrong shape: got \(4,\), expected \(3,\)
"""

CAPTURES = r"""
ct.capture(3) | TypeError: function must be callable: got int
ct.capture(ct.activation, operands="both") | ValueError: operands
ct.capture(ct.activation, max_signatures=0) | ValueError: max_signatures must be positive: got 0
ct.capture(ct.activation, max_signatures="a") | TypeError: max_signatures
"""

NORM = r"""
ct.batch_norm_training(x, v, v, alpha=x) | TypeError: alpha must be a number
ct.batch_norm_training(x, v, v, running_mean=v) | ValueError: running_mean is given without running_var; both
ct.batch_norm_training(x, v, v, running_var=v) | ValueError: running_var is given without running_mean
ct.batch_norm_training(images(1, 3), v, v, running_mean=v, running_var=v) | ValueError: one sample does not
ct.batch_norm_training(x, images(4), v) | ValueError: scale has shape \(4,\); x .* needs \(1, 3, 1, 1\) or
ct.batch_norm_training(x, v, v, mode="per_activation") | ValueError: mode='per_activation' needs \(1, 3, 5,
ct.batch_norm_training(half, ct.asarray(v, "float16"), v) | TypeError: scale is float16; x of float16 needs
ct.batch_norm_training(x, v, v, residual=half) | TypeError: x is float32 and residual is float16
ct.batch_norm_training(x, v, v, residual=images(2, 3)) | ValueError: residual has shape \(2, 3\); x has
ct.batch_norm_training(x, v, v, running_mean=v, running_var=many) | TypeError: running_var must be an array
ct.batch_norm_training(x, v, v, running_mean=v, running_var=v) | ValueError: out overlaps
ct.batch_norm_training(x, v, v, running_mean=strided(v, 0), running_var=v) | ValueError: running_mean has
ct.batch_norm_training(x, v, v, running_mean=v, running_var=strided(v, 0)) | ValueError: running_var has
ct.batch_norm_training(images(1, 1, 1, 1, 1, 1, 1), v, v) | ValueError: takes 1 to 6 axes
ct.batch_norm_backward(x, x, v, v) | ValueError: mean and invstd must both be given, or neither
ct.batch_norm_backward(x, x, v, activation="relu") | ValueError: activation='relu' needs y, the result of the
ct.instance_norm_backward(x, x, (w := images(6))[5::-2], out=(None, w[:3], None)) | ValueError: out overlaps
ct.batch_norm_backward(x, x, v, out=(None, None, None, x)) | ValueError: out has dz, but without an
ct.batch_norm_backward(images(2, 3), x, v) | ValueError: dy has shape \(2, 3\); x has
ct.batch_norm_overflow_detected(wait=many) | TypeError: wait must be True or False
"""

TENSORS = r"""
ct.add(x, images(2, 3, 5, 5)) | ValueError: b has shape \(2, 3, 5, 5\); a of shape \(2, 3, 5, 6\) needs
ct.add(x, v) | ValueError: b .*needs as many axes
ct.add(x, images(2, 3, dtype="float64")) | TypeError: an operation on tensors needs one dtype for all
ct.op_tensor(x) | ValueError: op='add' needs b
ct.op_tensor(x, x, op="sqrt") | ValueError: op='sqrt' takes one tensor
ct.op_tensor(x, x, op="div") | ValueError: op must be one of add, mul, min, max, sqrt
ct.op_tensor(x, x, alpha1="2") | TypeError: alpha1 must be a number: got '2'
ct.scale(x, alpha=None) | TypeError: alpha must be a number: got None
ct.scale(ct.zeros(3, "int8"), alpha=2) | TypeError: scale takes float16, .* not int8
ct.scale(many, alpha=2) | TypeError: x must be an array on the device
ct.fill(x, "1") | TypeError: value must be a number: got '1'
ct.transform(x, layout="chwn") | ValueError: layout must be one of nchw, nhwc
ct.transform(images(2, 3), layout="nhwc") | ValueError: layout 'nhwc' needs a shape
ct.transform(x, strides=(3,)) | ValueError: expected one per axis
ct.transform(images(2, 3), layout="nchw", strides=(3, 1)) | ValueError: pass one
ct.transform(images(2, 3), strides=(1, 2), out=images(2, 3)) | ValueError: expected \(1, 2\)
ct.transform(x, dtype="int8") | TypeError: got float32 to int8
ct.transform(x, out=ct.zeros((2, 3, 5, 6), "float16")) | TypeError: the result is float32
ct.reduce(x, axis=4) | ValueError: axis is out of range: got 4
ct.reduce(x, axis=(axis for axis in (0, 1))) | TypeError: axis must be an int or a tuple of ints
ct.reduce(x, alpha=(2, 3)) | TypeError: alpha must be
ct.add(x, x, alpha="x") | TypeError: alpha must be
ct.reduce(x, axis=(0, -4)) | ValueError: contains an axis twice
ct.reduce(x, op="median") | ValueError: op must be one of add, mul, min, max, amax
ct.reduce_with_indices(x, op="average") | ValueError: got 'average', expected 'min' or 'max'
ct.reduce(ct.zeros((1,) * 9)) | ValueError: a reduction takes at most 8 axes
"""

ARRAYS = r"""
ct.empty_cache(device=-1) | ValueError: device -1 does not exist: the driver shows 2
ct.use(device=2).__enter__() | ValueError: device 2 does not exist: the driver shows 2
ct.use(device=2**70).__enter__() | ValueError: device 1180591620717411303424 does not exist
ct.softmax(x, stream=2**64) | ValueError: stream must be an address
ct.softmax(x, stream=Fake(__cuda_stream__=(0, "x"))) | TypeError: stream must be an address
ct.softmax(x, stream=Fake(__cuda_stream__=lambda: (0, -1))) | ValueError: stream must be an address
ct.softmax(x, stream=Fake(cuda_stream=2**64)) | ValueError: stream must be an address
ct.softmax(x, stream=Fake(ptr=-7)) | ValueError: stream must be an address
ct.synchronize(Fake(__cuda_stream__=5)) | TypeError: __cuda_stream__ of .* is malformed: got 5
ct.TensorDescriptor(ct.TensorSpec(None, (), "x")) | TypeError: shape of a spec must be a tuple of ints
ct.TensorSpec.packed((2, 3), "\ud800") | TypeError: cuDNN has no dtype \ud800; it has float32
ct.TensorSpec.packed((2, 3), "float32", many) | ValueError: layout must be one of nchw, nhwc
ct.empty((1, 2, 3, 4), layout="nwhc") | ValueError: layout must be one of nchw, nhwc: got 'nwhc'
ct.asarray(x, layout=many) | ValueError: layout must be one of nchw, nhwc: got
ct.asarray(many, layout="") | ValueError: layout must be one of nchw, nhwc: got
ct.empty((1, 2), layout="nhwc") | ValueError: 'nhwc' needs a shape \(N, C, 1 to 3 spatial axes\): got \(1, 2\)
ct.empty((2, -1)) | ValueError: each length must be between 0
ct.empty((2.5, 1)) | TypeError: sequence of integers
ct.use(device=0, stream=side1).__enter__() | ValueError: stream is on another device: got 1, expected 0
x.copy(stream=side1) | ValueError: stream is on another device: got 1, expected 0
x.fill(0, stream=side1) | ValueError: stream is on another device: got 1, expected 0
x.fill([1.0, 2.0]) | ValueError: value must be one number
x.fill([]) | ValueError: value must be one number
x.fill(np.arange(3.0)) | ValueError: value must be one number
x.fill([[1], [2]]) | ValueError: value must be one number
x.__dlpack__(dl_device=(1, 0)) | BufferError: must be the array's own device: got \(1, 0\), expected \(2, 0\)
x.__dlpack__(stream=0) | ValueError: DLPack forbids stream 0
ct.activation(foreign(np.array([[1, 2, 3]], ">f4")), mode="identity") | TypeError: is big-endian: only native
x.__dlpack__(dl_device=0.5) | TypeError: dl_device must be two integers
x.__dlpack__(dl_device=(1, -1)) | BufferError: must be the array's own device
x.__dlpack__(copy=many) | TypeError: copy must be True or False
x.__dlpack__(max_version=1.0) | TypeError: max_version must be two integers
x.packed("nhwc", 1.5) | TypeError: stream must be an address
x.fill("1") | TypeError: value must be a real number: got '1'
x.fill(None) | TypeError: value must be a real number: got None
x.fill(1j) | TypeError: value must be a real number: got 1j
x.fill(np.datetime64(3, "s")) | TypeError: value must be a real number
x.fill(object()) | TypeError: value must be a real number
x.fill(10**400) | ValueError: value is too large for float32
ct.raw.cudnnGetErrorString((1, 2)) | TypeError: cudnnGetErrorString\(status: c_int\): status must be c_int,
ct.reference.softmax(many, alpha=1j) | TypeError: alpha must be a number: got 1j
ct.reference.softmax(many, beta="x", out=many.copy()) | TypeError: beta must be a number: got 'x'
closed().numpy() | ValueError: this DeviceArray of shape \(2, 3\) is closed
"""

RNN = r"""
net.forward(seq, weights, lengths=[4, 1]) | ValueError: between 0 and the 3 steps
net.forward(seq, weights, lengths=[1]) | ValueError: lengths has 1 numbers; the batch has 2 sequences
net.forward(seq, weights, ct.empty((4, 3, 4))) | ValueError: needs \(1, 2, 3\)
net.forward(seq, ct.empty((7,))) | ValueError: w has shape \(7,\)
net.forward(ct.empty((4, 2)), weights, layout="packed", lengths=[1, 3]) | NotSupportedError: lengths \(1, 3\)
net.backward_data(None, net.forward(seq, weights).reserve) | TypeError: training=True
net.algorithms(3) | TypeError: x_shape must be a sequence of integers
net.algorithms((1, 1, 2), training=many) | TypeError: training must be True or False
net.pack_params(5) | TypeError: a mapping by names or a sequence, not int
net.pack_params([1, 2]) | TypeError: l0.W_hidden must be an array of shape \(3, 2\), not int
net.split_params(weights, "0") | TypeError: layer must be an int: got '0'
net.from_torch([]) | TypeError: a state is a mapping from names to arrays, not list
net.from_torch({}, prefix=3) | TypeError: prefix must be a string, not 3
net.from_torch({5: np.ones(2)}) | ValueError: lacks weight_hh_l0, weight_ih_l0 and has 5
net.to_torch(weights, prefix=3) | TypeError: prefix must be a string, not 3
ct.dnn.GpuDnnConvDesc("valid", conv_mode=many) | ValueError: conv_mode must be one of conv, cross
ct.dnn.GpuDnnReduction([]) | ValueError: red_op must be one of
ct.dnn.GpuDnnSoftmax("fast", "channel", tensor_format=many) | ValueError: tensor_format must be
ct.dnn.dnn_conv(None, None, direction_hint=many) | ValueError: direction_hint must be one of
"""

# z is ct.zeros; the operands of products and norms are its arrays. E4 and E5 are the dtypes of float8.
PRODUCTS = r"""
ct.matmul(z((2, 3)), z((4, 5))) | ValueError: 3 elements along axis -2
ct.matmul(z((2, 3, 4)), z((3, 4, 5))) | ValueError: batch axes do not match: a has \(2,\), b has \(3,\)
ct.matmul(z(()), z((4, 5))) | ValueError: a has no axes
ct.matmul(z((2, 3)), z((3, 2), "float16")) | TypeError: needs one dtype
ct.matmul(z((2, 3)), z((3, 4)), bias=z(3)) | ValueError: bias has a wrong shape: got \(3,\), expected \(4,\)
ct.matmul(z((2, 3)), z((3, 4)), residual=z(4)) | ValueError: expected that of the result, \(2, 4\)
ct.matmul(z((2, 3)), z((3, 4)), activation="softmax") | ValueError: activation must be one of identity, relu,
    gelu
ct.matmul(z((2, 3)), z((3, 4)), out_dtype="float16") | TypeError: out_dtype is float16; the result of a
    product of float32 is float32
ct.matmul(z((2, 3), "int8"), z((3, 4), "int8"), activation="relu") | ValueError: sums of int8 are written as
    int32
ct.matmul(z((2, 3), "float16"), z((3, 4), "int8")) | ValueError: pass b_scale
ct.matmul(z((2, 3)), z((3, 4)), algo="winograd") | ValueError: algo is unknown: got 'winograd'
ct.matmul(z((2, 3), E4), z((3, 4), E4)) | TypeError: ct.scaled_matmul
ct.matmul_backward(*[z((2, 2), "int8")] * 3) | TypeError: products of int8 have no gradient
ct.matmul_backward(z((2, 2)), z((2, 3)), z((3, 4))) | ValueError: dy has a wrong shape: got \(2, 2\), expected
    \(2, 4\)
ct.scaled_matmul(z((2, 1, 4, 4), E4), z((2, 4, 4), E4), amax=True) | NotSupportedError: amax of several
    products
ct.scaled_matmul(z((16, 8), E4), z((8, 32), E4)) | NotSupportedError: need multiples of 16: got M 16, N 32, K
    8
ct.scaled_matmul(*[z((4, 4), E4)] * 2, descale_a=z(2)) | ValueError: descale_a is not a float32 array of one
    element
ct.layer_norm(z((2, 3)), z(2)) | ValueError: scale has a wrong shape
ct.ada_layer_norm(z((2, 3, 4)), z((3, 4))) | ValueError: scale has a wrong shape: got \(3, 4\), expected
    \(samples, \*axes\)
ct.rms_norm(z((2, 3), "float64"), z(3, "float64")) | TypeError: RMS normalisation takes float16, bfloat16,
    float32, not float64
ct.layer_norm(z((2, 3), "float16"), z(3, "bfloat16")) | TypeError: scale has a wrong dtype: got bfloat16,
    expected float16 or float32
ct.layer_norm(z((2, 0)), z(0)) | ValueError: have no elements
ct.rms_norm(z((2, 3)), z(3), training=False, out=(None, z((2, 1)))) | ValueError: out has invrms, but training
    is not set
"""

# bx, bw and bb are the inputs x, w and b of a perceptron.
BUILT = r"""
perceptron()(bx, bw) | TypeError: got 2 arrays, expected x, w, b
perceptron()(bx, None, bb) | TypeError: w must be an array on the device, not NoneType
perceptron()(bx, bw, z=bb) | TypeError: got unknown z
perceptron()(bx, bw, bb, x=bx) | TypeError: got x twice
perceptron()(bw, bw, bb) | ValueError: x has the wrong shape: got \(6, 5\), expected \(4, 6\)
perceptron()(bx, bw, ct.empty((5,), "float16")) | TypeError: b has the wrong dtype: got float16,
    expected float32
perceptron()(ct.empty((6, 4)).T, bw, bb) | ValueError: x has the wrong strides: got \(1, 4\),
    expected \(6, 1\)
perceptron()(bx, bw, bb, out=(bx, bx)) | ValueError: out has 2 arrays
squared()(four, out=four) | ValueError: out overlaps
"""

# p is the address of x, which has 720 bytes.
POINTERS = r"""
ct.from_pointer(0, x.shape, "float32") | ValueError: pointer is null; float32\[2, 3, 5, 6\] nchw needs memory
ct.from_pointer(-8, x.shape, "float32") | ValueError: pointer must be an address: got -8, expected 1 to 2\*
ct.from_pointer(p + 2, x.shape, "float32") | ValueError: is not a multiple of the 4 bytes of float32
ct.from_pointer(many.ctypes.data, x.shape, "float32") | ValueError: is not device memory: the driver has no
    allocation there; it was freed
ct.from_pointer(p + 4, x.shape, "float32") | ValueError: needs 720 bytes .* has 720 bytes from .*, of which
    716 are behind the pointer
ct.from_pointer(p, x.shape, "float32", device=1) | ValueError: on another device: got 1, expected 0; pass dev
ct.from_pointer(p, x.shape, "float32", device=7) | ValueError: device 7 does not exist
ct.from_pointer(p, (1,), "float32", stream=side1) | ValueError: stream is on another device: got 1, expected 0
ct.from_pointer(p, (2,), "float32", strides=(-1,)) | ValueError: needs 8 bytes from
ct.from_pointer(x, (1,), "float32") | TypeError: pointer must be an int, a CUdeviceptr, .*; ct\.asarray takes
ct.from_pointer("text", (1,), "float32") | TypeError: pointer must be an int, a CUdeviceptr, .*; ct\.asarray
ct.from_pointer(True, (1,), "float32") | TypeError: pointer must be an int, a CUdeviceptr, .*; ct\.asarray
ct.from_pointer(None, (1,), "float32") | TypeError: pointer must be an int, a CUdeviceptr, .*; ct\.asarray
ct.from_pointer(p, (1,), "complex64") | TypeError: cuDNN has no dtype complex64
ct.from_pointer(p, (2, 2), "float32", strides=(1,)) | ValueError: strides \(1,\) must have one number for each
    axis of shape \(2, 2\)
ct.from_pointer(p, (2, 2), "float32", offset=1) | TypeError: from_pointer\(\) got an unexpected keyword
    argument 'offset'
"""

# q is float16[1, 2, 4, 8]; fewer and more are 24 and 64 queries or keys; wide is float32 with heads of 136.
# h is of float8, as heads makes such operands.
ATTENTION = r"""
ct.attention(q, q, q, dropout=0.5, seed=2**64, offset=0) | ValueError: seed is out of range: got
    18446744073709551616, expected int64
ct.attention(q, q, q, dropout=0.5, offset=2**64, seed=0) | ValueError: offset is out of range: got
    18446744073709551616, expected int64
ct.attention(q, q, q, dropout=0.5, seed=1.5, offset=0) | TypeError: seed must have whole numbers
ct.attention(q, q, q, dropout=0.5, seed=[1.5], offset=0) | TypeError: seed must have whole numbers
ct.attention(q, q, q, dropout=0.5, seed=np.float64(1.5), offset=0) | TypeError: seed must have whole numbers
ct.attention(q, q, q, dropout=0.5, seed="5", offset=0) | TypeError: seed must have whole numbers
ct.attention(q, q, q, dropout=0.5, seed=np.str_("5"), offset=0) | TypeError: seed must have whole numbers
ct.attention(None, q, q) | TypeError: q must be an array on the device, not NoneType
ct.attention(q, None, q) | TypeError: k must be an array on the device, not NoneType
ct.attention(q, q, None) | TypeError: v must be an array on the device, not NoneType
ct.attention(None, q, q, lengths_q=[4], lengths_kv=[3]) | TypeError: q must be an array on the device, not
    NoneType
ct.attention(q, None, q, lengths_q=[4], lengths_kv=[3]) | TypeError: k must be an array on the device, not
    NoneType
ct.attention(q, q, None, lengths_q=[4], lengths_kv=[3]) | TypeError: v must be an array on the device, not
    NoneType
ct.attention(fewer, more, more, causal="bottom_right", bias=bias) | NotSupportedError: bottom-right masks
    with a bias
ct.attention(more, fewer, fewer, window=(30, 2)) | NotSupportedError: more queries than keys
ct.attention(*[z((1, 1, 8, 8), "float64")] * 3) | NotSupportedError: does not support float64
ct.attention(wide, wide, z((1, 2, 8, 128))) | NotSupportedError: float32 is wrong for heads above 128
ct.attention(*[z((1, 2, 8, 128))] * 2, wide) | NotSupportedError: float32 is wrong for heads above 128
ct.attention_backward(*[z((1, 2, 8, 128))] * 5, z((1, 2, 8))) | NotSupportedError: no engine for the gradients
    of attention of float32
ct.attention_backward(*[q] * 5, z((1, 2, 4)), bias=mask, dbias=True) | ValueError: dbias=True needs a bias of
    floating-point numbers: got a mask
ct.attention(*[z((5, 2, 8), "float16")] * 3, lengths_q=[2, 4], offsets_q=[0, 2, 5], offsets_kv=[0, 2, 5]) |
    ValueError: lengths_q must be at most the distances of the offsets, \[2, 3\]
ct.clear_padding(z((2, 3, 8), "float16"), [1, 1]) | ValueError: got shape \(2, 3, 8\), expected \(B, H, S, D\)
ct.clear_padding(z((2, 3, 8, 8), "float64"), [1, 1]) | TypeError: got float64
ct.clear_padding(z((2, 3, 8, 4), "float16"), [1, 1]) | NotSupportedError: multiple of 8
ct.clear_padding(z((2, 3, 8, 8), "float16"), [1, 9]) | ValueError: lengths must be from 0 to 8: got 9
ct.clear_padding(z((2, 3, 8, 8), "float16"), [1, 2, 3]) | ValueError: got \(3,\), expected \(2,\)
ct.scaled_attention(*[heads(dtype="float16")] * 3) | TypeError: q has a wrong dtype: got float16, expected
    float8_e4m3 or float8_e5m2
ct.scaled_attention(h, heads(dtype=E5), h) | TypeError: k has the wrong dtype: got float8_e5m2, expected
    float8_e4m3, as q
ct.scaled_attention(heads(4, 16), h, h) | ValueError: q has the wrong number of axes: got shape \(4, 16\)
ct.scaled_attention(h, heads(1, 2, 5, 16), h) | ValueError: k has the wrong shape: got \(1, 2, 5, 16\),
    expected \(1, 2, 4, 16\)
ct.scaled_attention(heads(1, 3, 4, 16), h, h) | ValueError: k has the wrong number of heads: got 2, expected a
    divisor of 3
ct.scaled_attention(*[heads(1, 2, 4, 24)] * 3) | NotSupportedError: the last axis of q is not a multiple of
    16: got 24
ct.scaled_attention(*[heads(1, 2, 4, 256)] * 3) | NotSupportedError: the last axis of q is too long: got 256,
    expected at most 192
ct.scaled_attention(*[heads(1, 2, 4, 144)] * 3) | NotSupportedError: the last axis of v is too long: got 144,
    expected at most 128
ct.scaled_attention(heads(1, 2, 1, 16), h, h) | NotSupportedError: cuDNN has no engine for attention of float8
    with one query
ct.scaled_attention(heads(1, 2, 3, 16), h, h, causal="bottom_right") | NotSupportedError: got 3 queries and 4
    keys
ct.scaled_attention(*[h] * 3, out_dtype="float32") | NotSupportedError: the result has an unsupported dtype:
    got float32, expected float8_e4m3, float8_e5m2, bfloat16, fl
ct.scaled_attention(*[h] * 3, scale=-1) | NotSupportedError: scale is not positive: got -1
ct.scaled_attention(*[h] * 3, descale_q=z(2)) | ValueError: descale_q is not a float32 array of one element
ct.scaled_attention(*[h] * 3, scale_s=z(1)) | ValueError: scale_s and descale_s belong together: got only
    scale_s
ct.scaled_attention(*[h] * 3, amax=2) | TypeError: amax must be True or False
ct.scaled_attention(*[h] * 3, out=(None, None, z(1))) | ValueError: out has amax, but amax is not set
ct.scaled_attention(*[h] * 3, out=(None, z((1, 2, 4))), amax=True) | ValueError: out has 2 arrays; the results
    are y, stats, amax
ct.scaled_attention(*[h] * 3, out=heads(dtype=E5), out_dtype=E4) | TypeError: out is float8_e5m2; the result
    is float8_e4m3
"""

# x8 and w8 are float8 operands of a convolution, as eights makes them.
SCALED_CONV = r"""
ct.scaled_conv(eights((2, 32, 5, 6), "float16"), w8) | TypeError: x has a wrong dtype: got float16
ct.scaled_conv(x8, eights((48, 32, 3, 3), "int8")) | TypeError: w has a wrong dtype: got int8
ct.scaled_conv(eights((2, 24, 5, 6)), eights((48, 24, 3, 3))) | NotSupportedError: multiples of 16: each group
    has 24 channels and 48 filters; pad with zeros
ct.scaled_conv(x8, eights((20, 32, 3, 3))) | NotSupportedError: each group has 32 channels and 20 filters
ct.scaled_conv(x8, eights((32, 1, 3, 3)), groups=32) | NotSupportedError: each group has 1 channels and 1
    filters
ct.scaled_conv(x8, eights((48, 16, 3, 3)), groups=2, amax=True) | NotSupportedError: no engine for amax of a
    convolution of float8 with groups: got groups 2; compute it
ct.scaled_conv(z((2, 0, 5, 6), E4), z((16, 0, 3, 3), E4)) | NotSupportedError: have no terms
ct.scaled_conv(x8, w8, out_dtype="float64") | TypeError: out_dtype is not supported: got float64, expected one
ct.scaled_conv(x8, w8, bias=z(32)) | ValueError: bias has a wrong shape: got \(32,\), expected \(48
ct.scaled_conv(x8, w8, bias=z(48, "bfloat16"), out_dtype="float16") | TypeError: bias has a wrong dtype: got
    bfloat16, expected float16 or float32
ct.scaled_conv(x8, w8, scale=z(2)) | ValueError: scale is not a float32 array of one element
ct.scaled_conv(x8, w8, activation="elu") | ValueError: activation must be one of identity, relu, gelu
ct.scaled_conv(x8, w8, algo="winograd") | ValueError: algo is unknown: got 'winograd'
ct.scaled_conv(x8, w8, out=(None, 0)) | ValueError: out has amax, but amax is not set
ct.scaled_conv(x8, w8, dilation=3) | ValueError: the output would be empty along spatial axis 0
ct.conv(x8, w8) | TypeError: convolutions of float8 are ct\.scaled_conv
"""

# graph makes operands of an aggregation, nodes are those of an attention.
GRAPHS = r"""
ct.graph_aggregate(**graph(indices=((7,), "int64"))) | TypeError: offsets is int32 and indices is int64; a
    graph needs one
ct.graph_aggregate(**graph(offsets=((4,), "float32"))) | TypeError: offsets has a wrong dtype: got float32,
    expected int32
ct.graph_aggregate(**graph(offsets=((0,), "int32"))) | ValueError: offsets has a wrong shape: got
ct.graph_aggregate(**graph(indices=((7, 1), "int32"))) | ValueError: indices has a wrong shape: got \(7, 1\),
    expected o
ct.graph_aggregate(**graph(order=((6,), "int32"))) | ValueError: order has a wrong shape: got \(6,\), expected
    \(7,\)
ct.graph_aggregate(**graph(x=((5,), "float32"))) | ValueError: x has a wrong shape: got \(5,\), expected
    \(nodes, feat
ct.graph_aggregate(**graph(x=((5, 4), "float64"))) | TypeError: graph_aggregate takes float16, bfloat16,
    float32, not f
ct.graph_aggregate(**graph(edges=((6, 2), "float32"))) | ValueError: edges has a wrong shape: got \(6, 2\),
    expected \(7
ct.graph_aggregate(**graph(concat=((2, 2), "float32"))) | ValueError: concat has a wrong shape: got \(2, 2\),
    expected \(3
ct.graph_attention(*nodes, heads=4) | ValueError: heads does not divide the features: got 4 heads, 6 features
ct.graph_attention(*nodes, heads=0) | ValueError: heads is out of range: got 0, expected an int from 1 to 6
ct.graph_attention(*nodes, coefficient=0) | ValueError: coefficient is out of range: got 0.0, expected a
    finite number above 0
ct.graph_attention(*nodes, activation="gelu") | ValueError: activation must be one of identity, relu, sigmoid
ct.graph_attention(*nodes, mask=z((2, 7))) | ValueError: mask has a wrong shape: got \(2, 7\), expected \(1,
    7\)
ct.graph_attention(*nodes, edges=z((7, 3))) | ValueError: edges has a wrong shape: got \(7, 3\), expected \(7,
    6\)
ct.graph_attention(*nodes[:4], z(5)) | ValueError: w has a wrong shape: got \(5,\), expected \(6,\)
ct.graph_attention(*nodes, mask=z((1, 7), "float16")) | TypeError: mask has a wrong dtype: got float16,
    expected float32
"""

ROWS = [
    line.split(" | ")
    for text in (
        *(CONV, INT8, LAYERS, NORM, TENSORS, ARRAYS, RNN, PRODUCTS, BUILT, POINTERS, ATTENTION),
        *(SCALED_CONV, GRAPHS, DROPOUT, CTC, CAUSAL, CAPTURES),
    )
    for line in text.replace("\n    ", " ").split("\n")  # long rows go on in indented lines
    if line
]


@pytest.fixture
def names(fake: FakeCudnn, host: Host) -> dict[str, Any]:
    """The names that the calls contain."""
    net, x = ct.RNN("rnn_relu", 2, 3, bias="no_bias"), images(2, 3, 5, 6)
    functions: dict[str, Any] = {
        function.__name__: function
        for function in (
            *(images, Fake, closed, elsewhere, strided, heads, eights),
            *(gated, graph, perceptron, squared),
        )
    }
    return functions | {
        "ct": ct,
        "np": np,
        "many": np.zeros((1, 2)),
        "foreign": lambda values: ForeignArray(host, values),
        "x": x,
        "w": images(4, 3, 3, 3),
        "v": ct.full((3,), 1),
        "half": ct.asarray(x, "float16"),
        "i": ct.asarray(x, "int8"),
        "j": ct.zeros((4, 3, 3, 3), "int8"),
        "dy": ct.zeros((2, 4, 3, 4), "int8"),
        "net": net,
        "weights": ct.zeros((net.weight_size,)),
        "seq": ct.zeros((3, 2, 2)),
        "side1": streams.as_stream(0x77, 1),
        **{"p": x.pointer, "four": ct.zeros((4, 4))},
        **dict(zip(("bx", "bw", "bb"), map(ct.zeros, ((4, 6), (6, 5), (5,))), strict=True)),
        "z": ct.zeros,
        "E4": E4,
        "E5": "float8_e5m2",
        "q": ct.zeros((1, 2, 4, 8), "float16"),
        "wide": ct.zeros((1, 2, 8, 136)),
        "fewer": ct.zeros((2, 4, 24, 64), "float16"),
        "more": ct.zeros((2, 4, 64, 64), "float16"),
        "bias": ct.zeros((1, 4, 24, 64), "float16"),
        "mask": ct.asarray(np.ones((1, 1, 4, 4), bool)),
        "h": heads(1, 2, 4, 16),
        "x8": eights((2, 32, 5, 6)),
        "w8": eights((48, 32, 3, 3)),
        "dropped": ct.dropout(images(2, 3), ct.DropoutState()).mask,
        "ctc": ctc,
        "nodes": [*map(ct.zeros, ((4,), (7,)), ("int32",) * 2), *map(ct.zeros, ((5, 6), (3, 6), (6,)))],
    }


@pytest.mark.parametrize(("call", "error"), ROWS, ids=[call for call, _ in ROWS])
def test_call_is_rejected(names: dict[str, Any], call: str, error: str) -> None:
    with pytest.raises((CudnnError, TypeError, ValueError, BufferError)) as caught:
        eval(call, names)
    kind, message = error.split(": ", 1)
    assert type(caught.value).__name__ == kind
    assert re.search(message, str(caught.value), re.DOTALL), caught.value
    names.clear()
    del caught


# --- other properties of hostile arguments -----------------------------------------------------------------


KEEPERS: dict[str, Callable[[Any], object]] = {
    "a device to free memory of": lambda array: ct.empty_cache(device=array),
    "a device to use": lambda array: ct.use(device=array).__enter__(),
    "a dtype": lambda array: ct.empty((2, 3), array),
    "a flag": lambda array: ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), strict=array),
    "a flag of a layer": lambda array: ct.reduce(images(2, 3), keepdims=array),
    "another flag": lambda array: ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), deterministic=array),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_rejected_argument_is_not_kept(fake: FakeCudnn, name: str) -> None:
    array = images(2, 3)
    there = weakref.ref(array)
    with pytest.raises(TypeError):
        KEEPERS[name](array)
    del array
    gc.collect()
    assert there() is None


@pytest.mark.parametrize(("stream", "error"), [("x", TypeError), (-1, ValueError), (2**64, ValueError)])
def test_array_interface_is_rejected_when_its_stream_is_malformed(
    stream: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="stream must be an address"):
        interop._producer_stream(Fake(__cuda_array_interface__={"stream": stream}), 0)


@pytest.mark.parametrize("device", [None, (), (2,), "cuda", ("cuda", 0), 5])
def test_dlpack_producer_is_rejected_when_its_device_is_malformed(device: Any) -> None:
    producer = Fake(__dlpack_device__=lambda: device, __dlpack__=lambda **_: None)
    for function in (interop.device_of, interop.in_host_memory):
        with pytest.raises(TypeError, match=r"__dlpack_device__ of .* is malformed: got"):
            function(producer)


def test_array_at_address_0_is_rejected_unless_it_is_empty(fake: FakeCudnn, host: Host) -> None:
    array, empty = (ForeignArray(host, np.zeros((n, 3), np.float32)) for n in (2, 0))
    array.pointer = empty.pointer = 0
    with pytest.raises(ValueError, match=r"not usable: its float32\[2, 3\] nchw is at address 0"):
        ct.softmax(array)
    assert ct.softmax(empty).shape == (0, 3)


def test_flags_take_numbers_and_numpy_booleans(fake: FakeCudnn) -> None:
    x, w, net = images(1, 2, 3, 4), images(4, 2, 3, 3), ct.RNN("rnn_relu", 2, 3, bias="no_bias")
    for yes in (True, 1, np.True_, np.int64(1)):
        assert ct.reduce_with_indices(x, op="max", axis=1, keepdims=yes).indices.shape == (1, 1, 3, 4)
        assert net.algorithms((1, 1, 2), training=yes, measure=not yes)
        assert (
            ct.conv(x, w, deterministic=yes).numpy() == ct.conv(x, w, deterministic=not yes).numpy()
        ).all()
    assert dnn_context(np.int64(0)) == dnn_context("cuda0") == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**20, 2**20, 2**10), "they are in rows, or one after another"),
        ((2**50,), rf"there are {2**50} labels; label_lengths \(1, 2\) add up to 3"),
        ((2**50, 1), rf"there are {2**50} rows of labels; the batch has 2 sequences"),
    ],
)
def test_labels_are_rejected_when_no_list_could_hold_them(shape: tuple[int, ...], message: str) -> None:
    labels = np.broadcast_to(np.int32(1), shape)
    with pytest.raises(ValueError, match=message):
        check_ctc_operands((9, 2, 4), labels, [1, 2], [9, 8])
    wide = np.broadcast_to(np.int32(1), (2, 2**50))
    assert check_ctc_operands((9, 2, 4), wide, [1, 2], [9, 8])[0] == ((1,), (1, 1))
