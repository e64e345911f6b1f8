"""Calls as users of PyTorch, JAX, TensorFlow, Theano and cudnn-frontend write them, and the hints."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _hints

# Each line has a call and a part of its error.
KEYWORDS = """
ct.conv(x, w, kernel_size=3) | the window is that of w, (K, C / groups, *window)
ct.conv(x, w, bias=b) | call ct.conv_bias_activation(x, w, bias
ct.conv(x, w, padding_mode='reflect') | padding is zeros: pad x first for other modes
ct.conv(x, weight=w) | write w=
ct.conv(input=x, weight=w) | write x=
ct.conv(x, w, strides=2) | write stride=
ct.conv_transpose(x, wt, outpadding=1) | write output_padding=
ct.pool(x, kernel_size=2) | write window=
ct.pool(x, window=2, ceil_mode=True) | rounded down
ct.pool(x, window=2, count_include_pad=False) | write mode='average_inc_pad' or mode='average_exc_pad'
ct.softmax(x, dim=1) | write axis=
ct.batch_norm_training(x, weight=b, bias=b) | write scale=
ct.batch_norm_training(x, b, b, eps=1e-3) | write epsilon=
ct.batch_norm_training(x, b, b, running_variance=b, running_mean=b) | write running_var=
ct.layer_norm(h, normalized_shape=(64,), scale=s) | the axes are the last, those of scale
ct.layer_norm(h, s, s, eps=1e-6) | write epsilon=
ct.group_norm(x, num_groups=4, weight=b, bias=b) | write groups=
ct.instance_norm(x, num_groups=4, scale=b, bias=b) | each channel is a group
ct.attention(q, k, v, is_causal=True) | write causal=
ct.attention(q, k, v, attn_mask=m) | write bias=
ct.attention(q, k, v, dropout_p=0.1) | write dropout=
ct.attention(q, k, v, softmax_scale=0.1) | write scale=
ct.attention(q, k, v, sm_scale=0.1) | write scale=
ct.attention(q, k, v, window_size=(128, 0)) | write window=
ct.attention(q, k, v, enable_gqa=True) | q may have a multiple of the heads of k and v
ct.dropout(x, p=0.5) | write ct.DropoutState(p), which is the second argument
ct.dropout(x, rate=0.5) | write ct.DropoutState(p), which is the second argument
ct.activation(x, act='relu') | write mode=
ct.activation(x, activation='relu') | write mode=
ct.activation(x, negative_slope=0.1) | write coefficient=
ct.matmul(a, a, transpose_b=True) | pass a transposed view, such as b.T
ct.RNN('lstm', 4, 4, bidirectional=True) | write direction='bidirectional'
ct.RNN('lstm', 4, 4, batch_first=True) | layout='batch_major'
ct.RNN('lstm', 4, 4, proj_size=2) | write projection_size=
ct.RNN('lstm', 4, 4, nonlinearity='tanh') | write the mode 'rnn_tanh' or 'rnn_relu'
ct.ctc_loss(x, [1], [1], [1], zero_infinity=True) | write out_of_bound='zero'
ct.ctc_loss(x, [1], [1], [1], reduction='mean') | the result has one loss per sequence
ct.reduce(x, op='max', dim=1) | write axis=
ct.reduce(x, op='max', keepdim=True) | write keepdims=
ct.zeros((2, 3), device='cuda') | use the block `with ct.use(device=0):`
ct.zeros((2, 3), requires_grad=True) | call the function with the suffix _backward for gradients
ct.full((2, 3), fill_value=1) | write value=
ct.asarray([1.0], memory_format='channels_last') | write layout=
ct.conv(x, w, window_strides=2) | write stride=
ct.conv(x, w, rhs_dilation=2) | write dilation=
ct.conv(x, w, lhs_dilation=2) | call ct.conv_transpose(x, w, stride=...)
ct.conv(x, w, feature_group_count=2) | write groups=
ct.conv(x, w, dimension_numbers=('NHWC', 'HWIO', 'NHWC')) | (N, C, *spatial)
ct.pool(x, window_shape=(2, 2)) | write window=
ct.conv(x, w, preferred_element_type='float32') | the result has the dtype of the operands, or that of out=
ct.attention(q, k, v, mask=m) | write bias=
ct.conv(x, w, data_format='NHWC') | ct.transform(x, layout='nhwc')
ct.conv(x, w, dilation_rate=2) | write dilation=
ct.conv(x, w, dilations=2) | write dilation=
ct.conv(x, filters=w) | write w=
ct.conv(x, filter=w) | write w=
ct.pool(x, pool_size=2) | write window=
ct.pool(x, ksize=2) | write window=
ct.pool(x, window=2, strides=2) | write stride=
ct.pool(x, pool_size=2, strides=2) | write window=
ct.batch_norm_training(x, gamma=b, beta=b) | write scale=
ct.batch_norm_training(x, b, b, variance_epsilon=1e-3) | write epsilon=
ct.batch_norm_inference(x, b, b, moving_mean=b, moving_variance=b) | write mean=
ct.layer_norm(h, gamma=s, beta=s) | write scale=
ct.lrn(x, depth_radius=2) | write n=2 * depth_radius + 1
ct.lrn(x, n=5, alpha=1e-4, bias=1) | write k=
ct.matmul(a, a, adjoint_b=True) | pass a transposed view, such as b.T
ct.conv(x, w, border_mode='half') | write padding=
ct.conv(x, w, subsample=(2, 2)) | write stride=
ct.conv(x, w, filter_dilation=(2, 2)) | write dilation=
ct.conv(x, w, num_groups=2) | write groups=
ct.conv(x, w, conv_mode='cross') | write mode=
ct.conv(x, w, filter_flip=True) | write mode='convolution' for flipped windows, as in Theano
ct.conv(x, w, flip_filters=True) | write mode='convolution' for flipped windows, as in Theano
ct.pool(x, ws=(2, 2)) | write window=
ct.pool(x, ds=(2, 2)) | write window=
ct.pool(x, window=2, st=(2, 2)) | write stride=
ct.pool(x, window=2, pad=(1, 1)) | write padding=
ct.pool(x, window=2, ignore_border=True) | sizes are rounded down, as with ignore_border=True
ct.conv(x, w, pre_padding=[1, 1], post_padding=[1, 1]) | write padding=
ct.conv(x, w, image=x) | write x=
ct.conv(x, w, pad=1) | write padding=
ct.conv(x, w, group=2) | write groups=
ct.conv(x, w, compute_data_type='float') | write precision=
ct.conv(x, w, workspace=1 << 20) | write workspace_limit=
ct.attention(q, k, v, attn_scale=0.1) | write scale=
ct.attention(q, k, v, use_causal_mask=True) | write causal=
ct.attention(q, k, v, is_inference=False) | write return_stats=True for training
ct.attention(q, k, v, generate_stats=True) | write return_stats=
ct.attention(q, k, v, seq_len_q=[4, 4]) | write lengths_q=
ct.attention(q, k, v, use_causal_mask_bottom_right=True) | write causal='bottom_right'
ct.attention(q, k, v, sliding_window_length=4) | write window=(length - 1, 0)
ct.attention(query=q, key=k, value=v) | write q=
ct.layer_norm(h, s, s, norm_forward_phase='training') | write training=True or training=False
ct.conv(x, w, paddding=1) | write padding=
ct.attention(q, k, v, cu_seqlens_q=[0]) | write offsets_q=
ct.conv(x, w, act='relu') | call ct.conv_bias_activation
ct.conv_bias_activation(x, w, b, act='relu') | write activation=
ct.batch_norm_training(x, b, b, running_average_factor=0.1) | write momentum=
ct.batch_norm_training(x, b, b, decay=0.9) | write momentum=1 - decay
ct.conv_transpose(x, w, bias=b) | call ct.add(y, bias)
ct.conv(x, w, device='cuda') | with ct.use(device=0)
ct.pool(x, window=2, return_indices=True) | call ct.reduce_with_indices
ct.softmax(x, dtype='float32') | x.astype(dtype)
ct.activation(x, inplace=True) | write out=x
ct.layer_norm(x, b, eps=1e-05) | write epsilon=
ct.layer_norm(x, b, normalized_shape=(8,)) | of scale
ct.rms_norm(x, b, weight=b) | write scale=
ct.batch_norm_inference(x, b, b, b, b, eps=1) | write epsilon=
ct.batch_norm_inference(x, b, b, b, b, training=True) | call ct.batch_norm_training
ct.dropout(x, None, p=0.5) | ct.DropoutState(p)
ct.grid_sample(x, x, align_corners=False) | corners are aligned
ct.grid_sample(x, x, padding_mode='zeros') | are 0
ct.affine_grid(x, (1, 1, 2, 2), size=(1, 1, 2, 2)) | write shape=
ct.lrn(x, size=5) | write n=
ct.reduce(x, keepdim=True) | write keepdims=
ct.conv(x, w, dim=2) | that of x, (N, C, *spatial)
ct.conv(x, w, eps=1e-05) | call ct.batch_norm_inference
ct.layer_norm(x, b, dim=-1) | the axes are the last, those of scale
ct.rms_norm(x, b, axis=-1) | the axes are the last, those of scale
ct.pool(x, pooling_type='avg') | write mode=
ct.zeros((1,), size=(1,)) | write shape=
ct.pool_output_shape((1, 1, 4), kernel_size=2) | write window=
ct.conv(x, bias=b) | call ct.conv_bias_activation
ct.batch_norm_training(x, b, eps=1) | write epsilon=
ct.batch_norm_inference(x, running_mean=b) | write mean=
ct.layer_norm(x, weight=b, eps=1) | write scale=
ct.softmax(dim=1) | write axis=
ct.reduce_with_indices(x, dim=1) | write axis=
ct.attention(query=x, key=x, value=x, is_causal=True) | write q=
ct.attention(x, x, is_causal=True) | write causal=
ct.ctc_loss(log_probs=x, targets=[1]) | write logits=
ct.RNN('lstm', 4, hidden=4) | write hidden_size=
ct.attention(x, x, x, query_seq_lengths=1) | write lengths_q=
ct.reduce(x, axes=1) | write axis=
ct.reduce(x, dtype='float32') | x.astype(dtype)
ct.empty((1,), order='F') | layout='nchw'
ct.pool(x, window=2, kernel_size=2) | write window=
ct.batch_norm_training(x, b, b, gamma=b) | write scale=
ct.conv_bias_activation(x, w, b, b=b) | write bias=
ct.matmul(x, x, z=x) | write residual=
ct.fill(x, 1, colour=1) | expected one of x, value, stream
ct.conv_output_shape((1,), (1,), kernel=1, pads=1) | expected one of x_shape, w_shape
ct.pool_output_shape((1,), window=1, strides=1) | write stride=
"""

MISTAKES: dict[type[Exception], str] = {
    TypeError: """
ct.dropout(x, 0.5) | state must be a ct.DropoutState
ct.activation(x, 'relu') | write mode=
ct.zeros(2, 3) | write the shape as one tuple
ct.zeros(2, 3, 4) | write the shape as one tuple
ct.asarray([1.0], 'double64') | it has float32, float64
ct.conv(host.tolist(), w) | ct.asarray(x) makes one
ct.activation(3.0) | ct.asarray(x) makes one
ct.conv(x, w64) | pass w.astype('float32')
ct.matmul(a, a64) | pass b.astype('float32')
ct.conv(None, w) | ct.asarray(x) makes one
x.astype('double64') | it has float32, float64
x + x | write ct.add(a, b)
x - x | write ct.op_tensor(a, b, alpha2=-1)
x * 2 | ct.transform(x, alpha=
x @ x | write ct.matmul(a, b)
np.asarray(x) | call .numpy()
-x | ct.transform(x, alpha=-1)
x / 2 | ct.transform(x, alpha=
ct.zeros((2, 3), 'flaot16') | write 'float16'
ct.full(2, 3, 4) | write the shape as one tuple
ct.conv_bias_activation(x, w, b6, residual=r64) | pass residual.astype('float32')
ct.add(x64, x) | pass a.astype('float32')
2 + x | write ct.add(a, b)
ct.pool(x, 2) | pool() got 2 positional arguments, expected 1; write window=
ct.pool(x, 2, 2) | got 3 positional arguments, expected 1; write window=; write stride=
ct.conv(x, w, b, 1) | got 4 positional arguments, expected 2; call ct.conv_bias_activation(x, w, bias,
ct.attention(x, x, x, x) | got 4 positional arguments, expected 3; write bias=
ct.softmax(x, 1) | softmax() got 2 positional arguments, expected 1; write axis=
ct.layer_norm(x, x, x, 1e-05) | got 4 positional arguments, expected 3; write epsilon=
ct.reduce(x, 0) | write axis=
ct.reduce(x, 'mean') | write op=
ct.batch_norm_training(x, b, b, b, b) | expected 3; write running_mean=; write running_var=
ct.softmax(x, x) | got 2 positional arguments, expected 1; write out=
ct.activation(x, 'tanh') | write mode=
ct.transform(x, 'nhwc') | write layout=
ct.op_tensor(x, x, 'mul') | write op=
ct.matmul(x, x, b) | write bias=
ct.lrn(x, 5) | write n=
ct.grid_sample(x, x, 'bilinear') | the interpolation is bilinear
ct.pool_output_shape((1, 1, 4), 2) | write window=
ct.zeros((1,), 'float32', 'cuda') | write layout=
ct.RNN('lstm', 4, 4, 2, True) | RNN() got 5 positional arguments, expected 4; write direction=
""",
    ValueError: """
ct.conv(x, w, padding='same') | use 'half' for odd windows
ct.conv(x, w, padding='SAME') | use 'half' for odd windows, which is the same at stride 1
ct.conv(x, w, padding='reflect') | padding is zeros
ct.pool(x, window=2, mode='avg') | write 'average'
ct.attention(q, k, v, causal='upper_left') | write 'top_left'
ct.activation(x, mode='gelu') | write ct.Graph(), which has more
ct.activation(x, mode='leaky_relu') | write ct.Graph(), which has more activations
ct.matmul(a, a, activation='gelu_new') | write 'gelu_tanh'
ct.reduce(x, op='sum') | write 'add'
ct.reduce(x, op='mean') | write 'average'
ct.reduce(x, op='argmax') | write ct.reduce_with_indices(x, op=..., axis=...)
ct.asarray(np.zeros((1, 2, 3, 4), np.float32), layout='channels_last') | write 'nhwc'
ct.conv(x, w, mode='cross') | write 'cross_correlation'
ct.conv(x, w, mode='conv') | write 'convolution'
ct.conv(x, w, algo='small_') | the names none, small
ct.softmax(x, mode='CUDNN_SOFTMAX_MODE_CHANNEL') | write 'channel'
ct.softmax(x, algo='accurate_') | write 'accurate'
ct.op_tensor(x, x, op='sub') | write ct.op_tensor(a, b, alpha2=-1)
ct.activation(x, mode='CUDNN_ACTIVATION_RELU') | write 'relu'
ct.pool(x, window=2, mode='CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING') | write 'average_count_include
""",
    AttributeError: """
ct.batch_norm(x, b, b, b, b) | write ct.batch_norm_training or batch_norm_inference
ct.lstm(x) | write ct.RNN('lstm', input_size, hidden_size)
ct.sum(x, axis=1) | write ct.reduce(x, op='add')
ct.ones((2, 3)) | write ct.full(shape, 1)
ct.randn(2, 3) | write ct.asarray(x), and x.numpy() for the host
ct.tensor([1.0]) | write ct.asarray(x), and x.numpy() for the host
ct.cat([x, x]) | write ct.Graph(), which has it as a method
ct.max_pool(x, 2) | write ct.pool(x, window=..., mode='max')
ct.reduce_sum(x) | write ct.reduce(x, op='add')
ct.nn.relu(x) | write ct.conv and other functions
ct.dnn_conv(x, w) | write ct.dnn.dnn_conv
x.cuda() | write x itself, which is on the device
x.cpu() | write x.numpy()
x.to('cuda') | ct.asarray(x) for the device
x.to('cpu') | write x.numpy() for the host
x.item() | write x.numpy().item()
x.tolist() | write x.numpy().tolist()
x.get() | write x.numpy()
x.block_until_ready() | write ct.synchronize()
x.half() | write x.astype('float16')
x.float() | write x.astype('float32')
x.double() | write x.astype('float64')
x.bfloat16() | write x.astype('bfloat16')
x.permute(0, 2, 3, 1) | write x.transpose(axes)
x.view(2, -1) | write x.reshape(shape)
x.contiguous() | x.packed('nchw')
x.is_contiguous() | x.layout
x.flatten() | write x.reshape(shape)
x.ravel() | write x.reshape(shape)
x.squeeze() | write x.reshape(shape)
x.unsqueeze(0) | write x.reshape(shape)
x.dim() | write x.ndim
x.numel() | write x.size
x.mean() | write ct.reduce(x, op='average')
x.sum() | write ct.reduce(x, op='add')
x.max() | write ct.reduce(x, op='max')
x.argmax() | write ct.reduce_with_indices(x, op=..., axis=...)
x.backward() | write the function with the suffix _backward
x.detach() | write x itself: arrays record no gradients
x.clone() | write x.copy()
x.data_ptr() | write x.pointer
x.is_cuda | write x.device
x.requires_grad | write the function with the suffix _backward
x.grad | write the function with the suffix _backward
x.relu() | write ct.activation(x, mode='relu')
x.zero_() | write x.fill(0)
x.fill_(0) | write x.fill(value)
x.softmax(1) | write ct.softmax(x, axis=...)
x.H | write x.T
x.swapaxes(0, 1) | write x.transpose(axes)
x.expand(2, 2) | write ct.add(ct.zeros(shape), x)
x.element_size() | write x.itemsize
x.nelement() | write x.size
""",
}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Return the names that the lines use."""
    with ct.record_plans(shapes_only=True):
        head = ct.zeros((2, 4, 8, 64), "float16")
        return {
            "ct": ct,
            "np": np,
            "x": ct.zeros((2, 4, 8, 8)),
            "x64": ct.zeros((2, 4, 8, 8), "float64"),
            "w": ct.zeros((6, 4, 3, 3)),
            "w64": ct.zeros((6, 4, 3, 3), "float64"),
            "wt": ct.zeros((4, 6, 3, 3)),
            "r64": ct.zeros((2, 6, 6, 6), "float64"),
            "b": ct.zeros((4,)),
            "b6": ct.zeros((6,)),
            "h": ct.zeros((2, 8, 64)),
            "s": ct.zeros((64,)),
            **dict.fromkeys("qkv", head),
            "m": ct.zeros((1, 1, 8, 8), "float16"),
            "a": ct.zeros((8, 8)),
            "a64": ct.zeros((8, 8), "float64"),
            "host": np.zeros((2, 4, 8, 8), np.float32),
        }


def error_of(kind: type[Exception], line: str, names: dict[str, Any]) -> str:
    """Return the error of a call, after checking that it has the hint, and no list of all parameters."""
    call, hint = line.split(" | ")
    with pytest.raises(kind) as caught:
        eval(call, names)
    text = str(caught.value)
    assert hint in text
    assert "\n" not in text
    assert ("expected one of x" in text) == ("expected one of x" in hint)
    return text


@pytest.mark.parametrize("line", KEYWORDS.strip().splitlines())
def test_unknown_keyword_names_the_right_spelling_before_a_device_is_needed(
    line: str, names: dict[str, Any]
) -> None:
    assert "() got an unexpected keyword argument '" in error_of(TypeError, line, names)


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind in MISTAKES for line in MISTAKES[kind].strip().splitlines()]
)
def test_mistake_is_answered_with_the_right_spelling(
    kind: type[Exception], line: str, names: dict[str, Any]
) -> None:
    with ct.record_plans(shapes_only=True):
        assert "unexpected keyword" not in error_of(kind, line, names)


def test_foreign_attributes_are_hidden_and_hide_no_attribute() -> None:
    with ct.record_plans(shapes_only=True):
        x = ct.zeros((2,))
    assert not set(dir(x)) & set(_hints.ATTRIBUTES)
    assert not any(hasattr(x, name) for name in _hints.ATTRIBUTES)
    assert {"numpy", "shape", "astype", "__add__"} <= set(dir(x))
    inherited = {name for base in ct.DeviceArray.__mro__[1:] for name in vars(base)}
    assert not inherited & set(_hints.ATTRIBUTES)


def test_functions_and_attributes_in_hints_of_arrays_exist() -> None:
    texts = [*_hints.ATTRIBUTES.values(), *(hint for _, hint in _hints.OPERATORS.values())]
    for text in texts:
        for module, name in re.findall(r"\b(ct|x)\.(\w+)", text):
            assert hasattr(ct if module == "ct" else ct.DeviceArray, name) or name == "pointer", text


class Other:
    """An operand whose own class defines the operator."""

    def __radd__(self, other: object) -> str:
        return "sum"


def test_operator_with_another_class_is_left_to_it(names: dict[str, Any]) -> None:
    assert names["x"] + Other() == "sum"
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+"):
        eval("x + 'text'", names)
