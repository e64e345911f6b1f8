"""Promises about arrays, views, streams, captures, errors and settings."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import cudnn_ct as ct

from .operands import rounded
from .promise import FLOATS, Draw, host, promise

PAGE = "docs/arrays-and-streams.md"


# --- arrays and views --------------------------------------------------------------------------------------


@promise(PAGE, "Views are those of NumPy: `x[0]`, `x[:, 2:8]`, `x[..., ::2]`, `x[:, None]`")
@promise("ct.DeviceArray", "return views as in NumPy")
def views_are_those_of_numpy(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4), 7)
    values = d.values(shape, dtype)
    index: list[Any] = []
    for n in shape:
        first = d.randrange(n)
        whole, one, part = slice(None), d.randrange(n) - n * d.chance(0.5), slice(first, n, d.randint(1, 3))
        index.append(d.choice((whole, one, part, slice(None, None, -1))))
    if d.chance(0.3):
        index.insert(d.randrange(len(index) + 1), None)
    if d.chance(0.3):
        index[d.randrange(len(index))] = ...
    key = tuple(index)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    d.equal(x[key].numpy().astype(np.float64), values[key])
    order = tuple(d.sample(range(len(shape)), len(shape)))
    d.equal(x.transpose(*order), values.transpose(order))
    d.equal(x.T, values.T)


@promise(PAGE, "views of the channels: they share the memory of x")
@promise(PAGE, "An `out=` may be a view of the same memory as an operand if they share no element")
def views_share_memory(d: Draw) -> None:
    dtype, (n, c, h, w) = d.dtype(), (d.randint(1, 3), 2 * d.randint(1, 4), *d.sizes(2))
    values = d.values((n, c, h, w), dtype)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    left, right = x[:, : c // 2], x[:, c // 2 :]
    ct.activation(left, out=right)
    d.equal(x, np.concatenate([values[:, : c // 2], np.maximum(values[:, : c // 2], 0)], 1))


@promise(PAGE, "An `out=` that overlaps an operand, or itself, is also rejected.")
def overlapping_results_are_rejected(d: Draw) -> None:
    dtype = d.dtype()
    x = d.array(d.values((2, 9), dtype), dtype, True)
    before = host(x)
    d.raises(ValueError, lambda: ct.softmax(x[:, :8], axis=-1, out=x[:, 1:]))
    d.equal(x, before)


@promise(PAGE, "views with negative strides are not written")
def negative_strides_are_not_written(d: Draw) -> None:
    dtype = d.dtype()
    x, out = (d.array(d.values((2, 5), dtype), dtype, True) for _ in range(2))
    before = host(out)
    d.raises(ValueError, lambda: ct.activation(x, out=out[:, ::-1]))
    d.equal(out, before)


@promise(PAGE, "a view if strides describe it, else a copy on the device")
@promise("ct.DeviceArray.reshape", "Return the elements, in C order, with another shape")
def reshapes_are_in_c_order(d: Draw) -> None:
    dtype, (a, b, c) = d.dtype(), d.sizes(3)
    values = d.values((a, b, c), dtype)
    shape = d.choice(((a * b, c), (a, b * c), (-1,), (c, b, a), (a, -1)))
    d.equal(d.array(values, dtype).reshape(*shape), values.reshape(shape))


@promise(PAGE, "`copy()` of a view becomes contiguous on the device.")
@promise("ct.DeviceArray.copy", "a view with gaps becomes contiguous")
def copies_are_contiguous(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4), 6, 2)
    values = d.values(shape, dtype)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    index = tuple(slice(None, None, d.randint(1, 2)) for _ in shape)
    view = x[index]
    copy = view.copy()
    ct.fill(x, 0)
    d.equal(copy, values[index])
    d.holds(
        sorted(copy.spec.strides)[0] <= 1 and copy.nbytes == values[index].size * copy.dtype.itemsize, "gaps"
    )


@promise(PAGE, "A view keeps the memory allocated after the array was closed or dropped.")
def views_keep_memory(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(2, 6, 2)
    values = d.values(shape, dtype)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    view = x[1:]
    x.close()
    del x
    others = [ct.full(shape, 7.0, dtype) for _ in range(4)]
    d.equal(view, values[1:])
    del others


@promise(PAGE, "using an array after that is a Python error")
def closed_arrays_are_errors(d: Draw) -> None:
    x = ct.full(d.sizes(2), 1.0)
    x.close()
    d.raises(ValueError, lambda: ct.activation(x), "a closed array")
    d.raises(ValueError, x.numpy, "a closed array")


@promise(PAGE, "Masks and lists of positions are a `TypeError`, and there is no assignment")
def indices_are_checked(d: Draw) -> None:
    x = ct.full((3, 4), 1.0)
    key: Any = d.choice(([0, 1], np.array([True, False, True]), np.array([0, 2]), 1.5, "a"))
    d.raises(TypeError, lambda: x[key], f"x[{key!r}]")
    d.raises(TypeError, lambda: operator.setitem(x, 0, x), "x[0] = x")


@promise(PAGE, "convert float16, bfloat16 and float32 into each other on the device")
@promise("ct.DeviceArray.astype", "Copy, and convert to anything")
def conversions_round_to_the_nearest(d: Draw) -> None:
    source, target = d.dtype(), d.dtype()
    values = d.values(d.sizes(d.randint(1, 4)), source)
    got = d.array(values, source).astype(target)
    if source == "float64":  # by way of float32
        d.near(got, values, dtype=target)
    else:
        d.same(got, rounded(values, target), target)


@promise(PAGE, "`.strides` is in bytes, as in NumPy; `.spec.strides` in elements, as in cuDNN.")
def strides_have_two_units(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4), 5, 2)
    values = np.zeros(shape, ct.zeros((1,), dtype).numpy().dtype)
    x, axis = ct.asarray(values), d.randrange(len(shape))
    part = (*(slice(None),) * axis, slice(None, 2))
    d.equal(np.array(x[part].strides), np.array(values[part].strides))
    d.equal(np.array(x.spec.strides), np.array(values.strides) // values.itemsize)


@promise(PAGE, "An operation packs its result in the layout of its first full-size operand.")
def results_have_the_layout_of_the_operand(d: Draw) -> None:
    dtype, layout, shape = d.dtype(), d.choice(("nchw", "nhwc")), d.sizes(4, 5, 2)
    x = ct.asarray(np.asarray(d.values(shape, dtype), ct.zeros((1,), dtype).numpy().dtype), layout=layout)
    result = d.choice((lambda: ct.activation(x), lambda: ct.pool(x, window=1), lambda: ct.add(x, x)))()
    d.holds(result.layout == layout, f"a result of {layout} is {result.layout}")


@promise(PAGE, "the same shape, channels last in memory")
@promise("ct.asarray", "The order in memory; the shape is (N, C, ...) either way.")
def layouts_keep_shapes(d: Draw) -> None:
    shape = (*d.sizes(2, 5, 2), *d.sizes(d.randint(1, 3), 5, 2))
    values = d.values(shape, "float32")
    x = ct.asarray(np.asarray(values, np.float32), layout="nhwc")
    d.equal(x, values)
    d.holds(x.shape == shape and x.layout == "nhwc" and x.spec.strides[1] == 1, f"strides {x.spec.strides}")


@promise(
    PAGE, "A NumPy array as an operand is a `TypeError`: operations never copy to the device implicitly."
)
@promise("docs/errors.md", "`TypeError` that names `ct.asarray`.")
def host_arrays_are_rejected(d: Draw) -> None:
    values = np.zeros((2, 3, 4, 4), np.float32)
    call = d.choice((ct.activation, ct.softmax, ct.reduce, ct.conv_backward_bias, ct.lrn))
    error = d.raises(TypeError, lambda: call(values), call.__name__)
    d.holds("asarray" in str(error), f"{error} does not name asarray")


@promise(PAGE, "Operands may have any strides.")
def operands_have_any_strides(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(4, 5, 2)
    values = d.values(shape, dtype)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    index = tuple(slice(None, None, d.choice((1, 2, -1, -2))) for _ in shape)
    axis = d.randrange(4)
    got = ct.reduce(x[index], op="add", axis=axis)
    d.near(got, values[index].sum(axis), dtype=dtype, terms=np.abs(values[index]).sum(axis))


# --- calls -------------------------------------------------------------------------------------------------


@promise(PAGE, "The GPU runs the same kernels with the same bits.")
def replays_have_the_same_bits(d: Draw) -> None:
    dtype, shape = d.dtype(), (d.randint(1, 3), 8, *d.sizes(2, 8, 3))
    x = d.array(d.values(shape, dtype), dtype)
    w = d.array(d.values((8, 8, 3, 3), dtype), dtype, True)
    call = d.choice(
        (
            lambda out: ct.softmax(x, out=out),
            lambda out: ct.conv(x, w, padding=1, out=out),
            lambda out: ct.activation(x, mode="tanh", out=out),
        )
    )
    out = ct.empty(shape, dtype)
    call(out)
    first = host(out)
    for _ in range(12):
        ct.fill(out, 0)
        call(out)
        d.equal(out, first)


@promise("docs/errors.md", "After an error the next call works")
def errors_leave_no_trace(d: Draw) -> None:
    dtype = d.dtype()
    x, w = d.array(d.values((2, 4, 5, 5), dtype), dtype), d.array(d.values((4, 4, 3, 3), dtype), dtype)
    first = host(ct.conv(x, w))
    wrong = d.choice(
        (
            lambda: ct.conv(x, w, groups=3),
            lambda: ct.conv(x, w[:, :3]),
            lambda: ct.conv(x, w, padding=-1),
            lambda: ct.conv(x, w, beta=1.0),
            lambda: ct.conv(x, w, dilation=9),
        )
    )
    d.raises(ValueError, wrong)
    d.equal(ct.conv(x, w), first)


@promise("docs/errors.md", "A wrong type of argument is a `TypeError`, a wrong value a `ValueError`.")
def wrong_arguments_are_named(d: Draw) -> None:
    x = ct.full((2, 4, 5, 5), 1.0)
    types = (lambda: ct.conv(x, None), lambda: ct.reduce(x, axis="a"), lambda: ct.scale(x, alpha="2"))
    values = (lambda: ct.reduce(x, op="sum_of"), lambda: ct.reduce(x, axis=7), lambda: ct.pool(x, window=9))
    d.raises(TypeError, d.choice(types))
    d.raises(ValueError, d.choice(values))


@promise("docs/settings.md", "an invalid value is an error")
def settings_are_checked(d: Draw) -> None:
    name, value = d.choice(
        (("deterministic", "perhaps"), ("workspace_limit", -1), ("replay", 3), ("allow_tf32", "x"))
    )
    before = getattr(ct.config, name)
    d.raises((TypeError, ValueError), lambda: setattr(ct.config, name, value), f"config.{name} = {value!r}")
    d.holds(getattr(ct.config, name) == before, f"config.{name} changed")


# --- streams, captures and other libraries: on a GPU --------------------------------------------------------


def _torch() -> Any:
    import torch

    return torch


@promise(PAGE, "A call waits, on the device, for other streams that write its operands.", gpu=True)
def calls_wait_for_writers(d: Draw) -> None:
    torch = _torch()
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    shape, value = (d.choice((64, 4096)), 1024), float(d.randint(1, 9))
    x = ct.full(shape, 0.0, stream=one)
    with torch.cuda.stream(one):
        torch.cuda._sleep(2_000_000)
    ct.fill(x, value, stream=one)
    d.equal(ct.activation(x, mode="identity", stream=other), np.full(shape, value))


@promise(PAGE, "its address as an int", gpu=True)
def streams_are_objects_or_addresses(d: Draw) -> None:
    torch = _torch()
    stream = torch.cuda.Stream()
    values = d.values(d.sizes(2), "float32")
    x = d.array(values, "float32")
    given = d.choice((stream, stream.cuda_stream))
    if d.chance(0.5):
        d.equal(ct.activation(x, stream=given), np.maximum(values, 0))
    else:
        with ct.use(stream=given):
            d.equal(ct.activation(x), np.maximum(values, 0))


@promise(PAGE, "The per-thread default stream (2) is rejected", gpu=True)
def per_thread_streams_are_rejected(d: Draw) -> None:
    x = ct.full((2,), 1.0)
    d.raises((ValueError, TypeError, ct.CudnnError), lambda: ct.activation(x, stream=2))


@promise(PAGE, "A torch tensor that requires grad is rejected while torch records gradients", gpu=True)
def tensors_that_require_grad_are_rejected(d: Draw) -> None:
    torch = _torch()
    x = torch.ones(d.sizes(2), device="cuda", requires_grad=True)
    d.raises(TypeError, lambda: ct.activation(x))
    with torch.no_grad():
        d.equal(ct.activation(x), np.ones(tuple(x.shape)))
    d.equal(ct.activation(x.detach()), np.ones(tuple(x.shape)))


@promise(PAGE, "As an input it is copied by torch, as `tensor.resolve_neg()` does", gpu=True)
def negated_tensors_are_copied(d: Draw) -> None:
    torch = _torch()
    values = d.values(d.sizes(2), "float32")
    z = torch.complex(torch.zeros(values.shape), torch.tensor(values, dtype=torch.float32)).cuda().conj()
    d.equal(ct.activation(z.imag, mode="identity"), -values)


@promise(
    "docs/getting-started.md", "Arrays of PyTorch, CuPy, numba and JAX are used without a copy", gpu=True
)
@promise("ct.asarray", "are used in place, without a copy", gpu=True)
def arrays_of_torch_share_memory(d: Draw) -> None:
    torch = _torch()
    x = torch.zeros(d.sizes(2), device="cuda")
    array = ct.asarray(x)
    d.holds(array.pointer == x.data_ptr(), "the memory was copied")
    ct.fill(array, 3.0)
    ct.synchronize()
    torch.cuda.synchronize()
    d.holds(bool((x == 3).all()), "torch does not see what was written")
    y = ct.activation(x)
    d.holds(torch.from_dlpack(y).data_ptr() == y.pointer, "torch does not share the result")


@promise(PAGE, "Operands are copied into memory of the graph.", gpu=True)
@promise(
    "ct.capture", 'With ``operands="copy"``, writes to an operand do not reach the caller\'s array.', gpu=True
)
def captures_copy_their_operands(d: Draw) -> None:
    dtype, shape = d.dtype(*FLOATS), d.sizes(2)
    function = ct.capture(lambda x: ct.scale(x, alpha=2.0))
    for _ in range(4):
        values = d.values(shape, dtype)
        x = d.array(values, dtype, True)
        d.equal(function(x), 2 * values)
        d.equal(x, values)
    function.close()


@promise(PAGE, "The next call with the same signature in the same thread overwrites them", gpu=True)
@promise("ct.capture", "``.copy()`` keeps them", gpu=True)
def captures_overwrite_their_results(d: Draw) -> None:
    shape = d.sizes(2)
    function = ct.capture(lambda x: ct.activation(x, mode="identity"))
    first, second, third = (d.values(shape, "float32") for _ in range(3))
    function(d.array(first, "float32", True))
    y = function(d.array(second, "float32", True))
    kept = y.copy()
    function(d.array(third, "float32", True))
    d.equal(kept, second)
    d.equal(y, third)
    function.close()


@promise(PAGE, "Work on the device is done once.", gpu=True)
def first_calls_of_captures_work_once(d: Draw) -> None:
    shape = d.sizes(2)
    total = ct.full(shape, 0.0)
    function = ct.capture(lambda x: ct.add(total, x, out=total))
    want = np.zeros(shape)
    for _ in range(4):
        values = d.values(shape, "float32", "whole")
        function(d.array(values, "float32", True))
        want = want + values
        d.equal(total, want)
    function.close()


@promise(PAGE, "`w.fill(0)` reaches it", gpu=True)
def captures_read_other_arrays_in_place(d: Draw) -> None:
    shape = d.sizes(2)
    w = ct.full(shape, 1.0)
    function = ct.capture(lambda x: ct.add(x, w))
    values = d.values(shape, "float32", "whole")
    x = d.array(values, "float32", True)
    for value in (1.0, 0.0, 5.0):
        w.fill(value)
        d.equal(function(x), values + value)
    function.close()


@promise(PAGE, "they are freed and read in its order", gpu=True)
@promise(PAGE, "is not returned to the pool before that use is over", gpu=True)
def memory_outlives_its_use_on_another_stream(d: Draw) -> None:
    torch = _torch()
    side, shape = torch.cuda.Stream(), (2**20,)
    value = float(d.randint(1, 9))
    x = ct.full(shape, value)
    with torch.cuda.stream(side):
        torch.cuda._sleep(3_000_000)
    y = ct.activation(x, mode="identity", stream=side)
    del x
    others = [ct.full(shape, -1.0) for _ in range(3)]
    d.equal(y, np.full(shape, value))
    del others
