"""Facts of a user's file are obeyed by every operation, by plans of others, and on shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import facts, testing
from cudnn_ct.errors import CudnnError
from cudnn_ct.facts import FactsError

pytestmark = pytest.mark.usefixtures("fake")
CALLS: dict[str, Callable[[ct.DeviceArray, ct.DeviceArray], object]] = {
    "softmax": lambda x, _: ct.softmax(x),
    "softmax_backward": lambda x, _: ct.softmax_backward(x, x),
    "activation": lambda x, _: ct.activation(x),
    "add": lambda x, _: ct.add(x, x),
    "reduce": lambda x, _: ct.reduce(x, axis=1),
    "lrn": lambda x, _: ct.lrn(x),
    "pool": lambda x, _: ct.pool(x, window=2),
    "batch_norm_training": lambda x, one: ct.batch_norm_training(x, one, one),
    "batch_norm_inference": lambda x, one: ct.batch_norm_inference(x, one, one, one, one),
    "instance_norm": lambda x, one: ct.instance_norm(x, one, one),
    "group_norm": lambda x, one: ct.group_norm(x, one, one, groups=2),
    "conv": lambda x, _: ct.conv(x, x[:, :, :3, :3]),
    "rms_norm of two dtypes": lambda x, _: ct.rms_norm(ct.zeros((64, 64), "float16"), ct.zeros((64,))),
}
OF_NAMES = {
    "batch_norm": ("batch_norm_training", "batch_norm_inference"),
    "instance_norm": ("instance_norm",),
    "resample": ("pool",),
    "rms_norm": ("rms_norm of two dtypes",),
}


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that adds a row to the facts, which says that something is blocked here."""

    def used(**row: Any) -> None:
        path = tmp_path / "facts.json"
        rows = [{"name": "mine", "when": [], "effect": "wrong", "message": "blocked here", **row}]
        path.write_text(json.dumps({"facts": rows}))
        monkeypatch.setattr(ct.config, "facts", str(path))
        facts.forget()

    yield used
    monkeypatch.undo()
    facts.forget()
    testing.reset()


def call(name: str) -> None:
    CALLS[name](ct.asarray(np.ones((2, 4, 8, 8), np.float32)), ct.asarray(np.ones(4, np.float32)))


@pytest.mark.parametrize("name", CALLS)
def test_fact_about_everything_rejects_every_operation(name: str, use: Any) -> None:
    call(name)
    testing.reset()
    use(kind="reject", operations=["all"])
    with pytest.raises(CudnnError, match=r"blocked here \(fact mine\)"):
        call(name)


@pytest.mark.parametrize(("operation", "name"), [(one, name) for one in OF_NAMES for name in OF_NAMES[one]])
def test_fact_about_an_operation_rejects_its_legacy_functions(operation: str, name: str, use: Any) -> None:
    use(kind="reject", operations=[operation])
    with pytest.raises(CudnnError, match="blocked here"):
        call(name)


def test_unknown_condition_is_an_error_of_the_file_on_shapes(use: Any) -> None:
    use(kind="reject", operations=["conv"], when=["no such condition"])
    with ct.record_plans(shapes_only=True), pytest.raises(FactsError, match="unknown condition"):
        ct.conv(ct.zeros((1, 8, 4, 4)), ct.zeros((8, 8, 1, 1)))


def test_plan_of_the_first_engine_is_not_taken_with_other_facts(use: Any) -> None:
    from cudnn_ct.graph import stored

    with ct.record_plans(shapes_only=True) as recorded:
        ct.matmul(ct.zeros((8, 8), "float16"), ct.zeros((8, 8), "float16"))
    (request,) = recorded.requests.values()

    class _Context:
        library = type("Library", (), {"build": "9.19"})

    def key() -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stored, "gpu_name", lambda _: "H200")
            return stored.plan_key(request._replace(order=(0,)), _Context())  # type: ignore[arg-type]

    before = key()
    use(kind="engine", operations=["resample"], engines=[0])
    assert key() != before
