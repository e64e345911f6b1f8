"""Names and words of other libraries, and how the same is written with this package."""

from __future__ import annotations


def _inverted(**table: str) -> dict[str, tuple[str, ...]]:
    """Return the names here for each name of another library; ``table`` has those of others by ours."""
    inverted: dict[str, tuple[str, ...]] = {}
    for ours, names in table.items():
        for name in names.split():
            inverted[name] = (*inverted.get(name, ()), ours)
    return inverted


# Keywords of torch, jax, cupy, NumPy, TensorFlow, Theano, cudnn-frontend and cuDNN: names of the same
# argument here. The first that the function has is meant.
KEYWORDS = _inverted(
    coefficient="alpha negative_slope",
    lrn_alpha="alpha",
    bias="attn_bias attn_mask b beta mask",
    axis="axes dim dims reduction_indices",
    lrn_beta="beta",
    blank="blank_id blank_index",
    activation="act act_fn activation_fn nonlinearity",
    mode="act act_fn activation activation_fn conv_mode nonlinearity pooling_type",
    algo="algo_fwd algorithm",
    dilation="dilation_rate dilations filter_dilation rhs_dilation",
    dropout="dropout_p dropout_prob dropout_rate p rate",
    out_dtype="dtype preferred_element_type",
    epsilon="eps variance_epsilon",
    groups="feature_group_count group n_groups num_groups",
    x="image images img input inputs lhs operand",
    a="A input lhs",
    logits="input inputs log_probs",
    causal="causal_mask is_causal use_causal_mask",
    keepdims="keep_dims keepdim",
    window="ds kernel kernel_size ksize local_window_size pool_size sliding_window window_dimensions "
    "window_shape window_size ws",
    k="key keys",
    lengths_kv="key_value_seq_lengths kv_seq_lens seq_len_k seq_len_kv seqlens_k",
    lengths_q="query_seq_lengths seq_len_q seq_lens seqlens_q",
    offsets_q="cu_seqlens_q cum_seq_len_q ragged_offset_q",
    offsets_kv="cu_seqlens_k cu_seqlens_kv cum_seq_len_kv ragged_offset_k",
    page_table="block_table block_tables",
    w="W filter filters kern kerns kernel rhs weight weights",
    b="B other rhs",
    scale="attn_scale gamma scaling sm_scale softmax_scale weight weights",
    out="dst output",
    x_shape="input_shape output_size",
    w_shape="filter_shape kernel_shape",
    output_padding="output_size",
    padding="border_mode pad pads post_padding pre_padding",
    projection_size="proj_size",
    q="queries query",
    residual="z",
    hidden_size="num_units units",
    num_layers="layers n_layers",
    running_mean="moving_mean",
    running_var="moving_var moving_variance running_variance",
    momentum="average_factor exponential_average_factor running_average_factor",
    var="moving_var moving_variance running_var running_variance variance",
    mean="moving_mean running_mean",
    n="nsize size",
    shape="size",
    precision="compute_data_type compute_dtype math_type",
    return_stats="generate_stats return_lse return_softmax_lse",
    stride="st strides subsample window_strides",
    training="is_training",
    layout="data_format memory_format",
    labels="target targets y_true",
    label_lengths="label_length target_lengths",
    input_lengths="logit_length",
    v="value values",
    value="fill_value",
    obj="a data object",
    workspace_limit="max_workspace_size memory_limit workspace workspace_size",
)

# Former names of parameters, by function: they have an effect, and warn.
FORMER = {
    "batch_norm_training": {"z": "residual"},
    "conv_bias_activation": {"b": "bias", "z": "residual"},
    "conv_scale_bias_activation": {"z": "residual"},
}

# Keywords that other libraries take by position after the operands; by default the function's own, in order.
ORDER = {
    "conv": "bias stride padding dilation groups",
    "conv_transpose": "bias stride padding output_padding groups dilation",
    **dict.fromkeys(("softmax", "reduce", "reduce_with_indices"), "axis"),
    "attention": "bias dropout causal scale",
    "grid_sample": "mode padding_mode align_corners",
    "affine_grid": "align_corners",
}
_NUMBERED_AXES = "the operands are (N, C, *spatial): ct.transform(x, layout='nhwc') has other strides"
_WINDOW_OF_W = {
    "kernel_size": "the window is that of w, (K, C / groups, *window)",
    "dim": "the number of spatial axes is that of x, (N, C, *spatial)",
    "eps": "call ct.batch_norm_inference for a normalisation",
    "kernel": "write w=",
    "ksize": "the window is that of w, (K, C / groups, *window)",
}
_FLIPPED = dict.fromkeys(
    ("filter_flip", "flip_filters", "flip"), "write mode='convolution' for flipped windows, as in Theano"
)
_AXES_OF_SCALE = dict.fromkeys(
    ("axis", "dim", "normalized_axes", "normalized_shape"), "the axes are the last, those of scale"
)
_TRAINING = "call ct.batch_norm_training or ct.batch_norm_inference"
_TRANSPOSED = [f"{word}{name}" for word in ("adjoint_", "trans_", "transpose_") for name in "ab"]

