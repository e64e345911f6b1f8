"""Names, parameters, defaults and flags in the documentation of Theano's ``dnn`` modules."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """A public name.

    ``parameters`` has the parameters in the later module, or in the older one if only that has the name,
    without the arguments of Theano's optimiser. ``older`` has the parameters in the older module. ``call``
    has the documented parameters of a call of an operation.
    """

    parameters: str
    older: str = ""
    call: str = ""


_MOVES = "border_mode='valid', subsample=(1, 1), dilation=(1, 1), conv_mode='conv'"
_MOVES_3D = "border_mode='valid', subsample=(1, 1, 1), dilation=(1, 1, 1), conv_mode='conv'"
_HOW = "precision=None, algo=None, num_groups=1"
_OLD_MOVES = "border_mode='valid', subsample=(1, 1), conv_mode='conv'"
_OLD_GRADIENT = "inplace=False, workmem=None, algo=None"

NAMES: dict[str, Name] = {
    "dnn_conv": Name(
        f"img, kerns, {_MOVES}, direction_hint=None, workmem=None, algo=None, precision=None, num_groups=1",
        f"img, kerns, {_OLD_MOVES}, direction_hint=None, workmem=None, algo=None, precision=None",
    ),
    "dnn_conv3d": Name(
        f"img, kerns, {_MOVES_3D}, direction_hint=None, algo=None, precision=None, num_groups=1",
        f"img, kerns, {_OLD_MOVES}, direction_hint=None, workmem=None, algo=None, precision=None",
    ),
    "dnn_gradweight": Name(
        f"img, topgrad, kerns_shp, {_MOVES}, {_HOW}", f"img, topgrad, kerns_shp, {_OLD_MOVES}"
    ),
    "dnn_gradweight3d": Name(
        f"img, topgrad, kerns_shp, {_MOVES_3D}, {_HOW}", f"img, topgrad, kerns_shp, {_OLD_MOVES}"
    ),
    "dnn_gradinput": Name(
        f"kerns, topgrad, img_shp, {_MOVES}, {_HOW}", f"kerns, topgrad, img_shp, {_OLD_MOVES}"
    ),
    "dnn_gradinput3d": Name(
        f"kerns, topgrad, img_shp, {_MOVES_3D}, {_HOW}", f"kerns, topgrad, img_shp, {_OLD_MOVES}"
    ),
    "dnn_pool": Name("img, ws, stride=None, mode='max', pad=None", "img, ws, stride, mode, pad"),
    "dnn_batch_normalization_train": Name(
        "inputs, gamma, beta, mode='per-activation', epsilon=0.0001, running_average_factor=0.1, "
        "running_mean=None, running_var=None"
    ),
    "dnn_batch_normalization_test": Name(
        "inputs, gamma, beta, mean, var, mode='per-activation', epsilon=0.0001"
    ),
    "dnn_spatialtf": Name("img, theta, scale_width=1, scale_height=1"),
    "dropout": Name("x, dropout=0.0, seed=4242"),
    "RNNBlock": Name(
        "dtype, hidden_size, num_layers, rnn_mode, input_mode='linear', direction_mode='unidirectional', "
        "context_name=None"
    ),
    "RNNBlock.get_param_size": Name("input_size"),
    "RNNBlock.split_params": Name("w, layer, input_size"),
    "RNNBlock.apply": Name("w, x, hx, cx=None"),
    "version": Name("raises=True"),
    "dnn_present": Name(""),
    "dnn_available": Name("context_name"),
    "GpuDnnConvDesc": Name(
        "border_mode, subsample=(1, 1), dilation=(1, 1), conv_mode='conv', precision='float32', num_groups=1",
        "border_mode, subsample, conv_mode, precision",
    ),
    "GpuDnnConv": Name("algo=None, inplace=False, num_groups=1", "workmem=None, inplace=False, algo=None"),
    "GpuDnnConv.get_out_shape": Name(
        "ishape, kshape, border_mode, subsample, dilation", "ishape, kshape, border_mode, subsample"
    ),
    "GpuDnnConv3d": Name("workmem=None, inplace=False, algo=None"),
    "GpuDnnConv3d.get_out_shape": Name("ishape, kshape, border_mode, subsample"),
    "GpuDnnConvGradW": Name("inplace=False, algo=None, num_groups=1", _OLD_GRADIENT),
    "GpuDnnConvGradI": Name("inplace=False, algo=None, num_groups=1", _OLD_GRADIENT),
    "GpuDnnConv3dGradW": Name(_OLD_GRADIENT),
    "GpuDnnConv3dGradI": Name(_OLD_GRADIENT),
    "GpuDnnPoolDesc": Name("ws=(1, 1), stride=(1, 1), mode='max', pad=(0, 0)"),
    "GpuDnnPool": Name("mode='max'", call="img, ws, stride, pad"),
    "GpuDnnPoolGrad": Name("mode='max'", call="inp, out, out_grad, ws, stride, pad"),
    "GpuDnnSoftmax": Name("algo, mode", "tensor_format, algo, mode"),
    "GpuDnnSoftmaxGrad": Name("algo, mode", "tensor_format, algo, mode"),
    "GpuDnnBatchNorm": Name(
        "mode='per-activation', running_averages=False, inplace_running_mean=False, "
        "inplace_running_var=False, inplace_output=False",
        "mode, epsilon, running_average_factor, running_averages, inplace_running_mean, "
        "inplace_running_var, inplace_output",
        "x, scale, bias, epsilon=0.0001, running_average_factor=0.1, running_mean=None, running_var=None",
    ),
    "GpuDnnBatchNormInference": Name("mode='per-activation', inplace=False", "mode, epsilon, inplace"),
    "GpuDnnBatchNormGrad": Name("mode='per-activation'", "mode, epsilon"),
    "GpuDnnReduction": Name("red_op"),
    "GpuDnnDropoutOp": Name("inplace=False", call="inp, descriptor, state"),
    "GpuDnnRNNOp": Name("rnn_mode, direction_mode"),
    "GpuDnnRNNGradInputs": Name("rnn_mode, grad_h, grad_c"),
    "GpuDnnRNNGradWeights": Name(""),
    "GpuDnnTransformerGrid": Name("", call="theta, out_dims"),
    "GpuDnnTransformerSampler": Name("", call="img, grid"),
    "GpuDnnTransformerGradI": Name(""),
    "GpuDnnTransformerGradT": Name(""),
}

# Names for Theano's code generation, and base classes.
LEFT_OUT = (
    "CDataMaker",
    "DnnBase",
    "DnnVersion",
    "GpuDnnBatchNormBase",
    "GpuDnnPoolBase",
    "GpuDnnSoftmaxBase",
    "MakerCDataType",
)

# Differences: parameters that follow the documented ones, and parameters that are optional here.
ADDED: dict[str, tuple[str, ...]] = {
    "dnn_conv3d": ("workmem",),
    "GpuDnnConv": ("workmem",),
    "GpuDnnConvGradW": ("workmem",),
    "GpuDnnConvGradI": ("workmem",),
    "GpuDnnConv3d.get_out_shape": ("dilation",),
    "GpuDnnSoftmax": ("tensor_format",),
    "GpuDnnSoftmaxGrad": ("tensor_format",),
    "GpuDnnPoolGrad()": ("inp_grad",),
    "GpuDnnBatchNorm": ("epsilon", "running_average_factor"),
    "GpuDnnBatchNormInference": ("epsilon",),
    "GpuDnnBatchNormGrad": ("epsilon",),
    "GpuDnnReduction": ("axis", "acc_dtype", "dtype", "return_indices"),
}
OPTIONAL: dict[str, tuple[str, ...]] = {
    "dnn_available": ("context_name",),
    "GpuDnnConv.get_out_shape": ("dilation",),
    "GpuDnnPool()": ("stride", "pad"),
    "GpuDnnPoolGrad()": ("out_grad", "ws", "stride", "pad"),
    "GpuDnnDropoutOp()": ("state",),
}

FLAGS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "dnn.enabled": ("auto", ("auto", "True", "False", "no_check")),
    "dnn.conv.algo_fwd": (
        "small",
        ("none", "small", "large", "fft", "fft_tiling", "winograd", "winograd_non_fused"),
    ),
    "dnn.conv.algo_bwd_filter": (
        "none",
        ("none", "small", "deterministic", "fft", "fft_tiling", "winograd_non_fused"),
    ),
    "dnn.conv.algo_bwd_data": (
        "none",
        ("none", "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused"),
    ),
    "dnn.conv.precision": ("as_input_f32", ("as_input_f32", "as_input", "float16", "float32", "float64")),
    "dnn.library_path": (None, ()),
    "dnn.include_path": (None, ()),
    "dnn.base_path": (None, ()),
}
POLICIES = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")
REMOVED = {
    "dnn.conv.workmem": "dnn.conv.algo_fwd",
    "dnn.conv.workmem_bwd": "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data",
    "dnn.conv.algo_bwd": "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data",
    "dnn.bin_path": "dnn.library_path",
}
