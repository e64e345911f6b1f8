"""Names, parameters, defaults and flags in the documentation of Theano's ``dnn`` modules."""

from __future__ import annotations

_MOVES = "border_mode='valid', subsample=(1, 1), dilation=(1, 1), conv_mode='conv'"
_MOVES_3D = _MOVES.replace("(1, 1)", "(1, 1, 1)")
_HOW = "precision=None, algo=None, num_groups=1"
_OLD_GRADIENT = "inplace=False, workmem=None, algo=None"

# Public names with their parameters in the later module, or in the older one if only that has the name,
# without the arguments of Theano's optimiser. Parameters that only the older module has follow, and
# `context_name`, `dilation` and the parameters of calls may be left out.
NAMES: dict[str, str] = {
    "dnn_conv": f"img, kerns, {_MOVES}, direction_hint=None, workmem=None, algo=None, precision=None, "
    "num_groups=1",
    "dnn_conv3d": f"img, kerns, {_MOVES_3D}, direction_hint=None, algo=None, precision=None, num_groups=1, "
    "*, workmem=None",
    "dnn_gradweight": f"img, topgrad, kerns_shp, {_MOVES}, {_HOW}",
    "dnn_gradweight3d": f"img, topgrad, kerns_shp, {_MOVES_3D}, {_HOW}",
    "dnn_gradinput": f"kerns, topgrad, img_shp, {_MOVES}, {_HOW}",
    "dnn_gradinput3d": f"kerns, topgrad, img_shp, {_MOVES_3D}, {_HOW}",
    "dnn_pool": "img, ws, stride=None, mode='max', pad=None",
    "dnn_batch_normalization_train": "inputs, gamma, beta, mode='per-activation', epsilon=0.0001, "
    "running_average_factor=0.1, running_mean=None, running_var=None",
    "dnn_batch_normalization_test": "inputs, gamma, beta, mean, var, mode='per-activation', epsilon=0.0001",
    "dnn_spatialtf": "img, theta, scale_width=1, scale_height=1",
    "dropout": "x, dropout=0.0, seed=4242",
    "RNNBlock": "dtype, hidden_size, num_layers, rnn_mode, input_mode='linear', "
    "direction_mode='unidirectional', context_name=None",
    "RNNBlock.get_param_size": "input_size",
    "RNNBlock.split_params": "w, layer, input_size",
    "RNNBlock.apply": "w, x, hx, cx=None",
    "version": "raises=True",
    "dnn_present": "",
    "dnn_available": "context_name=None",
    "GpuDnnConvDesc": f"{_MOVES}, precision='float32', num_groups=1".replace("='valid'", ""),
    "GpuDnnConv": "algo=None, inplace=False, num_groups=1, *, workmem=None",
    "GpuDnnConv.get_out_shape": "ishape, kshape, border_mode, subsample, dilation=1",
    "GpuDnnConv3d": "workmem=None, inplace=False, algo=None",
    "GpuDnnConv3d.get_out_shape": "ishape, kshape, border_mode, subsample, dilation=1",
    "GpuDnnConvGradW": "inplace=False, algo=None, num_groups=1, *, workmem=None",
    "GpuDnnConvGradI": "inplace=False, algo=None, num_groups=1, *, workmem=None",
    "GpuDnnConv3dGradW": _OLD_GRADIENT,
    "GpuDnnConv3dGradI": _OLD_GRADIENT,
    "GpuDnnPoolDesc": "ws=(1, 1), stride=(1, 1), mode='max', pad=(0, 0)",
    "GpuDnnPool": "mode='max'",
    "GpuDnnPoolGrad": "mode='max'",
    "GpuDnnSoftmax": "algo, mode, *, tensor_format=None",
    "GpuDnnSoftmaxGrad": "algo, mode, *, tensor_format=None",
    "GpuDnnBatchNorm": "mode='per-activation', running_averages=False, inplace_running_mean=False, "
    "inplace_running_var=False, inplace_output=False, *, epsilon=None, running_average_factor=None",
    "GpuDnnBatchNormInference": "mode='per-activation', inplace=False, *, epsilon=None",
    "GpuDnnBatchNormGrad": "mode='per-activation', *, epsilon=None",
    "GpuDnnReduction": "red_op, axis=None, acc_dtype=None, dtype=None, return_indices=False",
    "GpuDnnDropoutOp": "inplace=False",
    "GpuDnnRNNOp": "rnn_mode, direction_mode",
    "GpuDnnRNNGradInputs": "rnn_mode, grad_h, grad_c",
    "GpuDnnRNNGradWeights": "",
    "GpuDnnTransformerGrid": "",
    "GpuDnnTransformerSampler": "",
    "GpuDnnTransformerGradI": "",
    "GpuDnnTransformerGradT": "",
}

# Documented parameters of the calls of operations.
CALLS: dict[str, str] = {
    "GpuDnnPool": "img, ws, stride=None, pad=None",
    "GpuDnnPoolGrad": "inp, out, out_grad=None, ws=None, stride=None, pad=None, *, inp_grad=None",
    "GpuDnnBatchNorm": "x, scale, bias, epsilon=0.0001, running_average_factor=0.1, running_mean=None, "
    "running_var=None",
    "GpuDnnDropoutOp": "inp, descriptor, state=None",
    "GpuDnnTransformerGrid": "theta, out_dims",
    "GpuDnnTransformerSampler": "img, grid",
}

# Names for Theano's code generation, and base classes.
LEFT_OUT = (
    *("CDataMaker", "DnnBase", "DnnVersion", "GpuDnnBatchNormBase", "GpuDnnPoolBase"),
    *("GpuDnnSoftmaxBase", "MakerCDataType"),
)

# Flags: the default and the valid values, or None and no values for a path.
FLAGS: dict[str, tuple[str | None, str]] = {
    "dnn.enabled": ("auto", "auto True False no_check"),
    "dnn.conv.algo_fwd": ("small", "none small large fft fft_tiling winograd winograd_non_fused"),
    "dnn.conv.algo_bwd_filter": ("none", "none small deterministic fft fft_tiling winograd_non_fused"),
    "dnn.conv.algo_bwd_data": ("none", "none deterministic fft fft_tiling winograd winograd_non_fused"),
    "dnn.conv.precision": ("as_input_f32", "as_input_f32 as_input float16 float32 float64"),
    "dnn.library_path": (None, ""),
    "dnn.include_path": (None, ""),
    "dnn.base_path": (None, ""),
}
POLICIES = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")
REMOVED = {
    "dnn.conv.workmem": "dnn.conv.algo_fwd",
    "dnn.conv.workmem_bwd": "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data",
    "dnn.conv.algo_bwd": "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data",
    "dnn.bin_path": "dnn.library_path",
}
