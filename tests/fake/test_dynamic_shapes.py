"""Shapes that change, on the fakes: which calls share compiled kernels, and which plan a static graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct.autotune.candidates import choice_of, store_key
from cudnn_ct.cuda import stream as streams
from cudnn_ct.graph.plan_store import StoredPlan, decode, encode
from cudnn_ct.plans.base import AlgoRequest
from cudnn_ct.shapes.layer_norm import row_norm
from cudnn_ct.shapes.specs import TensorSpec
from tests.both.dynamic_shapes import *  # noqa: F403

from .cudnn import FakeCudnn
from .installed import forget


@pytest.fixture(autouse=True)
def _dynamic(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.compiled_engines = True
    monkeypatch.setattr(ct.config, "dynamic_shapes", True)


@pytest.fixture
def two_streams() -> Sequence[Any]:
    return 0x5500, 0x6600


def product(rows: int, inner: int = 16, columns: int = 8, **arguments: Any) -> str:
    """Multiply matrices, check the result, and return the description of the plan."""
    rng = np.random.default_rng(rows)
    a, b = rng.integers(-3, 4, (rows, inner)), rng.integers(-3, 4, (inner, columns))
    y = ct.matmul(ct.asarray(a, "float16"), ct.asarray(b, "float16"), **arguments)
    np.testing.assert_array_equal(y.numpy(), (a @ b).astype("float16"))
    return ct.last_plan().plan


def caches() -> Any:
    return contexts.current(streams.default_stream(0)).kernel_caches


def test_matmul_of_other_rows_neither_compiles_nor_queries_the_heuristics(fake: FakeCudnn) -> None:
    assert "dynamic_shapes" in product(64)
    made, asked = fake.compilations, fake.heuristic_queries
    for rows in (2, 3, 7, 63, 128, 1000, 5):
        assert "dynamic_shapes" in product(rows)
    assert (fake.compilations, fake.heuristic_queries) == (made, asked)
    assert len(caches()) == 1


def test_matmul_compiles_for_other_inner_lengths_and_for_one_row(fake: FakeCudnn) -> None:
    product(64)
    for number, (rows, inner, columns) in enumerate([(64, 24, 8), (64, 16, 24), (1, 16, 8)], 2):
        made = fake.compilations
        product(rows, inner, columns)
        assert fake.compilations == made + 1
        assert len(caches()) == number


def test_matmul_plans_static_graphs_without_the_setting(fake: FakeCudnn) -> None:
    dynamic = product(64)
    ct.config.dynamic_shapes = False
    made = fake.compilations
    assert "dynamic_shapes" not in product(64)
    assert "dynamic_shapes" not in product(32)
    assert fake.compilations == made + 2
    ct.config.dynamic_shapes = True
    assert product(64) == dynamic  # the call that was prepared first
    assert fake.compilations == made + 2


def test_matmul_plans_a_static_graph_if_no_engine_supports_the_dynamic_one(fake: FakeCudnn) -> None:
    fake.dynamic_engines = False
    for rows in (64, 32):
        assert "dynamic_shapes" not in product(rows)
        assert "engines for dynamic shapes" in ct.last_plan().plan


def test_matmul_queries_the_heuristics_if_the_engine_rejects_a_size(fake: FakeCudnn) -> None:
    assert "engine 0" in product(64)
    fake.engine_number = 5  # which supports the next sizes; engine 0 rejects them
    asked = fake.heuristic_queries
    assert "engine 5" in product(32)
    assert "dynamic_shapes" in ct.last_plan().plan
    assert fake.heuristic_queries > asked
    asked = fake.heuristic_queries
    assert "engine 5" in product(16)
    assert fake.heuristic_queries == asked


def test_matmul_keeps_the_limits_of_a_request_for_other_sizes(fake: FakeCudnn) -> None:
    product(64)
    fake.engine_workspace = 2**20
    with pytest.raises(ct.NotSupportedError, match="the limit is 100"):
        product(32, workspace_limit=100)
    assert "1,048,576 bytes" in product(16)


def test_matmul_autotunes_dynamic_engines(fake: FakeCudnn) -> None:
    fake.second_engine = 3
    for rows in (64, 32):
        assert "dynamic_shapes" in product(rows, algo="autotune")
    made = fake.compilations
    product(48, algo="autotune")
    assert fake.compilations == made


def test_matmul_takes_a_named_engine_and_a_row(fake: FakeCudnn) -> None:
    assert "dynamic_shapes" in product(64, algo="engine 0")
    candidate, made = ct.last_plan().candidate, fake.compilations
    assert "dynamic_shapes" in product(32, algo=candidate._replace(problem=None))
    assert fake.compilations == made
    fake.dynamic_engines = False  # the heuristics alone query this
    ct.config.dynamic_shapes = False
    assert "dynamic_shapes" not in product(16, algo="engine 0")


def test_norms_and_convolutions_stay_static(fake: FakeCudnn) -> None:
    fake.engines = True
    x = ct.asarray(np.ones((4, 8), "float32"))
    scale = ct.asarray(np.ones(8, "float32"))
    _, invrms = ct.rms_norm(x, scale, training=True)
    assert "dynamic_shapes" not in ct.last_plan().plan
    ct.rms_norm_backward(x, x, scale, invrms)
    assert "dynamic_shapes" not in ct.last_plan().plan
    with ct.Graph() as graph:
        image = graph.input((2, 8, 4, 4), "float16", layout="nhwc")
        y = graph.relu(graph.conv(image, graph.input((8, 8, 1, 1), "float16", layout="nhwc")))
    for algo in ("heuristic", "autotune", "engine 0"):
        text = graph.build(y, algo=algo, dynamic_shapes=True).describe()
        assert "not dynamic: dynamic graphs with conv_forward were not compared" in text


@pytest.mark.parametrize("name", ["conv", "conv_bias_activation", "matmul in float64", "layer_norm"])
def test_call_says_why_its_graph_is_static(name: str, fake: FakeCudnn) -> None:
    fake.engines = True
    x = ct.asarray(np.ones((4, 8), "float32"))
    image, filters = (ct.asarray(np.ones(shape, "float32")) for shape in ((2, 8, 4, 4), (8, 8, 1, 1)))
    wide = ct.asarray(np.ones((4, 4)))
    calls: dict[str, Callable[[], object]] = {
        "conv": lambda: ct.conv(image, filters),
        "conv_bias_activation": lambda: ct.conv_bias_activation(image, filters, filters[:1, :, :, :]),
        "matmul in float64": lambda: ct.matmul(wide, wide),
        "layer_norm": lambda: ct.layer_norm(x, x[0], x[0]),
    }
    calls[name]()
    plan = ct.last_plan()
    assert plan is not None
    assert "not dynamic: " in plan.describe()
    ct.config.dynamic_shapes = False
    calls[name]()
    plan = ct.last_plan()
    assert plan is not None
    assert "not dynamic: " not in plan.describe()


def test_kernel_caches_have_a_bound_and_belong_to_the_context() -> None:
    for inner in range(1, contexts.KERNEL_CACHES + 4):
        product(4, inner)
    assert len(caches()) == contexts.KERNEL_CACHES
    forget()
    assert len(caches()) == 0


def test_later_process_compiles_no_kernel_that_is_stored(fake: FakeCudnn, on_disk: Path) -> None:
    product(64)
    (file,) = (on_disk / "plans").iterdir()
    (entry,) = decode(file.read_bytes())
    assert isinstance(entry, StoredPlan)
    assert entry.key.startswith("kernels | cuDNN ")
    assert entry.text == b"[0]"
    written = file.stat().st_mtime_ns
    forget()
    made, asked = fake.compilations, fake.heuristic_queries
    for rows in (64, 7, 300):
        assert "dynamic_shapes" in product(rows)
    assert (fake.compilations, fake.heuristic_queries) == (made, asked)
    assert file.stat().st_mtime_ns == written  # nothing new
    product(64, 24)
    assert len(list((on_disk / "plans").iterdir())) == 2


def test_damaged_kernels_are_compiled_again(fake: FakeCudnn, on_disk: Path) -> None:
    product(64)
    (file,) = (on_disk / "plans").iterdir()
    (entry,) = decode(file.read_bytes())
    assert isinstance(entry, StoredPlan)
    changes: list[dict[str, Any]] = [{"text": b"nothing"}, {"facts": {}}, {"facts": {"first": 5}}]
    for change in changes:
        file.write_bytes(encode(entry._replace(**change)))
        forget()
        made = fake.compilations
        with pytest.warns(ct.CudnnWarning, match="a stored plan is ignored: its kernels cannot be used"):
            product(64)
        assert fake.compilations == made + 1, change


def test_built_graph_takes_the_argument_before_the_setting(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ct.config, "certify", "off")  # a comparison compiles each node

    def built(rows: int, dynamic_shapes: Any) -> str:
        with ct.Graph() as graph:
            y = graph.relu(graph.input((rows, 16), "float16") @ graph.input((16, 8), "float16"))
        function = graph.build(y, dynamic_shapes=dynamic_shapes)
        x, w = np.ones((rows, 16), "float16"), np.ones((16, 8), "float16")
        np.testing.assert_array_equal(function(ct.asarray(x), ct.asarray(w)).numpy(), 16)
        return function.describe()

    assert "dynamic_shapes" in built(64, None)
    made = fake.compilations
    assert "dynamic_shapes" in built(32, True)
    assert fake.compilations == made
    assert "dynamic_shapes" not in built(32, False)
    ct.config.dynamic_shapes = False
    assert "dynamic_shapes" not in built(16, None)
    assert "dynamic_shapes" in built(16, True)
    with pytest.raises(TypeError, match="dynamic_shapes"):
        built(16, "yes")


def test_keys_of_timed_and_stored_algorithms_have_the_setting() -> None:
    spec, weight = TensorSpec.packed((4, 8), "float32"), TensorSpec.packed((8,), "float32")
    problem = row_norm("rms_norm", {"x": spec, "scale": weight}, (None, None), 1e-5)
    here = contexts.current(streams.default_stream(0))
    static, dynamic = AlgoRequest("autotune"), AlgoRequest("autotune", dynamic_shapes=True)
    assert "dynamic_shapes" not in store_key(problem, here, static)  # entries of earlier versions stay valid
    assert "dynamic_shapes=True" in store_key(problem, here, dynamic)
    assert choice_of(problem, static) != choice_of(problem, dynamic)


def test_plans_and_choices_of_dynamic_graphs_are_not_stored(fake: FakeCudnn, on_disk: Path) -> None:
    fake.counts_kernels = False  # nor are kernels that cuDNN does not count
    product(64)
    assert not list(on_disk.rglob("*.plan_1"))
    forget()  # as another process
    made, asked = fake.compilations, fake.heuristic_queries
    assert "dynamic_shapes" in product(64)
    assert (fake.compilations, fake.heuristic_queries) == (made + 1, asked + 1)
    ct.config.dynamic_shapes = False
    assert "dynamic_shapes" not in product(64)
    with ct.record_plans() as recorded:
        ct.config.dynamic_shapes = True
        product(32)
    assert [request.graph.dynamic for request in recorded.requests.values()] == [True]
