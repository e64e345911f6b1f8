"""Mistakes of users of torch, JAX, CuPy and NumPy, and the spelling that each error names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _hints
from cudnn_ct._bindings.enums import ReduceTensorOp
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import filter_hint
from cudnn_ct.shapes.tensor import as_reduce_op

OPERATIONS = ("cudnn_ct.ops.", "cudnn_ct.shapes.", "cudnn_ct.array_creation")
FUNCTIONS = {
    name: value
    for name in ct.__all__
    if inspect.isfunction(value := getattr(ct, name)) and value.__module__.startswith(OPERATIONS)
}


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


X, W, Y, V = zeros(2, 8, 16, 16), zeros(4, 8, 3, 3), zeros(2, 4, 14, 14), zeros(8)
H = np.zeros((8, 16, 64), np.float16)

B, Z = zeros(4), zeros(2, 4, 14, 14) + 1
FORMER: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "b": (lambda ct: ct.conv_bias_activation(X, W, b=B), lambda ct: ct.conv_bias_activation(X, W, B), "bias"),
    "z": (
        lambda ct: ct.conv_bias_activation(X, W, None, z=Z),
        lambda ct: ct.conv_bias_activation(X, W, bias=None, residual=Z),
        "residual",
    ),
    "scaled-z": (
        lambda ct: ct.conv_scale_bias_activation(X, W, B, B, z=Z),
        lambda ct: ct.conv_scale_bias_activation(X, W, B, B, residual=Z),
        "residual",
    ),
    "norm-z": (
        lambda ct: ct.batch_norm_training(X, V, V, z=X + 1)[0],
        lambda ct: ct.batch_norm_training(X, V, V, residual=X + 1)[0],
        "residual",
    ),
}

SHAPES: dict[str, tuple[Callable[[], object], str]] = {
    "padding-SAME_LOWER": (lambda: ct.conv(X, W, padding="SAME_LOWER"), "use 'half'"),
    "nhwc-x": (lambda: ct.conv(zeros(2, 16, 16, 8), W), "pass x.transpose(0, 3, 1, 2)"),
    "nhwc-both": (
        lambda: ct.conv(zeros(2, 16, 16, 8), zeros(4, 3, 3, 8)),
        "x.transpose(0, 3, 1, 2) and w.transpose(0, 3, 1, 2)",
    ),
    "hwio-w": (lambda: ct.conv(X, zeros(3, 3, 8, 4)), "pass w.transpose(3, 2, 0, 1)"),
    "hwio-w-and-nhwc-x": (
        lambda: ct.conv(zeros(2, 8, 8, 8), zeros(3, 3, 8, 4)),
        "pass w.transpose(3, 2, 0, 1), and x.transpose(0, 3, 1, 2) if the channels of x are on its last axis",
    ),
    "no-batch": (lambda: ct.conv(zeros(8, 16, 16), W), "pass x.reshape(1, 8, 16, 16)"),
    "swapped": (lambda: ct.conv(W, X), "x and w seem to be swapped"),
    "swapped-channels": (lambda: ct.conv(zeros(4, 8, 3, 3), zeros(2, 8, 16, 16)), "seem to be swapped"),
    "depthwise": (lambda: ct.conv(X, zeros(8, 1, 3, 3)), "write groups=8"),
    "depthwise-of-three": (lambda: ct.conv(zeros(1, 3, 32, 32), zeros(6, 1, 3, 3)), "write groups=3"),
    "large-window": (lambda: ct.conv(zeros(8, 3, 5, 5), zeros(64, 3, 7, 7)), "; or x and w are swapped"),
    "transposed-filters": (lambda: ct.conv_transpose(X, W), "pass w.transpose(1, 0, 2, 3)"),
    "linear-weights": (lambda: ct.matmul(zeros(2, 8), zeros(3, 8)), "as b.T"),
    # of the other operations
    "pool-no-batch": (lambda: ct.pool(zeros(8, 16, 16), window=(2, 2)), "pass x.reshape(1, 8, 16, 16)"),
    "lrn-no-batch": (lambda: ct.lrn(zeros(8, 16)), "pass x.reshape(1, 8, 16)"),
    "conv1d-no-batch": (lambda: ct.conv(zeros(8, 16), zeros(4, 8, 3)), "pass x.reshape(1, 8, 16)"),
    "causal-no-batch": (lambda: ct.causal_conv1d(zeros(8, 16), zeros(8, 4)), "pass x.reshape(1, 8, 16)"),
    "transpose-no-batch": (
        lambda: ct.conv_transpose(zeros(8, 16, 16), zeros(8, 4, 3, 3)),
        "pass x.reshape(1, 8, 16, 16)",
    ),
    "norm-no-batch": (lambda: ct.batch_norm_training(zeros(8, 5, 6), V, V), "pass x.reshape(1, 8, 5, 6)"),
    "grid-no-batch": (lambda: ct.grid_sample(zeros(8, 5, 6), zeros(4, 4, 2)), "pass x.reshape(1, 8, 5, 6)"),
    "sdpa-no-batch": (lambda: ct.attention(*(H,) * 3), "pass q.reshape(1, 8, 16, 64)"),
    "norm-nhwc": (
        lambda: ct.batch_norm_training(zeros(2, 5, 6, 8), V, V),
        "needs (1, 5, 1, 1) or (5,); the channels seem to be on another axis: pass x.transpose(0, 3, 1, 2)",
    ),
    "instance-nhwc": (lambda: ct.instance_norm(zeros(2, 5, 6, 8), V, V), "pass x.transpose(0, 3, 1, 2)"),
    "transpose-nhwc": (
        lambda: ct.conv_transpose(zeros(2, 5, 6, 8), zeros(8, 4, 3, 3)),
        "pass x.transpose(0, 3, 1, 2)",
    ),
    "causal-nlc": (lambda: ct.causal_conv1d(zeros(2, 16, 8), zeros(8, 4)), "pass x.transpose(0, 2, 1)"),
    "gradient-nhwc": (
        lambda: ct.conv_backward_data(zeros(2, 14, 14, 4), W, X.shape),
        "gives (2, 4, 14, 14); the channels seem to be on another axis: pass dy.transpose(0, 3, 1, 2)",
    ),
    "data-swapped": (lambda: ct.conv_backward_data(W, Y, X.shape), "dy and w seem to be swapped"),
    "filter-swapped": (lambda: ct.conv_backward_filter(X, Y, W.shape), "dy and x seem to be swapped"),
    "transpose-swapped": (lambda: ct.conv_transpose(zeros(8, 4, 3, 3), X), "x and w seem to be swapped"),
    "causal-swapped": (lambda: ct.causal_conv1d(zeros(8, 4), zeros(2, 8, 9)), "x and w seem to be swapped"),
    "matmul-swapped": (lambda: ct.matmul(zeros(3, 8), zeros(2, 3)), "a and b seem to be swapped"),
    "norm-swapped": (lambda: ct.batch_norm_training(V, X, V), "x and scale seem to be swapped"),
    "layer-swapped": (lambda: ct.layer_norm(V, X), "x and scale seem to be swapped"),
    "grid-swapped": (lambda: ct.grid_sample(zeros(2, 5, 5, 2), zeros(2, 3, 7, 7)), "x and grid seem"),
    "sdpa-bshd": (
        lambda: ct.attention(*(np.zeros((2, length, 8, 64), np.float16) for length in (128, 100, 100))),
        "the operands seem to be (B, S, H, D): pass q.transpose(0, 2, 1, 3), and k and v alike",
    ),
    "add-bias": (lambda: ct.add(X, V), "pass b.reshape(1, 8, 1, 1) for a bias"),
    "channels_last": (lambda: ct.zeros((1, 1, 1, 1), layout="channels_last"), "write 'nhwc'"),  # type: ignore[arg-type]
    "elman": (lambda: ct.RNN("tanh", 4, 4), "write 'rnn_tanh'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FORMER)
def test_former_name_has_an_effect_and_warns(name: str) -> None:
    former, present, new = FORMER[name]
    old = name.rpartition("-")[2]
    with pytest.warns(DeprecationWarning, match=rf"\({old}=\) is deprecated; write {new}=$") as caught:
        got = former(ct.reference)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(got, present(ct.reference))
    with ct.record_plans(shapes_only=True):
        with pytest.warns(DeprecationWarning, match=rf"write {new}=$") as caught:
            assert former(ct).shape == got.shape
        assert caught[0].filename == __file__
        assert present(ct).shape == got.shape


def test_former_name_of_the_average_has_an_effect_and_warns() -> None:
    for module in (ct, ct.reference):
        with ct.record_plans(shapes_only=True), pytest.warns(DeprecationWarning, match="avg") as caught:
            module.reduce(X, op="avg")
        assert [str(one.message) for one in caught] == ["op='avg' is deprecated; write op='average'"]
        assert caught[0].filename == __file__
    g = ct.Graph()
    with pytest.warns(DeprecationWarning, match=r"write op='average'$"):
        g.reduce(g.input((2, 3)), "avg")
    assert as_reduce_op("average") == as_reduce_op(ReduceTensorOp.AVG) == "avg"


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shape_or_word_names_the_right_one(name: str) -> None:
    call, hint = SHAPES[name]
    with ct.record_plans(shapes_only=True), pytest.raises(ValueError, match=re.escape(hint)) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_hints_and_hides_its_parameter(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters.values()
    assert all(one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
    required = [one for one in parameters if one.default is one.empty]
    operands = [None for one in required if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in required if one.kind is one.KEYWORD_ONLY}
    hint = "write out=" if "out" in inspect.signature(function).parameters else ""
    pattern = rf"^{name}\(\) got an unexpected keyword argument 'outt'; {hint}"
    with pytest.raises(TypeError, match=pattern):
        function(*operands, **named, outt=None)
    with pytest.raises(TypeError, match=pattern):
        function(outt=None)
    keywords = any(one.kind is one.KEYWORD_ONLY for one in parameters)
    if keywords:
        taken = len([one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD])
        with pytest.raises(
            TypeError, match=rf"^{name}\(\) got {taken + 1} positional arguments, expected {taken}; "
        ):
            function(*[None] * (taken + 1))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_missing_arguments_are_named_before_others_are_read(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters.values()
    required = {one.name: object() for one in parameters if one.default is one.empty}
    for missing in required:
        given = {key: value for key, value in required.items() if key != missing}
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing required argument: '{missing}'$"):
            function(**given)
    if len(required) > 1:
        names = ", ".join(map(repr, required))
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing required arguments: {names}$"):
            function()


def test_missing_argument_of_a_class_is_named() -> None:
    with pytest.raises(TypeError, match=r"^RNN\(\) missing required argument: 'hidden_size'$"):
        ct.RNN("lstm", 4)


ATTRIBUTES = {
    "relu": "ct.activation(x, mode='relu')",
    "conv2d": "ct.conv(x, w)",
    "conv_general_dilated": "ct.conv(x, w)",
    "max_pool2d": "ct.pool(x, window=..., mode='max')",
    "avg_pool": "ct.pool(x, window=..., mode='average')",
    "scaled_dot_product_attention": "ct.attention(q, k, v)",
    "log_softmax": "ct.softmax(x, algo='log')",
    "linear": "ct.matmul(x, w.T, bias=b)",
    "mean": "ct.reduce(x, op='average')",
    "argmax": "ct.reduce_with_indices(",
    "from_numpy": "ct.asarray(x)",
    "LSTM": "ct.RNN('lstm'",
    "GRU": "ct.RNN('gru'",
    "LayerNorm": "ct.layer_norm(x, scale, bias)",
    "nn": "ct.conv and other functions; modules for PyTorch are in cudnn_ct.torch.nn",
    "gelu": "ct.Graph()",
    "layernorm": "ct.layer_norm",
    "sofmax": "ct.softmax",
    "sofmax_backward": "ct.softmax_backward",
    "layernorm_backward": "ct.layer_norm_backward",
    "conv_backward": "ct.conv_backward_data",
    "conv2d_backward": "ct.conv_backward_data",
    "batch_norm_training_backward": "ct.batch_norm_backward",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_name_of_another_library_names_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"'{name}'; write {ATTRIBUTES[name]}")):
        getattr(ct, name)
    assert not hasattr(ct, "__path_of_nothing__")


@pytest.mark.parametrize("name", ["add", "op_tensor", "scale", "fill", "transform", "relu"])
def test_gradient_that_does_not_exist_names_no_other_gradient(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}_backward'$"):
        getattr(ct, f"{name}_backward")


@pytest.mark.parametrize("name", ["torch", "jax", "cupy"])
def test_door_that_was_not_imported_is_named(name: str) -> None:
    assert _hints.attribute_hint(name, ct.__all__) == f"; write import cudnn_ct.{name}"


def test_hinted_names_exist() -> None:
    texts = [
        *_hints.FUNCTIONS.values(),
        *(text for rows in _hints.ADVICE.values() for text in rows.values()),
    ]
    for text in texts:
        for name in re.findall(r"\bct\.(\w+)", text):
            assert hasattr(ct, name), text
    for text in _hints.FUNCTIONS.values():
        first = re.match(r"\w+", text)
        assert first is not None
        assert first[0] == "the" or hasattr(ct, first[0]), text
    modules = {path.stem for path in Path(ct.__file__).parent.iterdir()}
    assert not {*_hints.FUNCTIONS} & {*ct.__all__, *modules}
    ours = {name for function in FUNCTIONS.values() for name in inspect.signature(function).parameters}
    ours |= set(inspect.signature(ct.RNN).parameters)
    assert {name for names in _hints.KEYWORDS.values() for name in names} <= ours


class Dtype:
    """A dtype of torch, which has no name but its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("dtype", "ours"),
    [
        (Dtype("torch.float16"), "float16"),
        (Dtype("torch.bfloat16"), "bfloat16"),
        (Dtype("torch.float8_e4m3fn"), "float8_e4m3"),
        ("fp16", "float16"),
        ("bf16", "bfloat16"),
        (Dtype("torch.long"), "int64"),
    ],
    ids=str,
)
def test_dtype_of_another_library_names_ours(dtype: Any, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"; write '{ours}'$"):
        as_dtype(dtype)
    with pytest.raises(TypeError, match=r"bool$"):
        as_dtype(Dtype("torch.complex64"))


