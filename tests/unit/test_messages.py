"""Messages of errors of users: the argument, the value that was given, and the expected values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.graph.recording import RecordedPlans

public: Any = ct


def enter(block: Any) -> None:
    with block:
        pass


IMAGES = (2, 3, 4, 4)
# Calls with the start of their errors.
REJECTED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: enter(public.record_plans(True)), TypeError, r"record_plans\(\) got 1 .*; write shapes_only="),
    (lambda: enter(public.record_plans(shape_only=True)), TypeError, r".* 'shape_only'; write shapes_only="),
    (
        lambda: enter(public.record_plans(shapes_only="x")),
        TypeError,
        "shapes_only must be True or False",
    ),
    (lambda: public.export_plans(3), TypeError, "path is not a path: got 3"),
    (lambda: public.import_plans(3.5), TypeError, "path is not a path: got 3.5"),
    (
        lambda: public.import_plans("plans.file", verify="no"),
        TypeError,
        "verify must be True or False: got",
    ),
    (lambda: public.export_algo_cache(None), TypeError, "path is not a path: got None"),
    (lambda: public.import_algo_cache(3), TypeError, "path is not a path: got 3"),
    (lambda: RecordedPlans().save(3), TypeError, "path is not a path: got 3"),  # type: ignore[arg-type]
    (lambda: ct.asarray([[1], [1, 2]]), ValueError, "obj is not an array: got list; NumPy: setting an array"),
    (
        lambda: public.spatial_transformer_backward(*[ct.zeros(IMAGES)] * 4),
        TypeError,
        r"spatial_transformer_backward\(\) got 4 positional arguments, expected 3; write out=",
    ),
    (
        lambda: public.RNN("lstm", 3, 4).split_params(ct.zeros(3), level=1),
        TypeError,
        r"RNN\.split_params\(\) got an unexpected keyword argument 'level'",
    ),
    (lambda: public.RNN("gru", 3, 4).from_torch(), TypeError, r"RNN\.from_torch\(\) missing 1 required"),
    (lambda: public.RNN("gru", 3, 4).backward_data(), TypeError, r"RNN\.backward_data\(\) missing "),
    (
        lambda: public.Graph().relu(),
        TypeError,
        r"Graph\.relu\(\) missing 1 required positional argument: 'x'",
    ),
    (lambda: public.Graph().matmul(), TypeError, r"Graph\.matmul\(\) missing 2 required"),
    (lambda: public.zeros(3).copy(1), TypeError, r"DeviceArray\.copy\(\) takes 1 positional argument"),
    (lambda: public.zeros(3).close(1), TypeError, r"DeviceArray\.close\(\) takes 1 positional argument"),
]


@pytest.mark.parametrize(("call", "error", "words"), REJECTED)
def test_errors_name_the_argument_and_its_value(
    call: Callable[[], object], error: type[Exception], words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with ct.record_plans(shapes_only=True), pytest.raises(error, match=f"^{words}"):
        call()
    assert not list(tmp_path.iterdir())