# Keywords without a counterpart in the function: what to do instead, by function or for all ("").
ADVICE: dict[str, dict[str, str]] = {
    "": {
        "benchmark": "write algo='autotune'",
        "ceil_mode": "sizes are rounded down: pass padding=((before, after), ...) for a larger result",
        **dict.fromkeys(("data_format", "layout", "memory_format"), _NUMBERED_AXES),
        "decay": "write momentum=1 - decay",
        "device": "use the block `with ct.use(device=0):`",
        "dimension_numbers": "the operands are (N, C, *spatial) and (K, C / groups, *window)",
        "inplace": "write out=x",
        "order": "write layout='nchw' or layout='nhwc'",
        "preferred_element_type": "the result has the dtype of the operands, or that of out=",
        "requires_grad": "call the function with the suffix _backward for gradients",
        "return_indices": "call ct.reduce_with_indices",
        **dict.fromkeys(("is_training", "norm_forward_phase", "training", "use_running_average"), _TRAINING),
        **_FLIPPED,
    },
    "conv": {
        **_WINDOW_OF_W,
        **dict.fromkeys(
            ("act", "activation", "nonlinearity"),
            "call ct.conv_bias_activation(x, w, bias, activation='relu')",
        ),
        "bias": "call ct.conv_bias_activation(x, w, bias, activation='identity')",
        "lhs_dilation": "call ct.conv_transpose(x, w, stride=...)",
        "padding_mode": "padding is zeros: pad x first for other modes",
    },
    "conv_bias_activation": _WINDOW_OF_W,
    "conv_transpose": {**_WINDOW_OF_W, "bias": "call ct.add(y, bias) with a bias of shape (1, K, 1, ...)"},
    "pool": {
        "padding_mode": "padding is ignored by 'max' and 'average_exc_pad'",
        "count_include_pad": "write mode='average_inc_pad' or mode='average_exc_pad'",
        "ignore_border": "sizes are rounded down, as with ignore_border=True",
    },
    "activation": {"approximate": "GELU is a method of ct.Graph() and an argument of ct.matmul"},
    "instance_norm": {
        "num_groups": "each channel is a group: reshape x to (N, groups, -1) for more channels"
    },
    "lrn": {"bias": "write k=", "depth_radius": "write n=2 * depth_radius + 1"},
    "reduce": {"dtype": "cast with x.astype(dtype) first", "where": "multiply by a mask first"},
    "softmax": {"dtype": "cast with x.astype(dtype) first", "temperature": "divide x by it first"},
    "attention": {
        "dropout_rng": "write seed=",
        "enable_gqa": "q may have a multiple of the heads of k and v",
        "is_inference": "write return_stats=True for training",
        "sliding_window_length": "write window=(length - 1, 0)",
        "use_causal_mask_bottom_right": "write causal='bottom_right'",
    },
    **{
        name: {**_AXES_OF_SCALE, "norm_forward_phase": "write training=True or training=False"}
        for name in ("layer_norm", "rms_norm", "ada_layer_norm")
    },
    "grid_sample": {
        "align_corners": "corners are aligned, as by align_corners=True",
        "padding_mode": "points outside of x are 0",
        "mode": "the interpolation is bilinear",
    },
    "affine_grid": {"align_corners": "corners are aligned, as by align_corners=True"},
    "matmul": {
        **dict.fromkeys((*_TRANSPOSED, "transA", "transB"), "pass a transposed view, such as b.T"),
        "c": "write residual=",
    },
    "RNN": {
        "batch_first": "pass layout='batch_major' to forward",
        "bidirectional": "write direction='bidirectional'",
        "nonlinearity": "write the mode 'rnn_tanh' or 'rnn_relu'",
    },
    "dropout": dict.fromkeys(
        ("keep_prob", "p", "prob", "rate"), "write ct.DropoutState(p), which is the second argument"
    ),
    "ctc_loss": {
        "logits_time_major": "logits are (T, N, A)",
        "reduction": "the result has one loss per sequence",
        "zero_infinity": "write out_of_bound='zero'",
    },
}

