"""Shape rules, layouts, problems and the text of specs: values, without a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct._bindings.enums import ConvolutionMode
from cudnn_ct.plans.axes import Axis, coalesce, tile
from cudnn_ct.shapes.arithmetic import resolve_precision
from cudnn_ct.shapes.conv import conv_output_shape, conv_problem, pad_pairs
from cudnn_ct.shapes.specs import LAYOUTS, TensorSpec, equivalent_strides, packed_strides
from tests.conv_cases import Geometry, geometries

shapes = st.lists(st.integers(1, 5), min_size=3, max_size=5).map(tuple)


@given(shape=shapes)
def test_packed_strides_match_numpy(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.uint8)
    assert packed_strides(shape) == array.strides
    channels_last = np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.uint8), -1, 1)
    assert packed_strides(shape, "nhwc") == channels_last.strides


def test_axes_are_merged_when_they_are_adjacent_in_each_tensor() -> None:
    packed, spread = TensorSpec((2, 3), (3, 1), "float32"), TensorSpec((2, 3), (6, 2), "float32")
    assert coalesce([packed, spread]) == [Axis((6, 6), (1, 2))]
    assert Axis((2, 1), (2**31, 1)).reach == 2**32


def test_images_in_two_layouts_keep_their_axes() -> None:
    specs = [TensorSpec.packed((2, 3, 4, 5), "float32", layout) for layout in LAYOUTS]
    made: list[TensorSpec] = []
    tile(lambda *given: made.extend(given), *specs)  # type: ignore[arg-type]
    assert made == specs


@given(shape=shapes, layout=st.sampled_from(LAYOUTS), odd=st.integers(1, 1000))
def test_layouts_of_ignores_strides_of_axes_of_length_1(
    shape: tuple[int, ...], layout: str, odd: int
) -> None:
    strides = packed_strides(shape, layout)
    disturbed = tuple(odd if n == 1 else s for n, s in zip(shape, strides, strict=True))
    found = TensorSpec(shape, disturbed, "float32").layouts
    assert layout in found
    assert len(found) == 2 or found == (layout,)


def test_layouts_of_a_view_with_gaps_are_none() -> None:
    assert TensorSpec((2, 3, 4, 5), (120, 20, 5, 1), "float32").layouts == ()
    assert TensorSpec((2, 3), (3, 1), "float32").layouts == ("nchw",)


@given(data=st.data(), shape=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
def test_equivalent_strides_compares_the_places_of_elements(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    """Compared with the place of each element."""
    steps = st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape)).map(tuple)
    one, two = data.draw(steps), data.draw(steps)
    index = np.indices(shape)
    places = (np.tensordot(strides, index, 1) for strides in (one, two))
    assert equivalent_strides(shape, one, two) == np.array_equal(*places)


@given(case=geometries())
def test_output_shape_counts_the_places_of_the_window(case: Geometry) -> None:
    """Counted one by one, without the formula."""
    window, given = case.w[2:], (case.arguments[name] for name in ("stride", "dilation"))
    stride, dilation = ((one,) * len(window) if isinstance(one, int) else one for one in given)
    pairs = pad_pairs(case.arguments["padding"], window, dilation)
    for got, n, k, (before, after), s, d in zip(
        case.y[2:], case.x[2:], window, pairs, stride, dilation, strict=True
    ):
        starts = range(0, before + n + after, s)
        assert got == sum(start + (k - 1) * d < before + n + after for start in starts)


def test_pad_pairs_computes_named_paddings() -> None:
    assert pad_pairs("valid", (3, 4), (2, 1)) == ((0, 0), (0, 0))
    assert pad_pairs("half", (3, 4), (2, 1)) == ((2, 2), (2, 2))
    assert pad_pairs("full", (3, 4), (2, 1)) == ((4, 4), (3, 3))
    assert pad_pairs(np.int64(2), (3, 4), (1, 1)) == ((2, 2), (2, 2))
    assert pad_pairs([1, 2], (3, 4), (1, 1)) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"padding": np.array([1.0, 1.0])},
            TypeError,
            r"padding must be an int or a tuple of 2 ints, pairs \(before, after\) of each axis, or one of "
            r"valid, half, full: got array\(\[1., 1.\]\)",
        ),
        ({"dilation": 1.5}, TypeError, "dilation must be an int or a tuple of 2 ints: got 1.5"),
        ({"padding": ((1, 2),)}, ValueError, "expected 2 pairs"),
        ({"padding": ((1, 2), (3, -4))}, ValueError, "padding must be between 0"),
        ({"stride": (1, 2, 3)}, ValueError, "3 numbers; the window has 2 axes"),
        ({"stride": "2"}, TypeError, "stride must be an int"),
        ({"groups": 1.0}, TypeError, "groups must be an int"),
        ({"groups": -1}, ValueError, "groups must be at least 1: got -1"),
        ({"mode": 3}, ValueError, "mode must be one of"),
        ({"padding": 2**31}, ValueError, "padding must be between 0 and 2147483647"),
        ({"padding": 2**30, "stride": 1}, ValueError, "output shape"),
    ],
)
def test_output_shape_rejects_parameters(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        conv_output_shape((1, 2, 5, 6), (2, 2, 3, 3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((1, 2), (1, 2), "1 to 3 spatial axes"),
        ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), "1 to 3 spatial axes"),
        ((1, 2, 3), (1, 2, 3, 1), r"w has 4 dimensions \(1, 2, 3, 1\)"),
        ((1, 6, 5), (2, 4, 3), "x has 6 channels; w expects 4 x groups 1 = 4"),
        ((1, 2, 5), (2, 2, 0), "needs at least one element"),
        ((1, 2, 5), (2, 2, 6), r"5 \+ padding 0 = 5, the window spans \(6 - 1\) x dilation 1 \+ 1 = 6"),
        ((1, -2, 5), (2, 2, 6), "each length must be between 0"),
    ],
)
def test_output_shape_rejects_shapes(x: tuple[int, ...], w: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv_output_shape(x, w)
    with pytest.raises(ValueError, match="3 filters, which 2 groups do not divide"):
        conv_output_shape((1, 4, 5), (3, 2, 2), groups=2)


def test_equal_problems_are_equal_keys() -> None:
    x, w = TensorSpec.packed((2, 3, 5, 6), "float16"), TensorSpec.packed((4, 3, 3, 3), "half")
    one = conv_problem("forward", x, w, padding=(1, 1), mode=ConvolutionMode.CONVOLUTION)
    two = conv_problem("forward", x, w, padding=1, mode="convolution", precision="as_input_f32")
    assert one == two
    assert hash(one) == hash(two)
    assert "padding ((1, 1), (1, 1))" in str(one)
    assert "mode convolution" in str(one)


def test_resolve_precision_returns_sums_and_tensor_cores() -> None:
    assert resolve_precision(None, "float16", True) == ("float32", True)
    assert resolve_precision(None, "float32", True) == ("float32", True)
    assert resolve_precision(None, "float32", False) == ("float32", False)
    assert resolve_precision(None, "float64", True) == ("float64", False)
    assert resolve_precision("float32", "bfloat16", True) == ("float32", False)
    assert resolve_precision("as_input", "float16", True) == ("float16", True)
    assert resolve_precision("float64", "float32", True) == ("float64", False)
    with pytest.raises(ValueError, match="precision='tf32' is for float32 data, not float64"):
        resolve_precision("tf32", "float64", True)
    for name in (None, "as_input_f32"):
        assert resolve_precision(name, "int8", True) == ("int32", False)
    for name in ("as_input", "float32", "float64"):
        with pytest.raises(ValueError, match=r"is for float16 or bfloat16 or float32.* data, not int8"):
            resolve_precision(name, "int8", True)


def test_int8_problem_has_the_dtype_of_out() -> None:
    x, w = (TensorSpec.packed(shape, "int8", "nhwc") for shape in ((2, 4, 5, 5), (8, 4, 3, 3)))
    for out in (None, "int32", "float32"):
        given_out = None if out is None else TensorSpec.packed((2, 8, 3, 3), out, "nhwc")
        made = conv_problem("forward", x, w, out=given_out)
        assert (made.y.dtype, made.y.layouts, made.compute) == (out or "int32", ("nhwc",), "int32")
    wrong = TensorSpec.packed((2, 8, 3, 3), "int8", "nhwc")
    with pytest.raises(TypeError, match="out is int8; sums of int8 are written as int32 or float32"):
        conv_problem("forward", x, w, out=wrong)
    with pytest.raises(ValueError, match="alpha is not supported for int32 results"):
        conv_problem("forward", x, w, scaled="alpha")
    with pytest.raises(TypeError, match=r"a gradient of a convolution takes float16, .*, not int8"):
        conv_problem("backward_data", wrong, w, shape=x.shape)


# --- the text of specs, which errors contain ---------------------------------------------------------------


@pytest.mark.parametrize("fields", [(None, None, None), ((1,), None, "float32"), ((1, 2), (1,), "float32")])
def test_wrong_spec_has_its_fields_as_text(fields: tuple[Any, ...]) -> None:
    wrong = TensorSpec(*fields)
    assert str(wrong) == repr(wrong)
    with pytest.raises(TypeError, match="cuDNN has no dtype TensorSpec"):
        ct.Graph(compute_dtype=wrong)  # type: ignore[arg-type]


def test_spec_names_its_layout_or_its_strides() -> None:
    assert str(TensorSpec.packed((2, 3), "float16")) == "float16[2, 3] nchw"
    assert str(TensorSpec((2, 3), (9, 2), "float16")) == "float16[2, 3] strides (9, 2)"
