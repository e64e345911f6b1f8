"""Descriptors of the real cuDNN: made, read back, refused, closed; no GPU needed."""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct._lib import load
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import LAYOUTS
from tests.conv_cases import Geometry, geometries

pytestmark = pytest.mark.usefixtures("cudnn")

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32")
lengths = st.integers(1, 9)

tensors = st.one_of(
    st.builds(
        ct.TensorSpec.packed,
        st.lists(lengths, min_size=3, max_size=5).map(tuple),
        st.sampled_from(DTYPES),
        st.sampled_from(LAYOUTS),
    ),
    st.builds(ct.TensorSpec.packed, st.lists(lengths, min_size=2, max_size=8), st.sampled_from(DTYPES)),
    st.lists(st.tuples(lengths, st.integers(1, 10_000)), min_size=2, max_size=8).map(
        lambda axes: ct.TensorSpec(tuple(n for n, _ in axes), tuple(s for _, s in axes), "float32")
    ),
)
filters = st.builds(
    ct.FilterSpec,
    st.lists(lengths, min_size=3, max_size=5).map(tuple),
    st.sampled_from(DTYPES[:4]),
    st.sampled_from(LAYOUTS),
)


@st.composite
def convolutions(draw: st.DrawFn) -> ct.ConvolutionSpec:
    axes = draw(st.integers(1, 3))
    return ct.ConvolutionSpec(
        padding=draw(st.tuples(*[st.integers(0, 9)] * axes)),
        stride=draw(st.tuples(*[lengths] * axes)),
        dilation=draw(st.tuples(*[lengths] * axes)),
        groups=draw(lengths),
        mode=draw(st.sampled_from(("cross_correlation", "convolution"))),
        compute=draw(st.sampled_from(("float16", "float32", "float64", "int32"))),
        math=draw(st.sampled_from(("default", "tensor_op", "tensor_op_allow_conversion", "fma"))),
    )


finite = st.floats(0.015625, 1024, width=32)

layers = st.one_of(
    st.builds(ct.ActivationSpec, st.sampled_from(("relu", "elu", "tanh", "swish")), finite, st.booleans()),
    st.integers(2, 3).flatmap(
        lambda axes: st.builds(
            ct.PoolingSpec,
            st.tuples(*[lengths] * axes),
            st.tuples(*[st.integers(0, 9)] * axes),
            st.tuples(*[lengths] * axes),
            st.sampled_from(
                ("max", "max_deterministic", "average_count_include_padding", "average_count_exclude_padding")
            ),
            st.booleans(),
        )
    ),
    st.builds(
        ct.CTCLossSpec,
        st.sampled_from(("none", "softmax")),
        st.sampled_from(("zero", "skip")),
        st.integers(1, 255),
        st.just("float32"),
    ),
    st.builds(ct.LRNSpec, st.integers(1, 16), finite, finite, finite),
    st.builds(
        ct.OpTensorSpec,
        st.sampled_from(("add", "mul", "min", "max", "sqrt", "not")),
        st.sampled_from(("float32", "float64")),
        st.booleans(),
    ),
    st.builds(
        ct.ReduceSpec,
        st.sampled_from(("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")),
        st.sampled_from(("float32", "float64")),
        st.booleans(),
        st.booleans(),
    ),
)


@settings(max_examples=4 * settings.default.max_examples)
@given(spec=tensors | filters | convolutions() | layers)
def test_descriptors_read_back(spec: Any) -> None:
    kind = getattr(ct, f"{type(spec).__name__.removesuffix('Spec')}Descriptor")
    assert kind(spec).read() == spec


def test_what_cannot_be_read_back_says_so() -> None:
    descriptor = ct.SpatialTransformerDescriptor(ct.SpatialTransformerSpec((2, 3, 4, 5), "float16"))
    with pytest.raises(TypeError, match="no function that reads a SpatialTransformerDescriptor back"):
        descriptor.read()


@given(case=geometries(asymmetric=False, ranks=(2, 3), batches=(1, 2)))
def test_output_shape_is_what_cudnn_says(case: Geometry) -> None:
    """``cudnnGetConvolutionNdForwardOutputDim`` on descriptors as the operation makes them."""
    x_spec, w_spec = ct.TensorSpec.packed(case.x), ct.TensorSpec.packed(case.w)
    problem = conv_problem("forward", x_spec, w_spec, **case.arguments)
    convolution = ct.ConvolutionDescriptor(
        ct.ConvolutionSpec(
            tuple(before for before, _ in problem.padding), problem.stride, problem.dilation, problem.groups
        )
    )
    x, w = ct.TensorDescriptor(problem.x), ct.FilterDescriptor(ct.FilterSpec(case.w, "float32"))
    dims = (ctypes.c_int * len(case.x))()
    ct.raw.cudnnGetConvolutionNdForwardOutputDim(convolution, x, w, len(dims), dims)
    assert tuple(dims) == case.y == problem.y.shape


