"""Two causal convolutions with gates on the fakes: copies, accumulation, and errors of sets of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.causal_cases import gated_operands
from tests.strategies import own, shifted

from . import cudnn
from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .installed import cudnn_installed, forget

OPERANDS = ("x", "w_proj", "w_mixer", "skip_bias")


def case() -> dict[str, np.ndarray]:
    return gated_operands(2, 3, 9, (4, 7), np.dtype(np.float16))


def check(arrays: dict[str, np.ndarray], placed: dict[str, Any]) -> None:
    for step, names in (("", OPERANDS), ("_backward", ("dy", *OPERANDS, "mixed"))):
        got = getattr(ct, f"b2b_causal_conv1d{step}")(*[placed[one] for one in names])
        wanted = getattr(ct.reference, f"b2b_causal_conv1d{step}")(*[arrays[one] for one in names])
        for result, expected in zip(got, wanted, strict=True):
            assert result.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(result.numpy(), expected)


def test_contiguous_operands_are_read_in_place(fake: FakeCudnn) -> None:
    arrays = case()
    check(arrays, {name: own(one) for name, one in arrays.items()})
    assert {"cudnnB2BCausalConv1dForward", "cudnnB2BCausalConv1dBackward"} <= set(fake.names())
    assert "cudnnTransformTensor" not in fake.names()


def test_interleaved_projections_are_reshaped_without_a_copy(fake: FakeCudnn) -> None:
    arrays = case()
    n, channels, parts, length = arrays["x"].shape
    joined = own(arrays["x"].reshape(n, channels * parts, length))
    x = joined.reshape((n, channels, parts, length))
    assert x.pointer == joined.pointer
    check(arrays, {name: own(one) for name, one in arrays.items()} | {"x": x})
    assert "cudnnTransformTensor" not in fake.names()


def test_misaligned_and_strided_operands_are_copied(fake: FakeCudnn) -> None:
    arrays = case()
    check(arrays, {name: own(shifted(one, 1)) for name, one in arrays.items()})  # the fake rejects others
    fake.calls.clear()
    check(arrays, {name: own(np.repeat(one, 2, -1))[..., ::2] for name, one in arrays.items()})
    assert fake.names().count("cudnnTransformTensor") == 4 + 6


def test_gradients_of_parameters_replace_the_contents_of_out(fake: FakeCudnn) -> None:
    arrays = case()
    given = [own(arrays[name]) for name in ("dy", *OPERANDS, "mixed")]
    outs = [own(np.full(arrays[name].shape, np.nan, np.float32)) for name in OPERANDS[1:]]
    wanted = ct.reference.b2b_causal_conv1d_backward(*[arrays[one] for one in ("dy", *OPERANDS, "mixed")])
    found = ct.b2b_causal_conv1d_backward(*given, out=(None, *outs))
    for result, memory, expected in zip(found[1:], outs, wanted[1:], strict=True):
        assert result.pointer == memory.pointer
        np.testing.assert_array_equal(memory.numpy(), expected)


def test_batches_without_elements_have_gradients_of_zeros(fake: FakeCudnn) -> None:
    x, y = ct.zeros((0, 3, 3, 9)), ct.zeros((0, 3, 9))
    parameters = ct.full((3, 3, 4), 1), ct.full((3, 7), 1), ct.full((3,), 1)
    assert ct.b2b_causal_conv1d(x, *parameters).mixed.shape == (0, 3, 9)
    gradients = ct.b2b_causal_conv1d_backward(y, x, *parameters, y)
    assert not any(one.numpy().any() for one in gradients)
    assert not [name for name in fake.names() if "B2B" in name]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"x": (2, 9, 9)},
            r"got \(2, 9, 9\), expected \(N, channels, 3, length\); pass x.reshape\(2, 3, 3, 9\)",
        ),
        ({"w_proj": (3, 2, 4)}, r"w_proj has a wrong shape: got \(3, 2, 4\), expected \(3, 3, width\)"),
        ({"w_proj": (3, 3, 33)}, "the width of w_proj is not supported: got 33, expected 2 to 32"),
        ({"w_mixer": (3, 1)}, "the width of w_mixer is not supported: got 1, expected 2 to 256"),
        ({"skip_bias": (4,)}, r"skip_bias has a wrong shape: got \(4,\), expected \(3,\)"),
    ],
)
def test_wrong_shapes_are_rejected_with_numbers(
    fake: FakeCudnn, changed: dict[str, tuple[int, ...]], message: str
) -> None:
    shapes = {name: array.shape for name, array in case().items()} | changed
    with pytest.raises(ValueError, match=message):
        ct.b2b_causal_conv1d(*[ct.zeros(shapes[name]) for name in OPERANDS])


def test_other_dtypes_are_rejected(fake: FakeCudnn) -> None:
    zeros = [ct.zeros(case()[name].shape) for name in OPERANDS]
    with pytest.raises(TypeError, match="x is float32 and skip_bias is float16"):
        ct.b2b_causal_conv1d(*zeros[:3], zeros[3].astype("float16"))


def test_older_cudnn_names_the_version_that_is_needed(host: Host) -> None:
    class Older(FakeCudnn):
        def lookup(self, name: str) -> Any:
            return None if "B2B" in name else super().lookup(name)

    message = "rejected: b2b_causal_conv1d needs cuDNN >= 9.24.0, have 9.19.0"
    with cudnn_installed(host, Older), pytest.raises(NotSupportedError, match=message):
        ct.b2b_causal_conv1d(*[ct.zeros(case()[name].shape) for name in OPERANDS])


def test_jit_set_names_the_library_that_it_lacks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "jit")
    monkeypatch.setattr(cudnn, "VERSION", 92700)
    message = r"rejected: b2b_causal_conv1d needs libcudnn_ext, which the JIT wheel lacks \(3009\)"
    with cudnn_installed(host), pytest.raises(NotSupportedError, match=message):
        ct.b2b_causal_conv1d(*[ct.zeros(case()[name].shape) for name in OPERANDS])


def test_set_of_one_library_computes_without_a_handle(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "ext")
    with cudnn_installed(host) as alone:
        arrays = case()
        check(arrays, {name: own(one) for name, one in arrays.items()})
        assert {name for name in alone.names() if "B2B" not in name} == set()
        forget()
