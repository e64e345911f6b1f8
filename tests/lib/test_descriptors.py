"""Descriptors of the real cuDNN: created, read back, rejected, closed; no GPU needed."""

from __future__ import annotations

import ctypes
import gc
from ctypes import c_int64
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct._bindings.enums import BatchNormMode
from cudnn_ct._cublaslt import CublasLt, cublaslt_of
from cudnn_ct._lib import load
from cudnn_ct.dtypes import DTYPES as ALL_DTYPES
from cudnn_ct.errors import BadParamError, CudnnError, NotInitializedError, NotSupportedError
from cudnn_ct.graph.plan import BackendDescriptor, VariantPack, VariantPacks
from cudnn_ct.ops.matmul.cublaslt import _Product, why_not
from cudnn_ct.ops.norm import plans
from cudnn_ct.plans.elementwise import duplicate_plan
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.matmul import matmul_problem, scaled_matmul_problem
from cudnn_ct.shapes.norm import NormInference, norm_inference, norm_parameter_dtype
from cudnn_ct.shapes.specs import LAYOUTS, TensorSpec
from cudnn_ct.shapes.tensor import REDUCE_OPS
from cudnn_ct.typing import OpTensorOp
from tests.conv_cases import Geometry, geometries
from tests.mixed import in_threads

from .test_graph import in_child

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


pads, finite, flags = st.integers(0, 9), st.floats(0.015625, 1024, width=32), st.booleans()
computes = st.sampled_from(("float32", "float64"))


def per_axis(axes: int, *numbers: st.SearchStrategy[int]) -> list[st.SearchStrategy[tuple[int, ...]]]:
    """Return for each kind of number a strategy of one number per axis."""
    return [st.tuples(*[one] * axes) for one in numbers]


convolutions = st.integers(1, 3).flatmap(
    lambda axes: st.builds(
        ct.ConvolutionSpec,
        *per_axis(axes, pads, lengths, lengths),
        groups=lengths,
        mode=st.sampled_from(("cross_correlation", "convolution")),
        compute=st.sampled_from(("float16", "float32", "float64", "int32")),
        math=st.sampled_from(("default", "tensor_op", "tensor_op_allow_conversion", "fma")),
    )
)
pooling = st.integers(2, 3).flatmap(
    lambda axes: st.builds(
        ct.PoolingSpec,
        *per_axis(axes, lengths, pads, lengths),
        st.sampled_from(
            ("max", "max_deterministic", "average_count_include_padding", "average_count_exclude_padding")
        ),
        flags,
    )
)
layers = pooling | st.one_of(
    st.builds(ct.ActivationSpec, st.sampled_from(("relu", "elu", "tanh", "swish")), finite, flags),
    st.builds(
        ct.CTCLossSpec,
        st.sampled_from(("none", "softmax")),
        st.sampled_from(("zero", "skip")),
        st.integers(1, 255),
        st.just("float32"),
    ),
    st.builds(ct.LRNSpec, st.integers(1, 16), finite, finite, finite),
    st.builds(ct.OpTensorSpec, st.sampled_from(get_args(OpTensorOp)), computes, flags),
    st.builds(ct.ReduceSpec, st.sampled_from(REDUCE_OPS), computes, flags, flags),
)


def class_of(spec: Any) -> Any:
    return getattr(ct, f"{type(spec).__name__.removesuffix('Spec')}Descriptor")


@settings(max_examples=4 * settings.default.max_examples)
@given(spec=tensors | filters | convolutions | layers)
def test_read_returns_the_spec(spec: Any) -> None:
    assert class_of(spec)(spec).read() == spec


def test_read_raises_when_cudnn_has_no_getter() -> None:
    descriptor = ct.SpatialTransformerDescriptor(ct.SpatialTransformerSpec((2, 3, 4, 5), "float16"))
    with pytest.raises(TypeError, match="no function that reads a SpatialTransformerDescriptor back"):
        descriptor.read()


