"""Products of matrices by cuBLASLt on a GPU, against the reference and PyTorch in float64."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import cudnn_ct as ct
from cudnn_ct import _cublaslt, _lib
from tests.cublaslt_cases import check_product, product_cases
from tests.layers import LayerCase, compare

torch = pytest.importorskip("torch")
functional = torch.nn.functional

EXAMPLES = 300
GELU = 2e-3  # of a float32 result, whose tanh may be that of the hardware


@pytest.fixture(autouse=True)
def _library() -> None:
    if _cublaslt.cublaslt_of(_lib.load()) is None:
        pytest.skip("this cuDNN uses no libcublasLt")


def has_float8() -> bool:
    return bool(torch.cuda.get_device_capability() >= (8, 9))


def chosen() -> str:
    described = ct.last_plan()
    assert described is not None
    return described.plan


def test_drawn_products_equal_the_reference() -> None:
    """Odd sizes, views, transposes, batches, factors, epilogues and float8; the seed is printed."""
    start, ran = random.SystemRandom().randrange(2**32), Counter[str]()

    @seed(start)
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=product_cases(longest=70))
    def check(case: LayerCase) -> None:
        if case.operation == "scaled_matmul" and not has_float8():
            return
        tolerance = GELU if case.keywords.get("activation") == "gelu_tanh" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ct.CudnnWarning)
            if not check_product(case, tolerance=tolerance):
                ran["float32 with GELU: not supported"] += 1
                return
        own = "chosen: cublaslt" in chosen()
        kind = str(case.operands[0] and case.operands[0].dtype)
        reason = next((line for line in chosen().splitlines() if "fallback" in line), "")
        ran[f"{kind} {'by cuBLASLt' if own else reason.partition(' [')[0].strip()}"] += 1

    print(f"\nseed {start}")
    try:
        check()
    finally:
        for what, count in sorted(ran.items()):
            print(f"{count:5}  {what}")
    assert sum(count for what, count in ran.items() if "by cuBLASLt" in what) > sum(ran.values()) / 2


SHAPES = {
    "odd": ((257, 129), (129, 513)),
    "batched": ((5, 65, 96), (5, 96, 40)),
    "shared weights": ((7, 33, 64), (64, 72)),
    "shared images": ((1, 64, 128), (6, 128, 48)),
    "long sums": ((16, 16384), (16384, 24)),
    "a row": ((1, 1000), (1000, 333)),
    "a column": ((512, 256), (256, 1)),
}
ERRORS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-3, "float64": 1e-12}


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_algorithm_equals_pytorch_in_float64(name: str, dtype: str, place: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(len(name))
    make = getattr(torch, dtype)
    for transposed in (False, True):
        a, b = (
            torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64).to(make)
            for shape in SHAPES[name]
        )
        if transposed:
            b = b.mT.contiguous().mT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ct.CudnnWarning)
            got = torch.from_dlpack(ct.matmul(a, b, algo=f"cublaslt {place}"))
        if "chosen: cublaslt" not in chosen():
            assert place > 0 or "not 16-byte aligned" in chosen(), chosen()
            continue
        want = a.double() @ b.double()
        error = ((got.double() - want).abs().max() / want.abs().max()).item()
        assert error < ERRORS[dtype], f"{chosen()}: {error}"


def test_float32_without_tf32_is_ieee() -> None:
    a, b = torch.randn(300, 500, device="cuda"), torch.randn(500, 200, device="cuda")
    got = torch.from_dlpack(ct.matmul(a, b, precision="float32", algo="cublaslt 0"))
    assert "chosen: cublaslt" in chosen()
    want = a.double() @ b.double()
    assert (got.double() - want).abs().max() / want.abs().max() < 2e-6


@pytest.mark.parametrize("algo", ["autotune", "online"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh"])
def test_tuned_products_are_right(activation: Any, algo: str) -> None:
    a, b, bias = (torch.randn(shape, device="cuda").half() for shape in ((512, 768), (768, 1024), (1024,)))
    want = torch.addmm(bias.double(), a.double(), b.double())
    functions: dict[Any, Callable[[Any], Any]] = {
        "relu": torch.relu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    want = functions.get(activation, lambda x: x)(want)
    for _ in range(60 if algo == "online" else 2):
        got = torch.from_dlpack(ct.matmul(a, b, bias=bias, activation=activation, algo=algo))
    assert (got.double() - want).abs().max() / want.abs().max() < 2e-3
    print(f"\n{activation} {algo}: {chosen().splitlines()[0]}")


@pytest.mark.parametrize("activation", [None, "relu"])
def test_nan_and_infinities_are_those_of_the_engine(activation: Any) -> None:
    a, b = np.zeros((64, 32), np.float16), np.ones((32, 48), np.float16)
    a[3, 5], a[9, 0], a[11, 2] = np.nan, np.inf, -np.inf
    a, b = ct.asarray(a), ct.asarray(b)
    engine = ct.matmul(a, b, activation=activation).numpy()
    got = ct.matmul(a, b, activation=activation, algo="cublaslt 0").numpy()
    assert "chosen: cublaslt" in chosen()
    np.testing.assert_array_equal(got, engine)


def test_deterministic_products_have_the_same_bits() -> None:
    a, b = (torch.randn(shape, device="cuda").half() for shape in ((64, 16384), (16384, 64)))
    runs = {ct.matmul(a, b, algo="cublaslt 0", deterministic=True).numpy().tobytes() for _ in range(50)}
    assert len(runs) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_captured_and_replayed_products_equal_calls(dtype: str) -> None:
    a, b, bias = (ct.asarray(np.random.default_rng(0).standard_normal(shape), dtype) for shape in (
        (64, 96), (96, 80), (80,)
    ))  # fmt: skip
    keywords: dict[str, Any] = {"bias": bias, "activation": "relu", "algo": "cublaslt 0"}
    want = ct.matmul(a, b, **keywords).numpy()
    assert "chosen: cublaslt" in chosen()
    captured, out = ct.capture(lambda x: ct.matmul(x, b, **keywords)), ct.zeros(want.shape, dtype)
    for _ in range(4):
        compare(captured(a), want, exact=True)
        compare(ct.matmul(a, b, out=out, **keywords), want, exact=True)
    y = torch.zeros(want.shape, device="cuda", dtype=getattr(torch, dtype))
    a, stream, graph = torch.from_dlpack(a), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        ct.matmul(a, b, out=y, stream=stream, **keywords)  # makes the workspace of this stream
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        ct.matmul(a, b, out=y, stream=stream, **keywords)
    y.zero_()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    compare(ct.asarray(y), want, exact=True)
