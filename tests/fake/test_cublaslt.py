"""Products of matrices by cuBLASLt, on a fake library that reads layouts as the documentation has them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct import _cublaslt, _lib, context, testing
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_ct.ops.matmul import cublaslt
from cudnn_ct.shapes.matmul import matmul_problem
from tests.cublaslt_cases import check_product, product_cases
from tests.layers import LayerCase, compare
from tests.mixed import in_threads
from tests.strategies import own

from .cublaslt import FakeCublasLt, cublaslt_installed
from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .installed import cudnn_installed, forget

CONFIG = "config 12.9.3:a160.0.7"  # of the first algorithm of the fake


class SlowEngines(FakeCudnn):
    """Engines that take longer than the algorithms of cuBLASLt."""

    def cudnnBackendExecute(self, *args: Any) -> None:
        self.host.clock += 4.0
        super().cudnnBackendExecute(*args)


@pytest.fixture
def lt(host: Host) -> Iterator[FakeCublasLt]:
    with cublaslt_installed(host) as library:
        with cudnn_installed(host, SlowEngines) as cudnn:
            cudnn.costs = dict.fromkeys(("GEMM", "IMPLICIT_GEMM"), 4.0)
            library.cudnn = cudnn
            yield library
        cublaslt.forget()
        assert not library.objects, "native objects outlived the test"


def halves(*shapes: tuple[int, ...], dtype: str = "float16") -> list[ct.DeviceArray]:
    rng = np.random.default_rng(0)
    return [ct.asarray(rng.integers(-4, 5, shape), dtype) for shape in shapes]


def product(algo: Any = "heuristic", dtype: str = "float16", **options: Any) -> str:
    """Multiply matrices, check the result, and return the description of the plan."""
    a, b = halves((4, 8), (8, 5), dtype=dtype)
    got = ct.matmul(a, b, algo=algo, **options)
    np.testing.assert_array_equal(got.numpy(), a.numpy() @ b.numpy())
    return ct.last_plan().plan


# --- results -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
@settings(max_examples=300)
@given(case=product_cases())
def test_products_by_cublaslt_equal_the_reference(lt: FakeCublasLt, case: LayerCase) -> None:
    """Views, transposes, batches, factors, epilogues, scales and the largest magnitude."""
    if not check_product(case):
        return
    misaligned = "operands are not 16-byte aligned" in ct.last_plan().plan  # those of slices of a batch
    assert "chosen: cublaslt 0" in ct.last_plan().plan or misaligned


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
@pytest.mark.parametrize("bug", ["rows and columns", "transposition", "leading dimension", "operands"])
def test_comparison_with_the_reference_finds_planted_bugs(
    lt: FakeCublasLt, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    layout_of, plan = cublaslt._layout_of, cublaslt.CublasLtPlan._take

    def broken(spec: ct.TensorSpec) -> Any:
        made = layout_of(spec)
        if bug == "rows and columns":
            return made._replace(
                rows=made.columns, columns=made.rows, leading=max(made.leading, made.columns)
            )
        if bug == "transposition":
            return made._replace(by_columns=False)
        return made._replace(leading=made.rows) if bug == "leading dimension" else made

    def swapped(self: Any, given: tuple[int, ...]) -> None:
        if bug == "operands":
            self._places |= {"a": self._places["b"], "b": self._places["a"]}
        plan(self, given)

    monkeypatch.setattr(cublaslt, "_layout_of", broken)
    monkeypatch.setattr(cublaslt.CublasLtPlan, "_take", swapped)
    found = 0
    rng = np.random.default_rng(1)
    for batch in ((), (2,)):
        a, b = (rng.integers(-4, 5, (*batch, rows, 9)).astype(np.float32) for rows in (4, 6))
        a, b = own(a)[..., :5], own(b)[..., :5].transpose(*range(len(batch)), -1, -2)
        try:
            got = ct.matmul(a, b, algo="cublaslt 0").numpy()
        except (AssertionError, CudnnError):
            found += 1
            continue
        found += "chosen: cublaslt" not in ct.last_plan().plan or not np.array_equal(
            got, a.numpy() @ b.numpy()
        )
    assert found == 2


@pytest.mark.parametrize(
    ("dtype", "precision", "arithmetic"),
    [
        ("float16", None, _cublaslt.COMPUTE_32F),
        ("float32", None, _cublaslt.COMPUTE_32F_FAST_TF32),
        ("float32", "tf32", _cublaslt.COMPUTE_32F_FAST_TF32),
        ("float32", "float32", _cublaslt.COMPUTE_32F),
        ("float64", None, _cublaslt.COMPUTE_64F),
    ],
)
def test_arithmetic_is_that_of_the_precision(
    lt: FakeCublasLt, dtype: str, precision: Any, arithmetic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = halves((4, 8), (8, 5), dtype=dtype)
    ct.matmul(a, b, precision=precision, algo="cublaslt 0")
    if dtype == "float32" and precision is None:
        monkeypatch.setattr(ct.config, "allow_tf32", False)
        ct.matmul(a, b, algo="cublaslt 0")
        assert lt.arithmetic.pop() == _cublaslt.COMPUTE_32F
    assert lt.arithmetic == [arithmetic]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", None])
def test_float8_result_takes_a_bias_of_half_precision(lt: FakeCublasLt, dtype: str | None) -> None:
    rng = np.random.default_rng(0)
    a, b = (ct.asarray(rng.integers(-1, 2, (32, 16)), "float8_e4m3") for _ in "ab")
    bias = None if dtype is None else ct.asarray(rng.integers(-4, 5, 32), dtype)
    y, _ = ct.scaled_matmul(a, b.T, bias=bias, out_dtype="float8_e4m3", algo="cublaslt 0")
    assert "chosen: cublaslt 0" in ct.last_plan().plan
    want = a.numpy().astype(int) @ b.numpy().T.astype(int)
    want = want if bias is None else want + bias.numpy().astype(int)
    exact = np.abs(want) <= 16  # with three bits
    np.testing.assert_array_equal(y.numpy().astype(np.float32)[exact], want[exact])
    assert exact.any()


def test_results_by_columns_and_overlapping_rows_are_left_to_cudnn() -> None:
    packed = ct.TensorSpec.packed
    problem = matmul_problem({"a": packed((1, 4, 8)), "b": packed((1, 8, 5))}, (None,), None, 1, None, None)
    assert cublaslt.why_not(problem) == ""
    by_columns = problem.y._replace(strides=(20, 1, 4))
    overlapping = problem.a._replace(strides=(32, 4, 1))
    for wrong in ({"y": by_columns}, {"residual": by_columns}, {"a": overlapping}):
        assert "strides are not those of matrices" in cublaslt.why_not(problem._replace(**wrong))


# --- choice ------------------------------------------------------------------------------------------------


def test_heuristic_choice_remains_an_engine(lt: FakeCublasLt) -> None:
    assert "graph engine 0" in product()
    assert not lt.calls


def test_fact_puts_an_algorithm_before_engines(lt: FakeCublasLt, plant: Any) -> None:
    plant(
        **{"kind": "first", "operations": ["matmul"], "when": ["half precision"], "order": ["cublaslt 1"]},
        **{"effect": "slow", "message": "engines are slower"},
    )
    assert "chosen: cublaslt 1" in product()
    assert "chosen: graph engine 0" in product(dtype="float32")


@pytest.mark.usefixtures("on_disk")
def test_autotune_selects_the_fastest_algorithm_and_the_store_keeps_it(lt: FakeCublasLt) -> None:
    lt.costs = (1.0, 0.25, 0.5)
    a, b, bias = halves((4, 8), (8, 5), (5,))
    want = np.maximum(a.numpy() @ b.numpy() + bias.numpy(), 0)
    for how in ("timed", "as the cache file has it"):
        got = ct.matmul(a, b, bias=bias, activation="relu", algo="autotune")
        np.testing.assert_array_equal(got.numpy(), want)
        assert "cublaslt 1 config 12.9.3:a161.0.7" in ct.last_plan().plan
        assert how in ct.last_plan().plan
        queries = lt.calls["MatmulAlgoGetHeuristic"]
        forget()
    assert queries == 1  # the stored one needs none


@pytest.mark.usefixtures("on_disk")
def test_stored_algorithm_of_another_version_is_not_used(lt: FakeCublasLt) -> None:
    product("autotune")
    forget()
    lt.version = 130100
    plan = product("autotune")
    assert "chosen: graph engine 0" in plan
    assert "is not of the loaded cuBLASLt 13.1.0" in plan


def test_autotune_without_engines_times_no_algorithm(
    lt: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ct.config, "autotune_max_engines", 0)
    product("autotune")
    assert not lt.calls


def test_autotune_rejects_an_algorithm_with_other_results(lt: FakeCublasLt) -> None:
    lt.wrong = frozenset({0, 1, 2})
    a, b = halves((4, 8), (8, 5))
    got = ct.matmul(a, b, activation="relu", algo="autotune")
    np.testing.assert_array_equal(got.numpy(), np.maximum(a.numpy() @ b.numpy(), 0))
    assert "graph engine 0" in ct.last_plan().plan


def test_online_calls_find_the_fastest_algorithm(lt: FakeCublasLt) -> None:
    assert "cublaslt 0" in [product("online") for _ in range(12)][-1]


@pytest.mark.parametrize("name", ["cublaslt 0", f"cublaslt 0 {CONFIG}"])
def test_algorithm_is_selected_by_its_name(lt: FakeCublasLt, name: str) -> None:
    assert f"chosen: cublaslt 0 {CONFIG}" in product(name)


def test_candidate_of_a_plan_selects_the_algorithm(lt: FakeCublasLt) -> None:
    product("cublaslt 1")
    product(ct.last_plan().candidate)
    assert lt.ran == [1, 1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cublaslt 7", "cuBLASLt has 3 algorithms"),
        (f"cublaslt 0 {CONFIG}.1", "CUBLAS_STATUS_INVALID_VALUE"),
        ("cublaslt 0 config 11.0.0:a160", "is not of the loaded cuBLASLt 12.9.3"),
    ],
)
def test_name_of_an_unknown_algorithm_falls_back(lt: FakeCublasLt, name: str, reason: str) -> None:
    with pytest.warns(ct.CudnnWarning, match=f"fell back to graph engine 0 .*{reason}"):
        product(name)


@pytest.mark.parametrize(
    "name",
    [
        "cublaslt",
        "cublaslt x",
        "cublaslt 0 config x",
        "cublaslt 0 knobs 1=2",
        "cublaslt 0\n",
        f"cublaslt {'9' * 5000}",
    ],
)
def test_malformed_name_is_an_error(lt: FakeCublasLt, name: str) -> None:
    with pytest.raises(ValueError, match="algo is unknown"):
        product(name)


def test_other_operations_have_no_such_algorithms(lt: FakeCublasLt) -> None:
    with pytest.raises(ValueError, match="algo is unknown"):
        ct.layer_norm(ct.zeros((2, 8)), ct.zeros(8), algo="cublaslt 0")


def why(**keywords: Any) -> str:
    """Return why cuBLASLt does not compute a product, which falls back to an engine."""
    shapes = keywords.pop("shapes", ((32, 16), (16, 16)))
    dtype = keywords.pop("dtype", "float16")
    operation = ct.scaled_matmul if dtype.startswith("float8") else ct.matmul
    a, b = halves(*shapes, dtype=dtype)
    if operation is ct.scaled_matmul and keywords.pop("columns", True):
        b = own(np.asarray(b.numpy()).T.copy()).T
    with pytest.warns(ct.CudnnWarning) as warned:
        operation(a, b, algo="cublaslt 0", **keywords)
    return str(warned[0].message)


def test_products_that_cublaslt_does_not_define_are_left_to_cudnn(lt: FakeCublasLt) -> None:
    bias = ct.zeros(16)
    assert "its epilogues do not have gelu" in why(activation="gelu")
    assert "its epilogues do not have silu" in why(activation="silu")
    assert "the bias is float32: expected float16" in why(bias=bias)
    assert "products of int8" in why(dtype="int8")
    assert "float64 has no epilogue" in why(dtype="float64", activation="relu")
    assert "without tensor cores" in why(precision="float32")
    eights: dict[str, Any] = {"dtype": "float8_e4m3"}
    assert "need a float8 result" in why(**eights, amax=True)
    assert "need a float8 result" in why(**eights, scale=ct.full((1,), 2.0))
    assert "expected none" in why(**eights, bias=bias, out_dtype="float32")
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in why(**eights, columns=False)
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in why(dtype="float8_e5m2")
    residual = ct.zeros((32, 16), "float8_e4m3")
    assert "have no residual" in why(**eights, residual=residual, out_dtype="float8_e4m3")


def test_misaligned_operands_are_left_to_cudnn(lt: FakeCublasLt) -> None:
    whole, b = ct.zeros((4 * 8 + 1,), "float16"), ct.zeros((8, 8), "float16")
    a = whole[1:].reshape(4, 8)
    with pytest.warns(ct.CudnnWarning, match="operands are not 16-byte aligned"):
        ct.matmul(a, b, algo="cublaslt 0")


def test_cudnn_without_cublaslt_has_no_such_candidates(fake: FakeCudnn) -> None:
    with pytest.warns(ct.CudnnWarning, match=r"cuDNN 9\.19\.0 uses no libcublasLt"):
        product("cublaslt 0")
    assert "cublaslt" not in product("autotune")


@pytest.mark.parametrize("function", ["MatmulAlgoCheck", "GetVersion"])
def test_library_without_a_function_has_no_such_candidates(lt: FakeCublasLt, function: str) -> None:
    lookup = lt.lookup
    incomplete = mock.Mock(side_effect=lambda name: None if name == f"cublasLt{function}" else lookup(name))
    with mock.patch.object(_cublaslt, "lookup_of", return_value=incomplete):
        assert "chosen: graph engine 0" in product("autotune")
        with pytest.warns(ct.CudnnWarning, match=f"libcublasLt has no cublasLt{function}"):
            product("cublaslt 0")


def test_cublaslt_computes_what_no_engine_does(lt: FakeCublasLt) -> None:
    lt.cudnn.fail = {"cudnnBackendFinalize": 3000}
    assert "chosen: cublaslt 0" in product()


# --- limits ------------------------------------------------------------------------------------------------


def test_preferences_promise_order_alignment_and_workspace(lt: FakeCublasLt) -> None:
    a, b = halves((3, 5, 7), (3, 7, 3))
    ct.matmul(a, b, algo="autotune", workspace_limit=300)
    wanted = lt.preferred
    assert wanted[3] == _cublaslt.REDUCTION_COMPUTE_TYPE
    assert wanted[1] == 300
    assert [wanted[code] for code in (5, 6, 7, 8)] == [2, 2, 2, 2]  # matrices of 42, 70 and 30 bytes
    ct.matmul(*halves((5, 8), (8, 3)), algo="cublaslt 0")
    assert [lt.preferred[code] for code in (5, 6, 7, 8)] == [16] * 4
    assert lt.preferred[1] == cublaslt.MAX_WORKSPACE


@pytest.mark.parametrize(("limit", "number"), [(None, 2), (300, 1), (0, 0)])
def test_workspace_limit_excludes_algorithms(lt: FakeCublasLt, limit: int | None, number: int) -> None:
    lt.costs = (1.0, 0.5, 0.25)
    assert f"cublaslt {number}" in product("autotune", workspace_limit=limit)


def test_deterministic_calls_may_use_cublaslt(lt: FakeCublasLt) -> None:
    assert "cublaslt 0" in product("autotune", deterministic=True)


def test_rejected_run_uses_another_algorithm(lt: FakeCublasLt) -> None:
    lt.fails_in_runs = frozenset({0})
    with pytest.warns(ct.CudnnWarning, match="fell back to graph engine 0"):
        product("cublaslt 0")


@pytest.mark.parametrize("name", [name for name in _cublaslt._FUNCTIONS if "Destroy" not in name])
@pytest.mark.parametrize("status", [1, 3, 7, 13, 14, 15])
def test_failing_call_raises_or_another_candidate_runs(lt: FakeCublasLt, name: str, status: int) -> None:
    a, b, bias = halves((2, 4, 8), (2, 8, 5), (5,))
    want = a.numpy() @ b.numpy() + bias.numpy()
    lt.fail = {name: status}
    for algo in ("cublaslt 0", "autotune"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ct.CudnnWarning)
                got = ct.matmul(a, b, bias=bias, algo=algo).numpy()
        except CudnnError as error:
            assert error.function == f"cublasLt{name}"
            assert "CUBLAS_STATUS_" in str(error)
        else:
            np.testing.assert_array_equal(got, want)
    lt.fail = {}
    np.testing.assert_array_equal(ct.matmul(a, b, bias=bias, algo="autotune").numpy(), want)


def test_objects_that_cannot_be_destroyed_warn(lt: FakeCublasLt) -> None:
    product("cublaslt 0")
    lt.fail = {"MatmulDescDestroy": 14}
    message = "cublasLtMatmulDescDestroy returned CUBLAS_STATUS_INTERNAL_ERROR"
    with pytest.warns(ct.CudnnWarning, match=message):
        testing.reset()
    lt.fail = {}
    leaked = [address for address, one in lt.objects.items() if one["kind"] == "MatmulDesc"]
    for address in leaked:
        del lt.objects[address]


# --- replays, captures, threads ----------------------------------------------------------------------------


def test_calls_are_replayed_with_the_present_operands(lt: FakeCublasLt, host: Host) -> None:
    a, b, bias, y = *halves((4, 8), (8, 5), (5,)), ct.zeros((4, 5), "float16")
    with testing.replay_after(2):
        for seed in range(6):
            values = np.random.default_rng(seed).integers(-4, 5, (4, 8)).astype(np.float16)
            ct.transform(ct.asarray(values), out=a)
            got = ct.matmul(a, b, bias=bias, algo="cublaslt 1", out=y)
            np.testing.assert_array_equal(got.numpy(), values @ b.numpy() + bias.numpy())
    assert "cuGraphLaunch" in host.calls


def test_calls_with_other_pointers_set_them_again(lt: FakeCublasLt) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, b, bias = (ct.asarray(rng.integers(-4, 5, shape), "float16") for shape in ((4, 8), (8, 5), (5,)))
        got = ct.matmul(a, b, bias=bias, algo="cublaslt 0")
        np.testing.assert_array_equal(got.numpy(), a.numpy() @ b.numpy() + bias.numpy())
    assert lt.calls["MatmulDescCreate"] == 2  # for the heuristics, and the plan


def test_captured_function_runs_cublaslt(lt: FakeCublasLt) -> None:
    a, b = halves((4, 8), (8, 5))
    captured = ct.capture(lambda x: ct.matmul(x, b, activation="gelu_tanh", algo="cublaslt 1"))
    for _ in range(3):
        got = captured(a)
        compare(got, ct.reference.matmul(a.numpy(), b.numpy(), activation="gelu_tanh"))


def test_foreign_arrays_and_their_memory_are_used(lt: FakeCublasLt, host: Host) -> None:
    rng = np.random.default_rng(0)
    a, b, y = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 8), (8, 5), (4, 5)))
    out = ForeignArray(host, y)
    ct.matmul(ForeignArray(host, a), ForeignArray(host, b), out=out, algo="cublaslt 0")
    np.testing.assert_array_equal(out.numpy(), a @ b)
    assert "copied" not in ct.last_plan().plan


def test_each_device_has_its_own_handle(lt: FakeCublasLt) -> None:
    for device in (0, 1, 0):
        with ct.use(device=device):
            product("cublaslt 0")
    assert lt.calls["Create"] == 2


def test_autotuning_does_without_a_handle_for_which_memory_is_short(lt: FakeCublasLt) -> None:
    lt.fail["Create"] = 3
    assert "cublaslt" not in product("autotune")
    assert lt.calls["Create"] > 0


def test_handle_of_a_thread_that_ended_serves_another_thread(lt: FakeCublasLt) -> None:
    for _ in range(3):
        in_threads(1, lambda _: product("cublaslt 0"))
        gc.collect()
    assert lt.calls["Create"] == 1
    assert not lt.calls["Destroy"]


def test_thread_whose_idle_handle_another_thread_took_creates_one(
    lt: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken(list[Any]):
        def __bool__(self) -> bool:
            return True

    library = _cublaslt.cublaslt_of(_lib.load())
    monkeypatch.setattr(cublaslt, "_idle", {(library, 0): Taken()})
    product("cublaslt 0")
    testing.reset()
    gc.collect()
    cublaslt.forget()


def test_plan_rejects_factors_and_misaligned_pointers(lt: FakeCublasLt) -> None:
    a, b = halves((1, 4, 8), (1, 8, 5))
    here = context.current(streams.default_stream(0))
    problem = matmul_problem({"a": a.spec, "b": b.spec}, (None,), None, 1, None, None)
    library = _cublaslt.cublaslt_of(_lib.load())
    assert library is not None
    (row,) = cublaslt._usable(problem, here, 1)
    plan = cublaslt.CublasLtPlan(cublaslt._Product(library, problem), cublaslt._handle(library, here), row)
    with pytest.raises(NotSupportedError, match="cannot scale: got alpha 2"):
        plan.run(here, (0, 0, 0), 2.0, 0.0)
    with pytest.raises(CudnnError, match="pointer of b is misaligned: got 0x8"):
        plan.run(here, (0, 8, 0))
    del plan
    gc.collect()


def test_call_on_shapes_needs_no_library(lt: FakeCublasLt) -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        y = ct.matmul(ct.zeros((4, 8), "float16"), ct.zeros((8, 5), "float16"), algo="cublaslt 0")
    assert y.shape == (4, 5)
    assert not recorded.requests
    assert not lt.calls
