"""Convolutions of float8 with exact results, which the fakes and the GPU tier share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.typing import Layout
from tests.strategies import Place, lay_out, shifted

SCALES = {"descale_x": 0.5, "descale_w": 0.25, "scale": 2.0}  # powers of 2
ROUNDS = 3  # calls with the same memory: on a GPU the last ones are replays


class Case(NamedTuple):
    """Shapes, the dtypes of x, w and y, and arguments of a call.

    ``scales`` names the scales that the call gets. x and w start ``offset`` elements
    after aligned memory.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    dtypes: str
    amax: bool = False
    scales: tuple[str, ...] = ("descale_x", "descale_w")
    bias: str = ""
    activation: str | None = None
    geometry: dict[str, Any] = {}  # noqa: RUF012 - never modified
    layout: Layout = "nhwc"
    offset: int = 0

    @property
    def y(self) -> str:
        """The dtype of the result."""
        return names_of(self)[2]


def names_of(case: Case) -> list[str]:
    """Return the dtypes of x, w and y."""
    return [f"float8_{one}" if one.startswith("e") else one for one in case.dtypes.split()]


ODD, WINDOW, HALF_PADDING = (2, 32, 9, 11), (48, 32, 3, 3), {"padding": 1}
ALL = tuple(SCALES)
CASES = {
    "bfloat16": Case(ODD, WINDOW, "e4m3 e4m3 bfloat16", geometry=HALF_PADDING),
    "bfloat16, amax": Case((1, 16, 7, 5), (16, 16, 1, 1), "e4m3 e4m3 bfloat16", True),
    "float16": Case(
        (3, 64, 13, 13), (32, 64, 3, 3), "e4m3 e4m3 float16", geometry={"stride": 2, "padding": 1}
    ),
    "float16, amax, scale": Case(ODD, WINDOW, "e4m3 e4m3 float16", True, ALL, geometry={"stride": 2}),
    "float32": Case((1, 48, 5, 17), (80, 48, 1, 1), "e4m3 e4m3 float32"),
    "float32, amax": Case(ODD, WINDOW, "e4m3 e4m3 float32", True, geometry=HALF_PADDING),
    "float32, amax, no scales": Case((1, 16, 7, 5), (16, 16, 3, 3), "e4m3 e4m3 float32", True, ()),
    "float32, amax, scale": Case((1, 32, 13, 3), (16, 32, 3, 3), "e4m3 e4m3 float32", True, ALL),
    "float32, amax, bias, relu": Case(
        (2, 16, 8, 9), (32, 16, 3, 3), "e4m3 e4m3 float32", True, ("descale_x",), "float32", "relu"
    ),
    "e4m3": Case((1, 128, 7, 7), (64, 128, 1, 1), "e4m3 e4m3 e4m3", geometry={"stride": 2}),
    "e4m3, amax, all": Case(ODD, WINDOW, "e4m3 e4m3 e4m3", True, ALL, "bfloat16", "relu", HALF_PADDING),
    "e5m2, amax": Case((2, 16, 5, 5), (16, 16, 3, 3), "e4m3 e4m3 e5m2", True),
    "operands e5m2 e4m3": Case(ODD, WINDOW, "e5m2 e4m3 float32", True),
    "operands e4m3 e5m2": Case((1, 32, 9, 9), (16, 32, 3, 3), "e4m3 e5m2 bfloat16", bias="bfloat16"),
    "operands e5m2": Case((1, 32, 9, 9), (16, 32, 1, 1), "e5m2 e5m2 e5m2", True, ALL),
    "pixel": Case((1, 16, 1, 1), (16, 16, 1, 1), "e4m3 e4m3 float32", True),
    "dilated": Case(
        (1, 16, 11, 7), (16, 16, 3, 3), "e4m3 e4m3 float32", geometry={"dilation": 2, "padding": 1}
    ),
    "uneven padding": Case(ODD, WINDOW, "e4m3 e4m3 float32", True, geometry={"padding": ((1, 0), (0, 2))}),
    "groups": Case((2, 64, 7, 9), (96, 32, 3, 3), "e4m3 e4m3 float32", geometry={"groups": 2, "padding": 1}),
    "one axis": Case((3, 16, 31), (32, 16, 5), "e4m3 e4m3 float32", True, geometry={"stride": 2}),
    "three axes": Case((1, 16, 5, 6, 7), (32, 16, 3, 3, 3), "e4m3 e4m3 float32", True),
    "channels first": Case(ODD, WINDOW, "e4m3 e4m3 e4m3", True, ALL, layout="nchw"),
    "misaligned": Case(ODD, WINDOW, "e4m3 e4m3 float32", True, ALL, offset=3),
}


def operands(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Return small integers as operands, whose sums are exact, and the scales."""
    rng, (x, w, _) = np.random.default_rng(0), names_of(case)
    found = {
        name: lay_out(rng.integers(-2, 3, shape).astype(as_dtype(dtype).numpy), case.layout, "packed")
        for name, shape, dtype in (("x", case.x, x), ("w", case.w, w))
    }
    found = {name: shifted(array, case.offset) for name, array in found.items()}
    found |= {name: np.full(1, SCALES[name], np.float32) for name in case.scales}
    if case.bias:
        found["bias"] = rng.integers(-9, 10, case.w[:1]).astype(as_dtype(case.bias).numpy)
    return found


def check(case: Case, place: Place) -> tuple[dict[str, np.ndarray[Any, Any]], Any]:
    """Compare results in memory of NaN with the reference, bit for bit; return operands and results."""
    arrays, found = operands(case), None
    keywords = {"activation": case.activation, "amax": case.amax, **case.geometry}
    wanted = ct.reference.scaled_conv(**arrays, out_dtype=case.y, **keywords)
    assert np.isfinite(wanted.y.astype(np.float64)).all()
    given = {name: place(array) for name, array in arrays.items()}
    for _ in range(ROUNDS):
        found = None  # so that the next result may have the same memory
        y = ct.full(wanted.y.shape, float("nan"), case.y, layout=case.layout)
        amax = ct.full((1,), float("nan")) if case.amax else None
        found = ct.scaled_conv(**given, out=(y, amax) if case.amax else y, **keywords)
        assert found.y.pointer == y.pointer
        np.testing.assert_array_equal(y.numpy().astype(np.float64), wanted.y.astype(np.float64))
        assert amax is None or amax.numpy()[0] == wanted.amax[0]
        del y, amax
    return arrays, found
