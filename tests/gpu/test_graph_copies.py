"""Graphs whose inputs are copied because engines read them wrong, on a GPU, against PyTorch in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError

torch = pytest.importorskip("torch")

functional = torch.nn.functional

SLOPES: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "swish": functional.silu,
}
MOST = 4  # broadcasts of a shape in one run
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-3}  # products of float32 are in TF32


def randn(*shape: int, dtype: str = "float32", offset: int = 0, last: bool = False) -> Any:
    """Return random numbers behind some elements and in front of NaN, which no kernel may read."""
    size = torch.Size(shape).numel()
    memory = torch.full((size + offset + 4096,), torch.nan, dtype=getattr(torch, dtype), device="cuda")
    view = memory[offset : offset + size]
    view.copy_(torch.randn(size, device="cuda"))
    if not last:
        return view.view(shape)
    n, c, *pixels = shape
    return view.view(n, *pixels, c).movedim(-1, 1)


def slope(activation: str, x: Any) -> Any:
    wide = x.double().detach().clone().requires_grad_()
    return torch.autograd.grad(SLOPES[activation](wide).sum(), wide)[0]


def input_of(g: ct.Graph, array: Any) -> ct.GraphTensor:
    dtype = str(array.dtype).removeprefix("torch.")
    return g.input(tuple(array.shape), dtype, strides=array.stride())


def check(build: Callable[..., ct.GraphTensor], want: Any, *arrays: Any, tolerance: float) -> None:
    """Compare a graph of inputs like the arrays with a result in float64."""
    g = ct.Graph()
    with g.build(build(g, *(input_of(g, one) for one in arrays))) as f:
        for _ in range(2):
            got = torch.from_dlpack(f(*arrays)).double()
            error = (got - want).abs().max().item()
            size = max(want.abs().max().item(), 1.0)
            assert got.shape == want.shape
            assert error <= tolerance * size, f"{error:.3g} of {size:.3g}: {f.describe()}"


def broadcasts(whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    kept = product((False, True), repeat=len(whole))
    return [tuple(n if keep else 1 for n, keep in zip(whole, one, strict=True)) for one in kept]


def some_broadcasts(whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return some of the broadcasts, drawn with a seed that is printed: each compiles several graphs."""
    seed = random.randrange(2**32)
    print("seed", seed)
    found = broadcasts(whole)
    return random.Random(seed).sample(found, min(len(found), MOST))


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_all_broadcasts_equal_pytorch(rank: int, dtype: str, offset: int) -> None:
    whole = (2, 3, 4, 5, 24)[-rank:]
    for small in some_broadcasts(whole):
        x, b = (randn(*shape, dtype=dtype, offset=offset) for shape in (whole, small))
        wide = (x.double(), b.double())
        added = torch.relu(wide[0] + wide[1])
        tolerance = TOLERANCE[dtype]
        check(lambda g, x, b: g.relu(x + b), added, x, b, tolerance=tolerance)
        check(lambda g, b, x: g.relu(x + b), added, b, x, tolerance=tolerance)
        check(lambda g, x, b: x * g.tanh(b), wide[0] * torch.tanh(wide[1]), x, b, tolerance=tolerance)
        if offset:
            continue
        activation = "swish" if sum(small) % 2 else "relu"
        for first, second in ((x, b), (b, x)):
            want = first.double() * slope(activation, second)
            check(
                lambda g, dy, x, name=activation: getattr(g, f"{name}_backward")(dy, x),
                want, first, second, tolerance=tolerance,
            )  # fmt: skip


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 1), (1, 24)),
        ((3, 1, 5), (1, 4, 5)),
        ((2, 1, 4, 1), (1, 3, 1, 5)),
        ((2, 3, 1, 1), (4, 5)),
        ((1, 5, 8), (3, 1, 8)),
        ((1, 5, 8), (3, 5, 1)),
    ],
    ids=str,
)
def test_operands_that_are_both_broadcast_equal_pytorch(shapes: Any) -> None:
    a, b = (randn(*shape) for shape in shapes)
    check(lambda g, a, b: g.relu(a - b), torch.relu(a.double() - b.double()), a, b, tolerance=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("activation", SLOPES)
def test_index_and_gradient_at_a_column_equal_pytorch(activation: str, axis: int) -> None:
    x, column = randn(5, 7), randn(5, 1)
    index = torch.arange(x.shape[axis], device="cuda").double().reshape((-1, 1) if axis == 0 else (1, -1))

    def build(g: ct.Graph, x: ct.GraphTensor, column: ct.GraphTensor) -> ct.GraphTensor:
        made: ct.GraphTensor = getattr(g, f"{activation}_backward")(g.gen_index(x, axis) * x, column)
        return made

    # an error of the slope is multiplied by an index of up to 6
    check(build, index * x.double() * slope(activation, column), x, column, tolerance=6e-5)


IMAGES = {"data": (2, 16, 6, 5), "forward": (2, 8, 4, 3), "filter": (8, 16, 3, 3)}


@pytest.mark.parametrize("last", [True, False], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("small_last", [True, False], ids=["small nhwc", "small nchw"])
@pytest.mark.parametrize("kept", ["1c11", "nc11", "n1hw", "1chw", "1111", "nchw", "111w"])
@pytest.mark.parametrize("direction", IMAGES)
def test_gradients_of_activations_behind_convolutions_equal_pytorch(
    direction: str, kept: str, small_last: bool, last: bool
) -> None:
    dtype, whole = ("float16" if last else "float32"), IMAGES[direction]
    x, w, y = IMAGES["data"], IMAGES["filter"], IMAGES["forward"]
    shape = tuple(1 if one == "1" else n for one, n in zip(kept, whole, strict=True))
    small = randn(*shape, dtype=dtype, last=small_last)
    first, second = (
        randn(*one, dtype=dtype, last=last)
        for one in {"data": (y, w), "forward": (x, w), "filter": (y, x)}[direction]
    )
    wide = [one.double() for one in (first, second)]
    if direction == "forward":
        value = functional.conv2d(*wide)
    else:
        image = wide[1] if direction == "filter" else torch.zeros(x, device="cuda").double().requires_grad_()
        window = wide[1] if direction == "data" else torch.zeros(w, device="cuda").double().requires_grad_()
        result = functional.conv2d(image, window)
        (value,) = torch.autograd.grad(result, image if direction == "data" else window, wide[0])
    for turn, activation in enumerate(SLOPES):
        swapped = bool((turn + last + small_last) % 2)  # each order of operands with half of the layouts
        if swapped and activation == "relu":
            continue  # rounding decides on the side of 0
        want = (small.double() * slope(activation, value)) if swapped else value * slope(activation, small)

        def build(
            g: ct.Graph, a: Any, b: Any, c: Any, activation: str = activation, swapped: bool = swapped
        ) -> ct.GraphTensor:
            made = {
                "data": lambda: g.conv_backward_data(a, b, x),
                "forward": lambda: g.conv(a, b),
                "filter": lambda: g.conv_backward_filter(a, b, w),
            }[direction]()
            operands = (c, made) if swapped else (made, c)
            result: ct.GraphTensor = getattr(g, f"{activation}_backward")(*operands)
            return result.output(layout="nhwc" if last else "nchw")

        try:
            check(build, want, first, second, small, tolerance=2e-2)
        except NotSupportedError:
            continue


@pytest.mark.parametrize("computed", ["a", "b", "ab"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("dtypes", list(product(("float16", "bfloat16", "float32"), repeat=2)), ids=str)
def test_products_of_computed_operands_of_two_dtypes_equal_pytorch(
    dtypes: tuple[str, str], transposed: tuple[bool, bool], computed: str
) -> None:
    sizes, turn = ((5, 8), (16, 33), (7, 9)), ("a", "b", "ab").index(computed)
    for place, k in enumerate((8, 15, 16, 17, 18, 24, 33, 40)):
        m, n = sizes[(place + turn) % 3]  # each size with each k, in one of the tests
        shapes = ((m, k), (k, n))
        a, b = (
            randn(*shape[::-1], dtype=dtype).t() if exchanged else randn(*shape, dtype=dtype)
            for shape, dtype, exchanged in zip(shapes, dtypes, transposed, strict=True)
        )
        wide = [
            torch.relu(x.double()) if name in computed else x.double() for name, x in (("a", a), ("b", b))
        ]

        def build(g: ct.Graph, a: ct.GraphTensor, b: ct.GraphTensor) -> ct.GraphTensor:
            return (g.relu(a) if "a" in computed else a) @ (g.relu(b) if "b" in computed else b)

        check(build, wide[0] @ wide[1], a, b, tolerance=2e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_operations_behind_gradients_of_filters_equal_pytorch(dtype: str) -> None:
    computed = 0
    for channels, kernels in product((2, 4, 8, 10, 12, 16, 24), repeat=2):
        x, dy = (randn(2, c, 5, 3, dtype=dtype, last=True) for c in (channels, kernels))
        dy = dy[:, :, :4, :2].contiguous(memory_format=torch.channels_last)
        shape = (kernels, channels, 2, 2)
        w = torch.zeros(shape, device="cuda").double().requires_grad_()
        (want,) = torch.autograd.grad(functional.conv2d(x.double(), w), w, dy.double())

        def build(g: ct.Graph, dy: Any, x: Any, shape: Any = shape) -> ct.GraphTensor:
            return g.relu(g.abs(g.conv_backward_filter(dy, x, shape)))

        try:
            check(build, want.abs(), dy, x, tolerance=TOLERANCE[dtype])
        except NotSupportedError:
            assert channels % 8 or kernels % 8
            continue
        computed += 1
    assert computed >= 9, computed