class CpuTensor:
    """A tensor of torch in host memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> None:
        raise AssertionError("is not exported")


@pytest.mark.parametrize(
    "operand", [CpuTensor(), zeros(1, 1, 1, 1), [1.0], 3], ids=lambda x: type(x).__name__
)
def test_operand_in_host_memory_names_asarray_before_a_device_is_needed(operand: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be an array on the device, .*; ct.asarray\(x\) makes one"):
        ct.conv(operand, operand)


NO_MISTAKE: tuple[Callable[[], object], ...] = (
    lambda: ct.pool(X, window=(2,)),
    lambda: ct.matmul(zeros(3, 8), zeros(5, 6)),
    lambda: ct.batch_norm_training(X, zeros(7), zeros(7)),
    lambda: ct.layer_norm(X, zeros(7)),
    lambda: ct.add(X, zeros(7)),
    lambda: ct.conv(zeros(1, 3, 32, 32), zeros(8, 5, 3, 3)),  # its window is as long as x has channels
    lambda: ct.conv_backward_data(zeros(2, 4, 13, 13), W, X.shape),
    lambda: ct.conv_backward_filter(zeros(2, 4, 13, 13), X, W.shape),
    lambda: ct.conv_transpose(X, zeros(7, 6, 3, 3)),
    lambda: ct.causal_conv1d(X, V),
    lambda: ct.attention(*(np.zeros((2, heads, 128, 64), np.float16) for heads in (8, 3, 3))),
    lambda: ct.grid_sample(zeros(2, 3, 7, 7), zeros(2, 5, 5, 3)),
    lambda: ct.attention(*(np.zeros((2, 1, 1, 1, 8), np.float16),) * 3),
)


@pytest.mark.parametrize("call", NO_MISTAKE)
def test_shapes_that_no_mistake_explains_have_no_hint(call: Callable[[], object]) -> None:
    with (
        ct.record_plans(shapes_only=True),
        pytest.raises(ValueError, match=r"shape|channels|axes|heads") as caught,
    ):
        call()
    assert "; " not in str(caught.value).partition("of shape (2, 8, 16, 16)")[2]
    assert not re.search("seem|pass ", str(caught.value))


def test_filter_that_no_mistake_explains_has_no_hint() -> None:
    assert filter_hint((1, 6, 9, 7), (4, 8, 3, 3), 1) == ""
    assert filter_hint((1, 6, 8), (4, 8, 3, 3), 1) == ""
    assert filter_hint((1, 0, 8), (0, 1, 3), 1) == ""