@given(case=geometries(asymmetric=False, ranks=(2, 3), batches=(1, 2)))
def test_output_shape_is_that_of_cudnn(case: Geometry) -> None:
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
    ("spec", "error", "message"),
    [
        (ct.TensorSpec((2, 3, 4, 5), (60, 20, 5, 0), "float32"), ct.BadParamError, "2000"),
        (ct.TensorSpec((2,) * 9, (1,) * 9, "float32"), ValueError, "at most 8 axes"),
        (ct.TensorSpec((2, 3), (1,), "float32"), ValueError, "shape has 2, strides has 1"),
        (ct.TensorSpec((2, 3), (3, 1), "float31"), TypeError, "no dtype float31"),
        (ct.TensorSpec((2, 3), (2**31, 1), "float32"), ValueError, "32-bit numbers"),
        (ct.FilterSpec((2, 3, 4), "half", "chw"), ValueError, "layout must be one of"),
        (ct.ConvolutionSpec((1,) * 6, (1,) * 5, (1,) * 6), ValueError, "stride has 5"),
        (ct.ConvolutionSpec((0,), (1,), (1,), 2**32 + 1), ValueError, "32-bit"),
        (ct.ConvolutionSpec((0,), (1,), (1,), 1, "up"), ValueError, "mode must be"),
        (ct.ConvolutionSpec((-1,), (1,), (1,)), ct.BadParamError, "pad"),
        (ct.ConvolutionSpec((0,), (0,), (1,)), ct.BadParamError, "cudnnSetConvolution"),
    ],
)
def test_descriptor_rejects_a_wrong_spec(spec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        class_of(spec)(spec)


def test_descriptor_rejects_a_value_that_is_not_its_spec() -> None:
    with pytest.raises(TypeError, match=r"describes a TensorSpec, not \(2, 3\)"):
        ct.TensorDescriptor((2, 3))  # type: ignore[arg-type]


def test_descriptor_is_named_when_it_is_used_after_close() -> None:
    descriptor = ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5)))
    assert "float32[2, 3, 4, 5] nchw" in repr(descriptor)
    descriptor.close()
    descriptor.close()
    assert repr(descriptor).startswith("<closed TensorDescriptor")
    with pytest.raises(ValueError, match="this TensorDescriptor is closed"):
        descriptor.read()
    with pytest.raises(TypeError, match="tensorDesc: this TensorDescriptor is closed"):
        ct.raw.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(ctypes.c_size_t()))


def test_raw_accepts_descriptors_of_the_right_kind() -> None:
    size = ctypes.c_size_t()
    ct.raw.cudnnGetTensorSizeInBytes(
        ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5), "float64")), ctypes.byref(size)
    )
    assert size.value == 960
    with pytest.raises(TypeError, match=r"must be POINTER\(cudnnTensorStruct\), not FilterDescriptor"):
        ct.raw.cudnnGetTensorSizeInBytes(ct.FilterDescriptor(ct.FilterSpec((2, 3, 4, 5), "float64")), None)


