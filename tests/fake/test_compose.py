"""Operations made of operations: their parts, and the memory between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.array_shapes import active
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops import _compose
from cudnn_ct.ops._compose import Composed, Part
from cudnn_ct.plans.base import NotChosen, SelectedPlan

from .host import Host

pytestmark = pytest.mark.usefixtures("fake")


def operands() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 4, 5), (6,), (6,))]


def placed() -> tuple[list[ct.DeviceArray], np.ndarray]:
    """Return operands on the device, and the expected result."""
    arrays = operands()
    return [*map(ct.asarray, arrays)], ct.reference.group_norm(*arrays, groups=3).y


def near(y: ct.DeviceArray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5)


def composed() -> Composed:
    """Return the plan of the last call."""
    plan = context.of_device(0).last_call.selected
    assert isinstance(plan, Composed)
    return plan


def parts_of(plan: Composed) -> list[Part]:
    return plan._parts


class Grown(SelectedPlan):
    """A selection that exchanges its plan in the first run for one that needs more workspace."""

    class Plan:
        def __init__(self, inner: Any) -> None:
            self._inner, self.workspace = inner, inner.workspace + 5000

        def run(self, ctx: Any, *arguments: Any) -> None:
            ctx.workspace(self.workspace)
            self._inner.run(ctx, *arguments)

        def describe(self) -> str:
            return "another plan"

    def run_first(self, context: Any, *arguments: Any, compare: bool) -> bool:
        if not isinstance(self.plan, self.Plan):
            self.plan = self.Plan(self.plan)
        return super().run_first(context, *arguments, compare=compare)


def test_a_call_begins_again_if_a_part_needs_more_workspace() -> None:
    given, expected = placed()
    ct.group_norm(*given, groups=3)
    plan = composed()
    before, parts = plan.plan.workspace, parts_of(plan)
    parts[-1] = parts[-1]._replace(selected=Grown(parts[-1].selected.plan))
    plan._join()
    context.of_device(0).last_call.fresh.append(True)
    near(ct.group_norm(*given, groups=3).y, expected)
    assert plan.plan.workspace > before + 4000
    assert "another plan" in plan.describe()
    near(ct.group_norm(*given, groups=3).y, expected)


def test_temporaries_do_not_overlap_the_workspace_of_parts() -> None:
    x, scale, bias = operands()
    ct.group_norm(*map(ct.asarray, (x, scale, bias)), groups=3)
    plan = composed()
    own = max(part.selected.plan.workspace for part in parts_of(plan))
    _, offsets, nbytes, _ = plan.plan._line
    spans = sorted(zip(offsets, [spec.size * 4 for spec in plan._temporaries], strict=True))
    assert spans[0][0] >= own
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= nbytes


def test_a_part_that_copies_its_operands_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def definition(problem: Any, parts: Any, **at: Any) -> None:
        assert active()
        ct.activation(at["x"][::-1], mode="relu", out=at["y"])

    operation = _compose.of_calls(definition)
    from cudnn_ct.ops.norm import group_norm

    forward = group_norm._FORWARD._replace(compose=operation)
    monkeypatch.setattr(group_norm, "_FORWARD", forward)
    with pytest.raises(ct.NotSupportedError, match="copies its operands"):
        ct.group_norm(*map(ct.asarray, operands()), groups=3)
    assert not active()


def test_operands_and_results_that_are_not_contiguous_are_copied() -> None:
    x, scale, bias = operands()
    expected = ct.reference.group_norm(x, scale, bias, groups=3).y
    given = ct.asarray(np.ascontiguousarray(x.transpose(3, 2, 1, 0))).transpose(3, 2, 1, 0)
    y = ct.empty((5, 4, 6, 2)).transpose(3, 2, 1, 0)
    out = (y, ct.empty((2, 3)), ct.empty((2, 3)))
    for _ in range(4):  # the last runs are not first ones
        ct.group_norm(given, ct.asarray(scale), ct.asarray(bias), groups=3, out=out)
        near(y, expected)


def test_a_misaligned_operand_is_computed() -> None:
    x, scale, bias = operands()
    expected = ct.reference.group_norm(x, scale, bias, groups=3).y
    moved = ct.asarray(np.concatenate([[0], x.ravel()]).astype(np.float32))[1:].reshape(x.shape)
    assert moved.pointer % 16
    y = ct.group_norm(moved, ct.asarray(scale), ct.asarray(bias), groups=3).y
    near(y, expected)


def test_a_part_that_fails_later_may_run_another_plan() -> None:
    given, expected = placed()
    ct.group_norm(*given, groups=3)
    plan = composed()
    chosen = parts_of(plan)[-1].selected
    working, chosen.plan = chosen.plan, NotChosen("a plan that cuDNN rejects")
    chosen.run_other = lambda error, ctx, *arguments: working.run(ctx, *arguments) is None
    plan._join()
    near(ct.group_norm(*given, groups=3).y, expected)


def test_a_composed_call_allocates_nothing_but_its_results(host: Host) -> None:
    given = [ct.asarray(one) for one in operands()]
    ct.group_norm(*given, groups=3)
    out = (ct.empty((2, 6, 4, 5)), ct.empty((2, 3)), ct.empty((2, 3)))
    host.calls.clear()
    ct.group_norm(*given, groups=3)
    new = host.calls.count("cuMemAllocFromPoolAsync")
    host.calls.clear()
    ct.group_norm(*given, groups=3, out=out)
    assert (new, host.calls.count("cuMemAllocFromPoolAsync")) == (2, 0)  # the statistics share one


def test_a_composed_call_is_captured(host: Host) -> None:
    given, expected = placed()
    captured = ct.capture(lambda *arrays: ct.group_norm(*arrays, groups=3).y)
    for _ in range(3):
        near(captured(*given), expected)
    assert len(host.launches) == 2


def test_a_composed_call_on_another_stream_waits_for_its_operands(host: Host) -> None:
    given, expected = placed()
    side = ct.Stream(host.new_stream(), 0, owner=streams._Own())
    for _ in range(3):
        y = ct.group_norm(*given, groups=3, stream=side).y
        assert y.home is side
        near(y, expected)
    assert any(entry[:2] == ("wait", side.handle) for entry in host.log)


def test_an_empty_batch_needs_no_part() -> None:
    parameters = [ct.zeros((6,), "float64"), ct.zeros((6,), "float64")]
    results = ct.group_norm(ct.zeros((0, 6, 4), "float64"), *parameters, groups=3)
    assert [one.shape for one in results] == [(0, 6, 4), (0, 3), (0, 3)]