@pytest.mark.parametrize(
    ("kind", "spec", "error", "message"),
    [
        (
            ct.TensorDescriptor,
            ct.TensorSpec((2, 3, 4, 5), (60, 20, 5, 0), "float32"),
            ct.BadParamError,
            "2000",
        ),
        (ct.TensorDescriptor, ct.TensorSpec((2,) * 9, (1,) * 9, "float32"), ValueError, "at most 8 axes"),
        (
            ct.TensorDescriptor,
            ct.TensorSpec((2, 3), (1,), "float32"),
            ValueError,
            "shape has 2, strides has 1",
        ),
        (ct.TensorDescriptor, ct.TensorSpec((2, 3), (3, 1), "float31"), TypeError, "no dtype float31"),
        (ct.TensorDescriptor, (2, 3), TypeError, "describes a TensorSpec, not .2, 3."),
        (ct.FilterDescriptor, ct.FilterSpec((2, 3, 4), "half", "chw"), ValueError, "layout must be one of"),
        (
            ct.ConvolutionDescriptor,
            ct.ConvolutionSpec((1,) * 6, (1,) * 5, (1,) * 6),
            ValueError,
            "stride has 5",
        ),
        (ct.ConvolutionDescriptor, ct.ConvolutionSpec((0,), (1,), (1,), 2**32 + 1), ValueError, "32-bit"),
        (ct.ConvolutionDescriptor, ct.ConvolutionSpec((0,), (1,), (1,), 1, "up"), ValueError, "mode must be"),
        (ct.TensorDescriptor, ct.TensorSpec((2, 3), (2**31, 1), "float32"), ValueError, "32-bit numbers"),
        (ct.ConvolutionDescriptor, ct.ConvolutionSpec((-1,), (1,), (1,)), ct.BadParamError, "pad"),
        (
            ct.ConvolutionDescriptor,
            ct.ConvolutionSpec((0,), (0,), (1,)),
            ct.BadParamError,
            "cudnnSetConvolution",
        ),
    ],
)
def test_refusals_name_the_function_and_leave_nothing(
    kind: Any, spec: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind(spec)


def test_use_after_close_names_the_descriptor() -> None:
    descriptor = ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5)))
    assert "float32[2, 3, 4, 5] nchw" in repr(descriptor)
    descriptor.close()
    descriptor.close()
    assert repr(descriptor).startswith("<closed TensorDescriptor")
    with pytest.raises(ValueError, match="this TensorDescriptor is closed"):
        descriptor.read()
    with pytest.raises(TypeError, match="tensorDesc: this TensorDescriptor is closed"):
        ct.raw.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(ctypes.c_size_t()))


def test_descriptors_work_in_raw_and_kinds_are_not_mixed_up() -> None:
    size = ctypes.c_size_t()
    ct.raw.cudnnGetTensorSizeInBytes(
        ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5), "float64")), ctypes.byref(size)
    )
    assert size.value == 960
    with pytest.raises(TypeError, match=r"must be POINTER\(cudnnTensorStruct\), not FilterDescriptor"):
        ct.raw.cudnnGetTensorSizeInBytes(ct.FilterDescriptor(ct.FilterSpec((2, 3, 4, 5), "float64")), None)


def test_cached_descriptors_are_shared_and_native_objects_go_with_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ct.TensorSpec.packed((7, 3, 4, 5))
    assert ct.TensorDescriptor.cached(spec) is ct.TensorDescriptor.cached(spec)
    assert ct.TensorDescriptor.cached(spec) is not ct.TensorDescriptor(spec)
    destroyed = []
    original = load().cudnnDestroyTensorDescriptor
    monkeypatch.setattr(
        load(), "cudnnDestroyTensorDescriptor", lambda p: (destroyed.append(p), original(p)), raising=False
    )
    for _ in range(10):
        ct.TensorDescriptor(spec)
    gc.collect()
    assert len(destroyed) == 10


def test_threads_make_descriptors_at_once() -> None:
    failures = []

    def work(seed: int) -> None:
        for i in range(200):
            spec = ct.TensorSpec.packed((1 + i % 7, 1 + seed, 3, 4))
            if ct.TensorDescriptor.cached(spec).read() != spec:
                failures.append(spec)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