# Public names of torch.nn.functional, jax.lax, jax.nn, cupy and NumPy.
ATTRIBUTES = {
    name: ours
    for ours, names in {
        "conv(x, w)": "conv1d conv2d conv3d convolution convolve conv_general_dilated Conv1d Conv2d Conv3d",
        "conv_transpose(x, w)": "conv_transpose1d conv_transpose2d conv_transpose3d",
        "activation(x, mode='relu')": "relu",
        "activation(x, mode='sigmoid')": "sigmoid",
        "activation(x, mode='tanh')": "tanh",
        "activation(x, mode='elu')": "elu",
        "activation(x, mode='swish')": "silu swish",
        "activation(x, mode='clipped_relu')": "relu6 clipped_relu hardtanh",
        "pool(x, window=..., mode='max')": "max_pool1d max_pool2d max_pool3d max_pool maxpool MaxPool2d",
        "pool(x, window=..., mode='average')": "avg_pool1d avg_pool2d avg_pool3d avg_pool avgpool AvgPool2d",
        "softmax(x, algo='log')": "log_softmax",
        "batch_norm_training or batch_norm_inference": "batch_norm batch_normalization batchnorm BatchNorm2d",
        "attention(q, k, v)": "scaled_dot_product_attention dot_product_attention sdpa",
        "matmul(x, w.T, bias=b)": "linear Linear",
        "lrn(x)": "local_response_norm",
        "matmul(a, b)": "dot mm bmm gemm einsum dot_general",
        "reduce(x, op='add')": "sum reduce_sum",
        "reduce(x, op='average')": "mean reduce_mean",
        "reduce(x, op='mul')": "prod",
        "reduce(x, op='max')": "max amax reduce_max",
        "reduce(x, op='min')": "min amin",
        "reduce_with_indices(x, op=..., axis=...)": "argmax argmin",
        "asarray(x), and x.numpy() for the host": "tensor as_tensor from_dlpack from_numpy asnumpy "
        "arange normal rand randn",
        "full(shape, 1)": "ones full_like ones_like",
        "zeros(x.shape, x.dtype)": "zeros_like",
        "empty(x.shape, x.dtype)": "empty_like",
        "op_tensor(a, b, op='mul')": "multiply mul",
        "op_tensor(a, b, alpha2=-1)": "subtract sub",
        "op_tensor(a, b, op='max')": "maximum",
        "op_tensor(a, b, op='min')": "minimum",
        "Graph(), which has more activations": "gelu softplus leaky_relu gelu_tanh",
        "Graph(), which has it as a method": "cat concat concatenate cos div divide erf exp log "
        "pow rope rsqrt select sin where",
        "instance_norm of x.reshape(N, groups, -1): cuDNN has no group normalisation": "group_norm GroupNorm",
        "RNN('lstm', input_size, hidden_size)": "LSTM lstm",
        "RNN('gru', input_size, hidden_size)": "GRU gru",
        "layer_norm(x, scale, bias)": "LayerNorm",
        "transform(x, dtype=...)": "cast",
        "DropoutState(p), and ct.dropout(x, state)": "Dropout",
        "rms_norm(x, scale)": "RMSNorm",
        "conv and other functions; modules for PyTorch are in cudnn_ct.torch.nn": "nn",
        "grid_sample(x, grid)": "interpolate resize",
        "config": "backends",
        "version()": "cudnn_version",
        "available()": "is_available",
        "DeviceArray": "Tensor ndarray",
        "conv_backward_data and others for gradients: calls record none": "no_grad grad value_and_grad",
        "capture": "compile jit",
    }.items()
    for name in names.split()
}

# Words of other libraries for values: the words here, of which the allowed one is meant.
WORDS = _inverted(
    average="avg mean",
    cross_correlation="cross",
    convolution="conv",
    top_left="upper_left",
    bottom_right="lower_right",
    gelu_tanh="gelu_approx gelu_approximate gelu_new",
    add="sum",
    mul="prod product",
    norm1="l1",
    norm2="l2",
    nhwc="channels_last channels_last_3d ndhwc nwc",
    nchw="channels_first contiguous_format ncdhw ncw",
    identity="linear none",
    float32="fp32 highest",
    log="log_softmax",
    rnn_tanh="tanh",
    rnn_relu="relu",
)

# Words of other libraries for ``padding``, and what to do instead.
PADDINGS = {
    **dict.fromkeys(
        ("same", "same_lower", "same_upper"), "use 'half' for odd windows, which is the same at stride 1"
    ),
    **dict.fromkeys(
        ("circular", "constant", "edge", "reflect", "replicate", "symmetric", "wrap", "zeros"),
        "padding is zeros: pass numbers, and pad x first for other modes",
    ),
    "causal": "write padding=((before, 0),), or call ct.causal_conv1d",
}

DTYPES = _inverted(
    **{"float16": "fp16 half", "float32": "fp32 tf32 float", "float64": "fp64 double", "bfloat16": "bf16"},
    **{"float8_e4m3": "e4m3 fp8_e4m3 float8_e4m3fn", "float8_e5m2": "e5m2 fp8_e5m2"},
    **{"int8": "s8", "int32": "int", "int64": "long"},
)
