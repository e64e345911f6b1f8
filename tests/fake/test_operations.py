"""Properties of all operations of the table, on the fakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import cudnn_ct as ct
from cudnn_ct.cli import selftest_cases
from cudnn_ct.cli.selftest_rows import required
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.ops.reduce import reduce
from cudnn_ct.ops.spatial import legacy as spatial
from tests.layers import LayerCase, check_layer, compare, several
from tests.matmul_cases import PRODUCTS
from tests.op_cases import CASES, ON_IMAGES, OPERATIONS, OpCase, row_of, simple_arguments, simple_call
from tests.row_norm_cases import ROW_NORMS
from tests.strategies import own, placing, poison

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host, view
from .norm import PER_ACTIVATION, PERSISTENT

pytestmark = pytest.mark.usefixtures("fake")

ROWS = pytest.mark.parametrize("row", CASES, ids=lambda row: row.operations[0])
ON_IMAGE = pytest.mark.parametrize("operation", ON_IMAGES)
OFFSETS = st.just((0,)) | st.tuples(*[st.integers(0, 7)] * 5)
HOME, OTHER = 0x100, 0x200  # streams


def test_table_has_all_operations_with_a_reference() -> None:
    """In-place operations, CTC, attention and its padding have cases of their own."""
    others = {name for name in ct.reference.__all__ if name.endswith("shape")}
    assert set(OPERATIONS) == set(ct.reference.__all__) - others - {
        *("fill", "scale", "ctc_loss", "attention", "attention_backward", "scaled_attention"),
        "clear_padding",
    }


@ROWS
@given(data=st.data(), offsets=OFFSETS)
def test_operation_equals_reference(
    fake: FakeCudnn, host: Host, row: OpCase, data: st.DataObject, offsets: tuple[int, ...]
) -> None:
    """At any 16-byte offset, in arrays of the package and of other libraries, whose gaps are not written."""
    fake.engine_number = 52  # facts reject some activations of engine 0
    case, placed = data.draw(row.calls), list[Any]()
    fake.engines = fake.engines or has_half_parameters(case)
    for place in (own, lambda array: ForeignArray(host, array)):
        kept = placing(lambda array, place=place: placed.append(place(array)) or placed[-1], *offsets)
        check_layer(case, kept)
    for array in placed:
        np.testing.assert_array_equal(between_elements(host, array), poison(array.dtype))


def has_half_parameters(case: LayerCase) -> bool:
    """Whether a case is a normalisation by parameters of half precision, which engines compute first."""
    half = case.operation == "batch_norm_inference" and case.operands[1].dtype in ("float16", "bfloat16")
    return half and len(case.operands[0].shape) < 6


def between_elements(host: Host, array: Any) -> np.ndarray:
    spec = ct.asarray(array).spec
    whole = view(host, array.pointer, (spec.extent[1],), (1,), array.dtype)
    unused = np.ones(whole.size, bool)
    as_strided(unused, spec.shape, spec.strides)[...] = False
    return whole[unused].astype(float)


@given(
    case=row_of("batch_norm_training").calls,
    offsets=OFFSETS,
    rejected=st.sampled_from(((), (PERSISTENT,), (PER_ACTIVATION,), (PER_ACTIVATION, PERSISTENT))),
    sizes=st.sampled_from(((0, 0), (100, 0), (100, 60), (0, 60))),
)
def test_batch_norm_equals_reference_when_modes_are_rejected(
    fake: FakeCudnn, host: Host, case: LayerCase, offsets: Any, rejected: Any, sizes: tuple[int, int]
) -> None:
    fake.norm_refused, fake.norm_sizes = frozenset(rejected), sizes
    fake.engines = fake.engines or has_half_parameters(case)
    forget()  # the implementations that an earlier example left
    for place in (own, lambda array: ForeignArray(host, array)):
        check_layer(case, placing(place, *offsets))


LARGE: dict[str, dict[str, dict[str, Any]]] = {
    "pool": {"pooling": {"LARGE": 0}},
    "reduce": {
        "reduce.reduce": {
            **{"MANY": 0, "FEW": 1, "WARP": 4, "SHORT": 6, "PART": (2, 3)},
            "LONGEST": dict.fromkeys(reduce.LONGEST, 2),
        }
    },
}


@pytest.mark.parametrize("operation", LARGE)
@given(data=st.data())
def test_operation_equals_reference_when_arrays_count_as_large(
    host: Host, monkeypatch: pytest.MonkeyPatch, operation: str, data: st.DataObject
) -> None:
    """The implementations for large arrays, with limits that small arrays exceed."""
    for module, limits in LARGE[operation].items():
        for name, value in limits.items():
            monkeypatch.setattr(import_module(f"cudnn_ct.ops.{module}"), name, value)
    check_layer(data.draw(row_of(operation).calls), lambda array: ForeignArray(host, array))


def test_selftest_draws_operands_of_operations_without_rows() -> None:
    drawn = {case.operation: case for case in selftest_cases._without_rows({"op_tensor", *PRODUCTS})}
    assert {"lrn_backward", "batch_norm_inference", "softmax_backward"} <= set(drawn)
    for operation, case in drawn.items():
        inputs = case.inputs()
        getattr(ct.reference, operation)(*inputs.operands, **inputs.keywords)


# --- limits -------------------------------------------------------------------------------------------------


def test_grid_sample_backward_of_no_channels_has_a_zero_gradient() -> None:
    dx, dgrid = ct.grid_sample_backward(
        ct.empty((2, 0, 2, 2)), ct.empty((2, 0, 3, 3)), ct.zeros((2, 2, 2, 2))
    )
    assert dx.shape == (2, 0, 3, 3)
    np.testing.assert_array_equal(dgrid.numpy(), np.zeros((2, 2, 2, 2)))


@pytest.mark.parametrize("mode", ["max", "max_deterministic", "sum", "average_inc_pad"])
def test_pool_backward_of_one_window_equals_reference(mode: str) -> None:
    x = image().numpy()
    arguments = (y := ct.reference.pool(x, window="global", mode=mode)), x, y
    expected = ct.reference.pool_backward(*arguments, window="global", mode=mode)
    compare(ct.pool_backward(*map(ct.asarray, arguments), window="global", mode=mode), expected)


def test_gradient_of_elu_is_0_at_0_when_its_coefficient_is_0() -> None:
    x, dy = ct.asarray([0.0, -0.0], "float32"), ct.full((2,), 3)
    dx = ct.activation_backward(dy, x, ct.activation(x, mode="elu"), mode="elu").numpy()
    np.testing.assert_array_equal(dx, ct.reference.activation_backward(dy.numpy(), x.numpy(), x.numpy()))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_grid_sample_is_split_when_a_call_takes_fewer_images_or_channels(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    """Each part has its own images; the gradient of the grid is the sum over all channels."""
    monkeypatch.setattr(spatial, "MAX_IMAGES", 3)
    monkeypatch.setattr(spatial, "MAX_CHANNELS", 2)
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(-4, 5, (7, 5, 3, 4)).astype(np.float32) for _ in range(2))
    grid, theta = rng.uniform(-1.2, 1.2, (7, 3, 4, 2)), rng.standard_normal((7, 2, 3))
    grid, theta = grid.astype(np.float32), theta.astype(np.float32)
    images, gradient = ct.asarray(x, layout=layout), ct.asarray(dy, layout=layout)
    out = ct.full(x.shape, 2, layout=layout)
    fake.calls.clear()
    sampled = ct.grid_sample(images, ct.asarray(grid), alpha=3, beta=-1, out=out)
    assert fake.names().count("cudnnSpatialTfSamplerForward") == 9
    compare(sampled, 3 * ct.reference.grid_sample(x, grid) - 2, tolerance=1e-6)
    found = ct.grid_sample_backward(gradient, images, ct.asarray(grid))
    for ours, theirs in zip(found, ct.reference.grid_sample_backward(dy, x, grid), strict=True):
        compare(ours, theirs, tolerance=1e-6)
    compare(ct.affine_grid(ct.asarray(theta), (7, 3, 4)), ct.reference.affine_grid(theta, (7, 3, 4)))
    compare(ct.affine_grid_backward(ct.asarray(grid)), ct.reference.affine_grid_backward(grid))


@pytest.mark.parametrize("shape", [(65_536, 1, 1, 1), (1, 1025, 1, 1)])
def test_grid_sample_equals_reference_behind_the_limits_of_a_call(shape: tuple[int, ...]) -> None:
    """The fake rejects more images or channels in a call."""
    x, grid = ct.full(shape, 2), ct.zeros((shape[0], 1, 1, 2))
    assert (ct.grid_sample(x, grid).numpy() == 2).all()
    assert (ct.grid_sample_backward(x, x, grid).dx.numpy() == 2).all()


# --- layouts -----------------------------------------------------------------------------------------------


def placed(host: Host, shape: tuple[int, ...], layout: str, dtype: str = "float32") -> ForeignArray:
    """Images whose strides are exactly those of a layout, also where axes have the length 1."""
    values = np.zeros(shape, dtype)
    if layout == "nhwc":
        values = np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
    return ForeignArray(host, values)


def dropped(x: Any) -> list[ct.DeviceArray]:
    state = ct.DropoutState(0.5, seed=1)
    y, mask = ct.dropout(x, state)
    return [y, ct.dropout_backward(x, mask, state)]


# Results for images x of shape (N, C, H, W) of operations without a row, and with other arguments.
RESULTS: dict[str, Callable[[Any], list[ct.DeviceArray]]] = {
    "global pool": lambda x: [ct.pool(x, window="global")],
    "op_tensor": lambda x: [ct.op_tensor(x, x, op="max"), ct.transform(x, dtype="float32")],
    "dropout": dropped,
    "copy": lambda x: [ct.asarray(x).copy()],
}
RESULTS |= {name: lambda x, name=name: [simple_call(name, x)] for name in ON_IMAGES}
for name in ("conv_backward_filter", "conv_backward_bias", "reduce_with_indices", *ROW_NORMS):  # in C order
    del RESULTS[name]


@pytest.mark.parametrize("operation", RESULTS)
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (2, 3, 1, 1), (2, 3, 3, 4)])
@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nchw"), ("float32", "nhwc")])
def test_result_has_strides_of_layout_of_operand(
    host: Host, operation: str, shape: tuple[int, ...], layout: str, dtype: str
) -> None:
    for result in RESULTS[operation](placed(host, shape, layout, dtype)):
        assert result.spec == ct.TensorSpec.packed(result.shape, result.dtype, layout)
        assert result.layout == (layout if max(result.shape[1:]) > 1 else "nchw")


def undecided(host: Host, shape: tuple[int, ...], dtype: str) -> ForeignArray:
    """Images with one channel, whose stride matches no layout."""
    array = placed(host, shape, "nchw", dtype)
    strides = list(array.byte_strides)
    strides[1] = 7 * array.dtype.itemsize
    array.byte_strides = tuple(strides)
    return array


@pytest.mark.parametrize(("dtype", "fast"), [("float16", "nhwc"), ("float32", "nchw"), ("float64", "nchw")])
@pytest.mark.parametrize("other", [None, "nchw", "nhwc"])
def test_result_has_layout_of_other_operand_or_dtype_when_strides_decide_nothing(
    host: Host, dtype: str, fast: str, other: str | None
) -> None:
    x = undecided(host, (2, 1, 3, 4), dtype)
    w = ForeignArray(host, np.zeros((4, 1, 1, 1), dtype))  # packed in both layouts
    w.byte_strides = (w.dtype.itemsize,) * 4
    results = [ct.activation(x), ct.pool(x, window=2), ct.conv(x, w)]
    if other:
        y = placed(host, (2, 1, 3, 4), other, dtype)
        results = [ct.conv(x, ct.zeros((4, 1, 2, 2), dtype, layout=other)), ct.add(x, y)]
        results += [ct.activation_backward(y, x, x), ct.softmax_backward(y, x)]
    for result in results:
        assert result.spec == ct.TensorSpec.packed(result.shape, dtype, other or fast)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layout_lasts_through_operations_on_one_channel_and_one_pixel(host: Host, layout: str) -> None:
    x = placed(host, (2, 1, 6, 6), layout)
    w = ct.zeros((4, 1, 3, 3), layout=layout)
    y = ct.conv(ct.activation(ct.pool(x, window=1), mode="relu"), w)
    assert y.spec == ct.TensorSpec.packed((2, 4, 4, 4), "float32", layout)
    pixels = ct.softmax(ct.pool(y, window="global"))
    back = ct.conv_transpose(pixels, ct.zeros((4, 3, 2, 2), layout=layout))
    assert back.spec == ct.TensorSpec.packed((2, 3, 2, 2), "float32", layout)


# --- calls, streams and devices ----------------------------------------------------------------------------


def image(dtype: str = "float32", **where: Any) -> ct.DeviceArray:
    values = np.random.default_rng(0).integers(1, 5, (2, 3, 4, 5))
    return ct.asarray(values.astype(ct.zeros(1, dtype).dtype), **where)


@ON_IMAGE
def test_second_call_prepares_and_copies_nothing(fake: FakeCudnn, operation: str) -> None:
    x = image()
    simple_call(operation, x)
    fake.calls.clear()
    simple_call(operation, x)
    names = [name for name in fake.names() if name != "cudnnSetTensor"]  # which fills an array
    packs = {"CreateDescriptor", "SetAttribute", "Finalize", "DestroyDescriptor"}  # of new addresses
    names = [name for name in names if name.removeprefix("cudnnBackend") not in packs]
    assert not [name for name in names if name.startswith(("cudnnCreate", "cudnnSet", "cudnnGet"))]
    assert len(names) == row_of(operation).c_calls.get(operation, 1)


def waits(host: Host) -> set[tuple[int, int]]:
    """The streams that have waited since the last look, each with the stream that it waited for."""
    found = {(entry[1], entry[2][2]) for entry in host.log if entry[0] == "wait"}
    host.log.clear()
    return found


@ON_IMAGE
def test_operation_is_ordered_with_the_streams_of_its_arrays(host: Host, operation: str) -> None:
    x = image(stream=HOME)
    host.log.clear()
    y = simple_call(operation, x, stream=OTHER)
    assert (OTHER, HOME) in waits(host)
    expected = y.copy(stream=HOME).numpy()
    assert (HOME, OTHER) in waits(host)
    out = ForeignArray(host, np.full_like(expected, np.nan), Stream(HOME, 0))
    simple_call(operation, x, out=out, stream=OTHER)
    assert {(OTHER, HOME), (HOME, OTHER)} <= waits(host)
    np.testing.assert_array_equal(out.numpy(), expected)


@ON_IMAGE
def test_result_waits_for_readers_of_its_memory(host: Host, operation: str) -> None:
    with ct.use(stream=OTHER):
        arguments, keywords = simple_arguments(operation, image())
        call = getattr(ct, operation)
        y = several(call(*arguments, **keywords))[0]
    out = ct.zeros(y.shape, y.dtype, stream=HOME)
    kept = out.copy(stream=HOME), out.copy(stream=0x300)
    host.log.clear()
    call(*arguments, **keywords, out=out, stream=OTHER)
    assert {(OTHER, HOME), (OTHER, 0x300)} <= waits(host)
    del kept


@ON_IMAGE
def test_operation_follows_its_operands_to_another_device(host: Host, operation: str) -> None:
    with ct.use(device=1):
        y = simple_call(operation, image())
    assert (y.device, host.device) == (1, 0)
    x = ForeignArray(host, image().numpy(), device=1)
    with ct.use(device=1):
        again = simple_call(operation, x)
    np.testing.assert_array_equal(again.numpy(), y.numpy())


@ON_IMAGE
def test_second_call_is_captured(host: Host, operation: str) -> None:
    with ct.use(stream=OTHER):
        arguments, keywords = simple_arguments(operation, image())
        call = getattr(ct, operation)
        expected = several(call(*arguments, **keywords))[0].numpy()
        out = ct.full(expected.shape, np.nan)
        call(*arguments, **keywords, out=out)
        out.fill(np.nan)
        with host.captured(OTHER):
            call(*arguments, **keywords, out=out)
        np.testing.assert_array_equal(out.numpy(), expected)


# --- arguments ---------------------------------------------------------------------------------------------

# Keywords that any operation rejects if it has them, with the error.
BAD_KEYWORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"alpha": "2"}, TypeError, "alpha must be a number: got '2'"),
    ({"alpha": None}, TypeError, "alpha must be a number: got None"),
    ({"beta": np.zeros(2)}, TypeError, "beta must be a number"),
    ({"beta": 1}, ValueError, "beta=1 needs out"),
    ({"coefficient": "high"}, TypeError, "coefficient must be a number: got 'high'"),
    ({"epsilon": -1e-9}, ValueError, "epsilon must be at least 0 and finite: got -1e-09"),
    ({"epsilon": {}}, TypeError, "is not a valid parameter"),
    ({"propagate_nan": "often"}, TypeError, "propagate_nan must be True or False"),
    ({"keepdims": object()}, TypeError, "keepdims must be True or False"),
    ({"mode": "nonsense"}, ValueError, "mode must be one of "),
    ({"op": "nonsense"}, ValueError, "op "),
    ({"padding": -1}, ValueError, "padding must be between 0"),
    ({"stride": 0}, ValueError, "stride must be between 1"),
    ({"stride": {}}, TypeError, r"\{\} is not a valid parameter"),
    ({"padding": np.array([0.5, 1])}, TypeError, r"array\(\[0.5, 1. \]\) is not a valid parameter; expected"),
    ({"dilation": 0}, ValueError, "dilation must be between 1"),
    ({"groups": 0}, ValueError, "groups must be at least 1"),
    ({"precision": "int8"}, ValueError, "precision must be one of"),
    ({"precision": "float16"}, ValueError, "is for float16 data, not float32"),
    ({"workspace_limit": "1 flea"}, TypeError, "workspace_limit"),
    ({"stream": "fast"}, TypeError, "stream must be an address"),
    ({"stream": -5}, ValueError, "stream must be an address"),
]


@ON_IMAGE
def test_keyword_is_rejected(operation: str) -> None:
    accepted = inspect.signature(getattr(ct, operation)).parameters
    for keywords, error, message in BAD_KEYWORDS:
        if set(keywords) <= set(accepted):
            with pytest.raises(error, match=message):
                simple_call(operation, image(), **keywords)
    simple_call(operation, image())


@ON_IMAGE
def test_operand_is_rejected(operation: str) -> None:
    arguments, keywords = simple_arguments(operation, image())
    names = [name for name in required(operation) if name not in keywords]
    arrays = [place for place, given in enumerate(arguments) if isinstance(given, ct.DeviceArray)]
    for place in arrays:
        name = names[place]
        optional = name == "b" or (operation, name) == ("conv_bias_activation", "bias")
        for bad in (arguments[place].numpy(), *([None] * (not optional)), object()):
            given = [*arguments[:place], bad, *arguments[place + 1 :]]
            with pytest.raises(TypeError, match=f"^{name} must be an array on the device, not"):
                getattr(ct, operation)(*given, **keywords)
    with pytest.raises(TypeError, match="takes float16"):
        simple_call(operation, image("int32"))


@ON_IMAGE
def test_out_is_rejected(host: Host, operation: str) -> None:
    x, call = image(), getattr(ct, operation)
    arguments, keywords = simple_arguments(operation, x)
    results = [one for one in several(call(*arguments, **keywords)) if one is not None]
    kept = [ct.full(one.shape, 7, one.dtype) for one in results]
    for place, y in enumerate(results):
        for out, error, message in bad_outs(host, arguments, y):
            outs = (*kept[:place], out, *kept[place + 1 :])
            with pytest.raises(error, match=message):
                call(*arguments, **keywords, out=outs if kept[1:] else out)
    if kept[1:] and "beta" in inspect.signature(call).parameters:
        with pytest.raises(ValueError, match="beta=1 needs out"):
            call(*arguments, **keywords, beta=1, out=(None, *kept[1:]))
    assert all((one.numpy() == 7).all() for one in kept)  # nothing was written
    if results[1:]:
        none = (None,) * len(results[2:])
        for outs in ((results[0], part_of(results[0], results[1].spec, 0), *none), (results[0],) * 9):
            with pytest.raises(ValueError, match=r"out overlaps|out has 9 arrays; the results are (y|dx), "):
                call(*arguments, **keywords, out=outs)
    np.testing.assert_array_equal(simple_call(operation, x).numpy(), results[0].numpy())


def part_of(memory: ct.DeviceArray, spec: ct.TensorSpec, offset: int) -> ct.DeviceArray:
    return ct.DeviceArray.over(spec, memory.pointer + offset, memory, memory.writer)


def bad_outs(host: Host, operands: list[Any], y: ct.DeviceArray) -> list[tuple[Any, Any, str]]:
    """Return arrays that cannot be memory for a result y of an operation on operands, with the errors."""
    backwards = ForeignArray(host, np.flip(y.numpy()))
    readonly = ForeignArray(host, y.numpy())
    readonly.readonly = True
    closed = y.copy()
    closed.close()
    whole = ct.zeros((y.size + 1,), y.dtype)
    itself = y.spec._replace(strides=(int(y.size > max(y.shape)),) * y.ndim)
    arrays = [one for one in operands if isinstance(one, ct.DeviceArray)]
    return [
        *((part_of(one, y.spec, 4), ValueError, "out overlaps") for one in arrays),
        (ct.empty((7, 7), y.dtype), ValueError, r"out (has shape \(7, 7\);|is float32\[7, 7\])"),
        (ct.empty(y.shape, "uint8"), (TypeError, ValueError), "out is uint8"),
        (backwards, ValueError, "out (has strides|is float32)"),
        (readonly, ValueError, "out is read-only"),
        (part_of(whole, itself, 0), ValueError, "out (overlaps itself|has strides|is float32)"),
        (closed, ValueError, "is closed"),
        (y.numpy(), TypeError, "out must be an array on the device"),
    ]
