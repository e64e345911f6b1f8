"""The names of CuPy's cuDNN, on NumPy and the reference: what each parameter means."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import cupy as names
from cudnn_ct import reference
from cudnn_ct.cupy import libs

MANNER = {"auto_tune": True, "tensor_core": "auto"}
GRADIENT = {**MANNER, "deterministic": False}


class Operations:
    """The reference in place of the operations, which write to ``out``; ``used`` has the other keywords."""

    config = SimpleNamespace(workspace_limit=None)

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(reference, name)
        known = inspect.signature(function).parameters

        def call(*operands: Any, out: Any, **keywords: Any) -> None:
            assert set(keywords) <= set(inspect.signature(getattr(ct, name)).parameters)
            self.used = {key: value for key, value in keywords.items() if key not in known}
            found = function(*operands, **{key: value for key, value in keywords.items() if key in known})
            results = found if isinstance(found, tuple) else (found,)
            for one, result in zip(out if isinstance(out, tuple) else (out,), results, strict=False):
                one[...] = result

        return call


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Operations:
    made = Operations()
    monkeypatch.setattr(names, "ct", made)
    monkeypatch.setitem(sys.modules, "cupy", np)  # type: ignore[arg-type]
    return made


def draw(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_convolution_forward_writes_the_result_with_a_bias(ops: Operations) -> None:
    x, w, b, y = draw((2, 4, 6, 5), (6, 2, 3, 2), (6,), (2, 6, 3, 6))
    names.convolution_forward(x, w, b, y, (1, 1), (2, 1), (1, 1), 2, **MANNER)
    expected = reference.conv(x, w, padding=1, stride=(2, 1), groups=2) + b.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert ops.used["algo"] == "autotune"


def test_convolution_in_the_other_layout_has_the_channels_last(ops: Operations) -> None:
    x, w = draw((2, 6, 5, 4), (6, 3, 2, 4))
    y = np.empty((2, 4, 4, 6), np.float32)
    names.convolution_forward(x, w, None, y, (0, 0), (1, 1), None, 1, **MANNER, d_layout=1, w_layout=1)
    expected = reference.conv(x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(y, expected.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


def test_gradients_of_a_convolution_are_written(ops: Operations) -> None:
    x, w, gy = draw((2, 4, 6, 5), (6, 4, 3, 2), (2, 6, 4, 4))
    gx, gw = np.empty_like(x), np.empty_like(w)
    names.convolution_backward_data(w, gy, None, gx, (0, 0), (1, 1), (1, 1), 1, **GRADIENT)
    np.testing.assert_allclose(gx, reference.conv_backward_data(gy, w, x.shape), rtol=1e-5, atol=1e-5)
    exact = {**GRADIENT, "deterministic": True, "tensor_core": "never"}
    names.convolution_backward_filter(x, gy, gw, (0, 0), (1, 1), (1, 1), 1, **exact)
    np.testing.assert_allclose(gw, reference.conv_backward_filter(gy, x, w.shape), rtol=1e-5, atol=1e-5)
    assert ops.used == {"deterministic": True, "precision": "float32"}


def test_layers_return_new_arrays(ops: Operations) -> None:
    x, gy = draw((2, 3, 4, 4), (2, 3, 4, 4))
    y = names.activation_forward(x, libs.CUDNN_ACTIVATION_ELU, 0.5)
    np.testing.assert_array_equal(y, reference.activation(x, mode="elu", coefficient=0.5))
    gx = names.activation_backward(x, y, gy, libs.CUDNN_ACTIVATION_ELU, 0.5)
    expected = reference.activation_backward(gy, x, y, mode="elu", coefficient=0.5)
    np.testing.assert_array_equal(gx, expected)
    y = names.softmax_forward(x, 1, libs.CUDNN_SOFTMAX_LOG)
    np.testing.assert_array_equal(y, reference.softmax(x, axis=1, algo="log"))
    gx = names.softmax_backward(y, gy, 1, libs.CUDNN_SOFTMAX_LOG)
    np.testing.assert_array_equal(gx, reference.softmax_backward(gy, y, axis=1, algo="log"))
    y, sizes = np.empty((2, 3, 2, 2), np.float32), ((2, 2), (2, 2), (0, 0))
    mode = libs.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
    assert names.pooling_forward(x, y, *sizes, mode) is y
    np.testing.assert_array_equal(y, reference.pool(x, window=2, mode="average_exc_pad"))
    gx = names.pooling_backward(x, y, y, *sizes, mode)
    np.testing.assert_array_equal(gx, reference.pool_backward(y, x, y, window=2, mode="average_exc_pad"))


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_batch_normalisation_updates_the_running_statistics(kind: str, ops: Operations) -> None:
    shape, for_images = ((4, 3, 5, 5), True) if kind == "images" else ((7, 3), False)
    x, gy, gamma, beta = draw(shape, shape, (3,), (3,))
    mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
    spatial = libs.CUDNN_BATCHNORM_SPATIAL
    y, saved, inv_std = names.batch_normalization_forward_training(
        x, gamma, beta, mean, var, None, None, 2e-5, 0.9, for_images, spatial, False
    )
    axes = (0, 2, 3) if for_images else (0,)
    np.testing.assert_allclose(saved, x.mean(axes), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inv_std, (x.var(axes) + 2e-5) ** -0.5, rtol=1e-4)
    expected = reference.batch_norm_training(x, gamma, beta, epsilon=2e-5)
    np.testing.assert_allclose(y, expected.y, rtol=1e-4, atol=1e-5)
    found = names.batch_normalization_backward(x, gamma, gy, saved, inv_std, 2e-5, for_images, spatial, False)
    gradients = reference.batch_norm_backward(gy, x, gamma, epsilon=2e-5)
    for one, other in zip(found, gradients, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    y = names.batch_normalization_forward_inference(x, gamma, beta, mean, var + 1, 2e-5, for_images, spatial)
    np.testing.assert_allclose(
        y, reference.batch_norm_inference(x, gamma, beta, mean, var + 1, epsilon=2e-5), rtol=1e-4, atol=1e-5
    )
    reserve, y = names.batch_normalization_forward_training_ex(
        x, gamma, beta, mean, var, saved, inv_std, 2e-5, 0.9, for_images, spatial, False
    )
    assert reserve is None


def test_names_are_registered_where_cupy_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, cupyx = ModuleType("cupy"), ModuleType("cupyx")
    cupy.cuda, cupy.__version__ = ModuleType("cupy.cuda"), "14.0.0"  # type: ignore[attr-defined]
    for name, module in (("cupy", cupy), ("cupyx", cupyx), ("cupy.cuda", cupy.cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    registered = ("cupy.cudnn", "cupyx.cudnn", "cupy.cuda.cudnn", "cupy_backends.cuda.libs.cudnn")
    for name in registered:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(RuntimeError, match=r"CuPy 14\.0\.0 has loaded its own cupy\.cudnn"):
        names.install()
    for name in registered:
        monkeypatch.delitem(sys.modules, name)
    names.install()
    names.install()  # a second time changes nothing
    from cupy import cudnn
    from cupy.cuda import cudnn as constants

    assert cudnn is names
    assert cupy.cuda.cudnn_enabled
    assert constants.CUDNN_CROSS_CORRELATION == cudnn.CUDNN_CROSS_CORRELATION == 1
    for name in registered:
        sys.modules.pop(name)


def test_constants_are_those_of_the_headers() -> None:
    assert (libs.CUDNN_TENSOR_NCHW, libs.CUDNN_TENSOR_NHWC) == (names.NCHW, names.NHWC)
    lists = {"ACTIVATION": names.ACTIVATIONS, "POOLING": names.POOLINGS}
    for begin, words in (lists | {"SOFTMAX": names.SOFTMAXES, "BATCHNORM": names.NORMS}).items():
        assert [getattr(libs, f"CUDNN_{begin}_{word.upper()}") for word in words] == list(range(len(words)))
    assert names.get_data_type(np.dtype("float16")) == libs.CUDNN_DATA_HALF
    assert libs.CUDNN_NOT_PROPAGATE_NAN == 0
    with pytest.raises(AttributeError, match=r"cudnn_ct\.cupy has no 'rnn_forward_training': the page"):
        _ = names.rnn_forward_training


def test_limit_of_workspaces_is_the_setting(ops: Operations) -> None:
    assert names.get_max_workspace_size() == names.UNLIMITED
    names.set_max_workspace_size(2**20)
    assert ops.config.workspace_limit == names.get_max_workspace_size() == 2**20


def test_wrong_arguments_are_rejected(ops: Operations) -> None:
    x, w, y = draw((1, 2, 4, 4), (2, 2, 3, 3), (1, 2, 2, 2))
    geometry = ((0, 0), (1, 1), (1, 1), 1)
    with pytest.raises(ValueError, match="tensor_core must be 'auto', 'always' or 'never': got 'maybe'"):
        names.convolution_forward(x, w, None, y, *geometry, auto_tune=False, tensor_core="maybe")
    with pytest.raises(ValueError, match=r"the layout must be CUDNN_TENSOR_NCHW \(0\) or .*: got 2"):
        names.convolution_forward(x, w, None, y, *geometry, **MANNER, d_layout=2)
