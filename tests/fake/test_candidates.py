"""Candidates that the caller wrote, or that an export or the cache file holds: on the fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import Candidate, NotSupportedError, algo_cache
from cudnn_ct.autotune.measurement import to_time
from cudnn_ct.context import current
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.ops.conv.candidates import CONVOLUTIONS
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_algorithms import TIME
from .test_conv import images


def call(
    direction: str, window: tuple[int, ...], dtype: str = "float32", layout: str = "nchw", groups: int = 1
) -> Any:
    """The two operands of a direction, and the shape of a gradient."""
    x, w = (2, 4, *(8 for _ in window)), (4, 4 // groups, *window)
    y = ct.conv_output_shape(x, w, groups=groups)
    shapes = {"forward": (x, w), "backward_data": (y, w), "backward_filter": (y, x)}[direction]
    shape = {"forward": None, "backward_data": x, "backward_filter": w}[direction]
    return *(ct.asarray(images(*one), dtype, layout=layout) for one in shapes), shape


def chosen(direction: str, window: tuple[int, ...], **how: Any) -> str:
    """The algorithm that a plan settles on."""
    make = {name: how.pop(name) for name in ("dtype", "layout", "groups") if name in how}
    first, second, shape = call(direction, window, **make)
    groups = make.get("groups", 1)
    return ct.conv_plan(first, second, shape, direction=direction, groups=groups, **how).candidate.algorithm


def rows_of_the_store(path: Path, **changes: Any) -> None:
    """Export the stored choices, change every row of them, and import them again."""
    ct.export_algo_cache(path)
    kept = json.loads(path.read_text())
    for choice in kept["entries"].values():
        choice["rows"] = [{**row, **changes} for row in choice["rows"]]
    path.write_text(json.dumps(kept))
    forget()
    assert ct.import_algo_cache(path) == 1


@pytest.mark.parametrize(
    ("backend", "algorithm", "message"),
    [
        ("graph", f"engine {2**64 + 4}", "invalid engine"),
        ("graph", f"engine 4 knobs {2**32 + 2}=1", "invalid engine"),
        ("graph", f"engine 4 knobs 2={2**64 + 1}", "invalid engine"),
        ("graph", "engine -1", "invalid engine"),
        ("graph", "engine 04", "invalid engine"),
        ("graph", "engine 4_0", "invalid engine"),
        ("graph", "engine \N{ARABIC-INDIC DIGIT FOUR}", "invalid engine"),
        ("legacy", "GEMM", "has no legacy algorithm"),
        ("legacy", "count", "has no legacy algorithm"),
        ("legacy", "implicit_gemm ", "has no legacy algorithm"),
        ("legacy", "algo_0", "has no legacy algorithm"),
        ("unfused", "gemm", "backend 'unfused' does not exist"),
    ],
)
def test_candidate_is_rejected_when_its_name_does_not_exist(
    fake: FakeCudnn, backend: str, algorithm: str, message: str
) -> None:
    row = Candidate(backend, algorithm, "default", 0, True)
    with pytest.raises(NotSupportedError, match=message):
        chosen("forward", (3, 3), algo=row)


def unpacked(host: Host) -> tuple[Any, Any, Any]:
    """Operands of which the filter has to be copied, and the result."""
    numbers = np.random.default_rng(1).integers(-3, 4, (2, 4, 6, 6)).astype(np.float32)
    whole = np.random.default_rng(2).integers(-3, 4, (3, 8, 3, 3)).astype(np.float32)
    w = whole[:, ::2]
    return ct.asarray(numbers), ForeignArray(host, w), ct.reference.conv(numbers, w)


def test_candidates_of_two_backends_with_one_algorithm_have_different_keys() -> None:
    """A fused call and a convolution with separate calls may use the algorithm of one name."""
    rows = [Candidate(backend, "gemm", "fma", 0, True) for backend in ("legacy", "unfused")]
    assert rows[0].key != rows[1].key


def test_candidate_is_rejected_when_its_copies_are_not_offered(fake: FakeCudnn, host: Host) -> None:
    x, w, want = unpacked(host)
    row = next(row for row in ct.conv_algorithms(x, w) if not row.rejected)
    assert row.relayout == (("w", "nchw"),)
    np.testing.assert_array_equal(ct.conv(x, w, algo=row).numpy(), want)
    for packed in ((), (("w", "nchw"), ("w", "nchw")), (("b", "nchw"),), (("w", "chwn"),)):
        with pytest.raises(NotSupportedError, match="got relayout="):
            ct.conv(x, w, algo=row._replace(relayout=packed))
    row = Candidate("graph", "engine 1", "fma", 0, True, relayout=(("w", "nhwc"),))
    with pytest.raises(NotSupportedError, match="got relayout="):
        chosen("forward", (3, 3), algo=row)


@pytest.mark.parametrize("changes", [{"relayout": []}, {"relayout": [["w", "nchw"], ["x", "nhwc"]]}])
def test_imported_algorithms_are_timed_again_when_their_copies_are_not_offered(
    fake: FakeCudnn, host: Host, on_disk: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    x, w, want = unpacked(host)
    np.testing.assert_array_equal(ct.conv(x, w, algo=TIME).numpy(), want)
    rows_of_the_store(tmp_path / "algo_cache.json", **changes)
    np.testing.assert_array_equal(ct.conv(x, w, algo=TIME).numpy(), want)


def test_conv_copies_operands_when_only_copies_have_a_deterministic_algorithm(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = fake._rank

    def random_for_channels_last(
        handle: Any, image: Any, w: Any, convolution: Any, names: Any, *rest: Any
    ) -> None:
        last = fake._get(image, "tensor")["strides"][1] == 1
        fake.random = set(names.offered) if last else set()
        rank(handle, image, w, convolution, names, *rest)

    monkeypatch.setattr(fake, "_rank", random_for_channels_last)
    w, dy = images(4, 3, 2, 2), ct.asarray(images(2, 4, 5, 6).numpy(), layout="nhwc")
    expected = ct.reference.conv_backward_data(dy.numpy(), w.numpy(), (2, 3, 6, 7))
    for deterministic in (False, True):
        plan = ct.conv_plan(dy, w, (2, 3, 6, 7), direction="backward_data", deterministic=deterministic)
        assert (("y", "nchw") in plan.candidate.relayout) == deterministic, plan.describe()
        np.testing.assert_array_equal(plan(dy, w).numpy(), expected)


# --- convolutions as products ------------------------------------------------------------------------------


PRODUCT = "product engine 0"


def pixelwise(
    direction: str, dtype: str = "float16", layout: str = "nhwc"
) -> tuple[Any, tuple[Any, ...], Any]:
    """A function of convolutions with windows of one pixel, its operands, and its result."""
    source = np.random.default_rng(3)
    x, w, y = (
        ct.asarray(source.integers(-2, 3, shape).astype(np.float32), dtype, layout=layout)
        for shape in ((2, 8, 5, 6), (16, 8, 1, 1), (2, 16, 5, 6))
    )
    function, given = {
        "forward": (ct.conv, (x, w)),
        "backward_data": (ct.conv_backward_data, (y, w, x.shape)),
        "backward_filter": (ct.conv_backward_filter, (y, x, w.shape)),
    }[direction]
    return function, given, function(*given).numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_convolution_of_one_pixel_is_computed_as_a_product(
    fake: FakeCudnn, direction: str, dtype: str
) -> None:
    fake.engines = [0]
    function, given, want = pixelwise(direction, dtype)
    row = next(row for row in ct.conv_algorithms(*given, direction=direction) if row.backend == "product")
    for algo in (row, PRODUCT):
        np.testing.assert_array_equal(function(*given, algo=algo, strict=True).numpy(), want)
        assert ct.last_plan().candidate.backend == "product"
        assert "chosen: product engine 0" in ct.last_plan().describe()
    scaled = function(*given, algo=PRODUCT, strict=True, alpha=2).numpy()
    np.testing.assert_array_equal(scaled, 2 * want)


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_products_are_timed_for_gradients(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    timed: list[str] = []

    def noted(rows: list[Candidate]) -> list[Candidate]:
        timed.extend(row.backend for row in to_time(rows))
        return to_time(rows)

    monkeypatch.setattr(algo_cache, "to_time", noted)
    fake.engines = [0]
    function, given, _ = pixelwise(direction)
    function(*given, algo="autotune")
    assert timed
    assert ("product" in timed) == (direction != "forward")


@pytest.mark.parametrize(
    ("dtype", "layout", "window", "keywords"),
    [
        ("float32", "nhwc", 1, {}),
        ("float16", "nchw", 1, {}),
        ("float16", "nhwc", 3, {}),
        ("float16", "nhwc", 1, {"stride": 2}),
        ("float16", "nhwc", 1, {"padding": 1}),
        ("float16", "nhwc", 1, {"groups": 2}),
    ],
)
def test_other_convolutions_are_no_products(
    fake: FakeCudnn, dtype: str, layout: str, window: int, keywords: dict[str, int]
) -> None:
    fake.engines = [0]
    thick = 8 // keywords.get("groups", 1)
    x, w = (
        ct.asarray(np.ones(shape, np.float32), dtype, layout=layout)  # type: ignore[arg-type]
        for shape in ((2, 8, 5, 6), (16, thick, window, window))
    )
    assert not [row for row in ct.conv_algorithms(x, w, **keywords) if row.backend == "product"]
    with pytest.raises(NotSupportedError, match="only convolutions of half precision"):
        ct.conv(x, w, **keywords, algo=PRODUCT, strict=True)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("window", [(4, 5), (2, 3, 3), (1, 7)])
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_images_of_one_window_are_products(
    fake: FakeCudnn, direction: str, window: tuple[int, ...], layout: Any
) -> None:
    """As where a network embeds patches; other convolutions of the same shapes are none."""
    fake.engines = [0]
    source = np.random.default_rng(5)
    x, w, y = (
        ct.asarray(source.integers(-2, 3, shape).astype(np.float32), "float16", layout=layout)
        for shape in ((24, 3, *window), (16, 3, *window), (24, 16, *(1 for _ in window)))
    )
    given: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
        "forward": (ct.conv, ct.reference.conv, (x, w)),
        "backward_data": (ct.conv_backward_data, ct.reference.conv_backward_data, (y, w, x.shape)),
        "backward_filter": (ct.conv_backward_filter, ct.reference.conv_backward_filter, (y, x, w.shape)),
    }
    function, reference, operands = given[direction]
    arrays = [one.numpy() if isinstance(one, ct.DeviceArray) else one for one in operands]
    for keywords, product in (
        ({}, True),
        ({"stride": window}, True),
        ({"mode": "convolution"}, False),
    ):
        got = function(*operands, **keywords)
        np.testing.assert_array_equal(got.numpy(), reference(*arrays, **keywords))
        assert (ct.last_plan().candidate.backend == "product") == product, keywords
    function(*operands, algo="autotune")
    assert "product engine" in ct.last_plan().describe()


def test_product_of_misaligned_operands_runs_on_copies(fake: FakeCudnn) -> None:
    fake.engines = [0]
    flat = ct.asarray(np.arange(2 * 5 * 6 * 8 + 1, dtype=np.float32) % 5, "float16")
    x = flat[1:].reshape((2, 5, 6, 8)).transpose((0, 3, 1, 2))
    w = ct.asarray(np.ones((16, 8, 1, 1), np.float32), "float16", layout="nhwc")
    want = ct.conv(x, w).numpy()
    np.testing.assert_array_equal(ct.conv(x, w, algo=PRODUCT, strict=True).numpy(), want)
    assert "misaligned operands copied" in ct.last_plan().describe()


def test_name_of_a_product_is_that_of_no_other_operation(fake: FakeCudnn) -> None:
    with pytest.raises(ValueError, match="algo is unknown"):
        ct.matmul(ct.full((2, 2), 1), ct.full((2, 2), 1), algo=PRODUCT)


@pytest.mark.parametrize(
    ("layout", "groups", "size", "activation", "separate"),
    [
        ("nhwc", 64, 56, "relu", True),
        ("nhwc", 64, 56, "identity", True),
        ("nhwc", 64, 56, "tanh", False),
        ("nhwc", 64, 28, "relu", False),
        ("nchw", 64, 56, "relu", False),
        ("nhwc", 32, 56, "relu", False),
    ],
)
def test_large_depthwise_convolutions_with_relu_are_calls_of_their_own(
    fake: FakeCudnn, layout: str, groups: int, size: int, activation: str, separate: bool
) -> None:
    x = TensorSpec.packed((8, 64, size, size), "float16", layout)
    w = TensorSpec.packed((64, 64 // groups, 3, 3), "float16", layout)
    conv = conv_problem("forward", x, w, padding=(1, 1), groups=groups)
    problem = FusedConv(conv, TensorSpec.packed((64,), "float16"), activation=activation)
    rows = [row for find in CONVOLUTIONS.heuristics(problem) for row in find(current(default_stream(0)))]
    assert (rows[0].backend == "unfused") is separate
