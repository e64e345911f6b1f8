"""Algorithms whose error exceeds the bound of a precision."""

from __future__ import annotations

import pytest

import cudnn_ct as ct
from cudnn_ct import Candidate, CudnnWarning, NotSupportedError

from .cudnn import FakeCudnn
from .test_algorithms import GUESS, TIME
from .test_candidates import call, chosen

WINOGRAD = "winograd_nonfused"
ABOVE = "error above the bound of precision float32"
DIRECTIONS = ("forward", "backward_data", "backward_filter")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("policy", [GUESS, TIME])
@pytest.mark.parametrize(
    ("window", "precision", "dtype", "within"),
    [
        ((5, 5), "float32", "float32", False),
        ((1, 5), "float32", "float32", False),
        ((3, 3), "float32", "float32", True),
        ((5, 5), "tf32", "float32", True),
        ((5, 5), None, "float16", False),
        ((5, 5), None, "bfloat16", True),
        ((5, 5), "as_input", "float16", True),
    ],
)
def test_policies_take_winograd_only_within_the_bound(
    fake: FakeCudnn,
    direction: str,
    policy: str,
    window: tuple[int, ...],
    precision: str | None,
    dtype: str,
    within: bool,
) -> None:
    fake.also_offered = [WINOGRAD.upper()]
    fake.costs = dict.fromkeys(("GEMM", "IMPLICIT_GEMM", "ALGO_0", "ALGO_1"), 9.0)
    algorithm = chosen(direction, window, dtype=dtype, precision=precision, algo=policy)
    assert (algorithm == WINOGRAD) == within


def test_named_algorithm_is_replaced_with_a_warning_when_its_error_is_above_the_bound(
    fake: FakeCudnn,
) -> None:
    fake.also_offered = [WINOGRAD.upper()]
    first, second, _ = call("forward", (5, 5))
    named = {"algo": "winograd_non_fused"}
    with pytest.warns(CudnnWarning, match=ABOVE):
        plan = ct.conv_plan(first, second, precision="float32", **named)
    assert plan.candidate.algorithm == "implicit_gemm"
    assert plan.fallback_reason.startswith(ABOVE)
    with pytest.raises(NotSupportedError, match=ABOVE):
        ct.conv(first, second, precision="float32", strict=True, **named)
    assert chosen("forward", (5, 5), precision="tf32", strict=True, **named) == WINOGRAD


@pytest.mark.parametrize(
    ("direction", "dtype", "backend", "algorithm", "above"),
    [
        ("forward", "float32", "legacy", WINOGRAD, True),
        ("backward_data", "float32", "legacy", WINOGRAD, True),
        ("backward_filter", "float32", "legacy", WINOGRAD, True),
        ("forward", "float32", "graph", "engine 6", True),
        ("backward_data", "float32", "graph", "engine 7 knobs 2=1", True),
        ("backward_filter", "float32", "graph", "engine 17", True),
        ("backward_filter", "bfloat16", "graph", "engine 47 knobs 0=17,2=1", True),
        ("backward_filter", "bfloat16", "graph", "engine 47 knobs 0=16,2=1", False),
        ("backward_filter", "float32", "graph", "engine 47 knobs 0=17,2=1", False),
        ("backward_filter", "float16", "graph", "engine 61 knobs 2=1", True),
        ("backward_filter", "bfloat16", "graph", "engine 61 knobs 2=1", False),
    ],
)
def test_candidate_of_the_caller_is_rejected_when_its_error_is_above_the_bound(
    fake: FakeCudnn, direction: str, dtype: str, backend: str, algorithm: str, above: bool
) -> None:
    row = Candidate(backend, algorithm, "fma", 0, True)
    precision = "float32" if dtype == "float32" else None
    with pytest.raises(NotSupportedError) as caught:  # the fake has no graphs
        chosen(direction, (5, 5), dtype=dtype, precision=precision, algo=row)
    assert (ABOVE in str(caught.value)) == above


@pytest.mark.parametrize(
    ("layout", "window", "packed"),
    [
        ("nchw", (4, 4), ()),
        ("nchw", (5, 5), (("x", "nhwc"), ("w", "nhwc"), ("y", "nhwc"))),
        ("nhwc", (5, 5), ()),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_algo_0_runs_on_copies_in_nhwc_when_it_would_add_many_sums_in_half_precision(
    fake: FakeCudnn, dtype: str, layout: str, window: tuple[int, ...], packed: tuple[tuple[str, str], ...]
) -> None:
    first, second, shape = call("backward_data", window, dtype, layout)
    row = ct.conv_plan(first, second, shape, direction="backward_data", algo="none").candidate
    assert (row.algorithm, row.relayout) == ("algo_0", packed)
    if packed:
        in_place = row._replace(relayout=(), problem=None)
        with pytest.raises(NotSupportedError, match=ABOVE):
            chosen("backward_data", window, dtype=dtype, layout=layout, algo=in_place)


def test_heuristic_choice_replaces_a_name_when_none_is_rejected_as_well(fake: FakeCudnn) -> None:
    fake.refused = {"ALGO_0"}
    with pytest.warns(CudnnWarning, match="fell back"):
        assert chosen("backward_data", (3, 3), algo="none") == "algo_1"
    with pytest.raises(NotSupportedError):
        chosen("backward_data", (3, 3), algo="none", strict=True)