def test_cached_descriptor_is_shared_and_others_are_destroyed_with_their_object(
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


def test_threads_create_descriptors_at_once() -> None:
    def work(seed: int) -> None:
        for i in range(200):
            spec = ct.TensorSpec.packed((1 + i % 7, 1 + seed, 3, 4))
            assert ct.TensorDescriptor.cached(spec).read() == spec

    in_threads(8, work)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_duplicate_of_every_dtype_is_planned(dtype: str) -> None:
    """Also of dtypes that descriptors do not support: copies of misaligned operands are planned for all."""
    for shape in ((1,), (2, 3, 4, 5)):
        duplicate_plan(ct.TensorSpec.packed(shape, dtype))


# --- the parameters of batch normalisation, as the library derives them ------------------------------------


FORMS = (plans.nd_layout, plans.pixels_layout)
SHAPE = (4, 3, 2, 5, 1, 2)


def problem(rank: int, mode: str, dtype: str, layout: str) -> NormInference:
    x = ct.TensorSpec.packed(SHAPE[:rank], dtype, layout)
    kept = tuple(
        n if axis == 1 or (mode == "per_activation" and axis) else 1 for axis, n in enumerate(x.shape)
    )
    parameter = ct.TensorSpec.packed(kept, norm_parameter_dtype(dtype), layout)
    specs = {"x": x, **dict.fromkeys(("scale", "bias", "mean", "var"), parameter)}
    return norm_inference(specs, (None,), mode, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("rank", range(1, 7))
def test_parameters_are_described_as_cudnn_does(rank: int, mode: str, dtype: str) -> None:
    tried = set()
    for layout in ("nchw", "nhwc") if 3 <= rank <= 5 else ("nchw",):
        for form in FORMS:
            for native in BatchNormMode:
                try:
                    specs = form(problem(rank, mode, dtype, layout), native)
                except ct.NotSupportedError:  # these operands do not lie so
                    continue
                if specs is None:
                    continue
                tried.add(form)
                assert 4 <= len(specs["x"].shape) <= 5
                with (
                    ct.TensorDescriptor(specs["x"]) as x,
                    ct.TensorDescriptor(ct.TensorSpec.packed((1,) * 4)) as derived,
                ):
                    ct.raw.cudnnDeriveBNTensorDescriptor(derived, x, native)
                    assert derived.read() == specs["scale"]
    assert plans.nd_layout in tried


# --- variant packs that are made without the checks of descriptors -----------------------------------------


@in_child
def test_a_failing_call_is_repeated_with_its_error() -> None:
    packs = VariantPacks(_lib.load(), [1, 2, 3])
    assert isinstance(packs.make((16, 32, 48), 64), VariantPack)
    _, write, finalize = packs._calls
    packs._calls = (lambda *_: 1, write, finalize)
    assert isinstance(packs.make((16, 32, 48), 64), BackendDescriptor)
    with pytest.raises(CudnnError, match="cudnnBackend"):
        VariantPacks(_lib.load(), []).make((), 64)


# --- libcublasLt -------------------------------------------------------------------------------------------


packed = TensorSpec.packed


@pytest.fixture
def lt(cudnn: int) -> CublasLt:
    library = cublaslt_of(_lib.load())
    if library is None:
        pytest.skip("this cuDNN uses no libcublasLt")
    return library


def test_library_has_the_version_and_the_names_of_errors(lt: CublasLt) -> None:
    assert lt.version.split(".")[0] in ("12", "13")
    assert "returned CUBLAS_STATUS_NOT_SUPPORTED (15)" in str(lt.error(15, "cublasLtMatmul"))
    assert isinstance(lt.error(15, "cublasLtMatmul"), NotSupportedError)


def half(dtype: str = "float16", **more: TensorSpec) -> Any:
    specs = {"a": packed((3, 4, 8), dtype), "b": packed((3, 8, 5), dtype), **more}
    return matmul_problem(specs, (None,), "gelu_tanh" if more else None, 0.5, None, None)


def eights() -> Any:
    b = TensorSpec((1, 32, 16), (512, 1, 32), "float8_e4m3")
    scales = {name: packed((1,), "float32") for name in ("descale_a", "descale_b", "scale")}
    specs = {"a": packed((1, 16, 32), "float8_e5m2"), "b": b, **scales}
    made = scaled_matmul_problem(specs, (None, None), "relu", "float8_e4m3")
    return made._replace(bias=packed((1, 1, 16), "bfloat16"), amax=packed((1,), "float32"))


PROBLEMS = {
    "half precision": half(),
    "epilogue and residual": half(residual=packed((3, 4, 5), "float16")),
    "float32": half("float32"),
    "float64": half("float64"),
    "float8": eights(),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_library_accepts_all_attributes_of_a_product(lt: CublasLt, name: str) -> None:
    problem = PROBLEMS[name]
    assert why_not(problem) == ""
    made = _Product(lt, problem)
    made.set_pointers(dict.fromkeys(made.pointers, 256))
    try:
        handle = lt.create("")
    except NotInitializedError as error:  # without a GPU
        assert str(error).startswith("cublasLtCreate returned CUBLAS_STATUS_NOT_INITIALIZED (1)")
    else:
        made.algorithms(handle, 4, 1 << 20)


def test_library_rejects_an_attribute_of_another_size(lt: CublasLt) -> None:
    with pytest.raises(BadParamError, match="CUBLAS_STATUS_INVALID_VALUE"):
        lt.set("MatmulDesc", lt.create("MatmulDesc", 68, 0), 7, c_int64(4))
