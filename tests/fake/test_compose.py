"""Operations made of operations: their parts, and the memory between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.array_shapes import active
from cudnn_ct.ops import _compose
from cudnn_ct.ops._compose import Composed, _Part
from cudnn_ct.plans.base import SelectedPlan

from .cudnn import FakeCudnn


def operands() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 4, 5), (6,), (6,))]


def composed() -> Composed:
    """Return the plan of the last call."""
    plan = context.of_device(0).last_call.selected.plan
    assert isinstance(plan, Composed)
    return plan


def parts_of(plan: Composed) -> list[_Part]:
    return [step.plan for step in plan._steps.steps if isinstance(step.plan, _Part)]


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
        self.plan = self.Plan(self.plan)
        return super().run_first(context, *arguments, compare=compare)


def test_a_call_begins_again_if_a_part_needs_more_workspace(fake: FakeCudnn) -> None:
    x, scale, bias = operands()
    expected = ct.reference.group_norm(x, scale, bias, groups=3).y
    given = [ct.asarray(one) for one in (x, scale, bias)]
    ct.group_norm(*given, groups=3)
    plan = composed()
    before, part = plan.workspace, parts_of(plan)[-1]
    part._selected, part._fresh = Grown(part._selected.plan), True
    y = ct.group_norm(*given, groups=3).y
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert plan.workspace > before + 4000
    assert "another plan" in plan.describe()
    np.testing.assert_allclose(ct.group_norm(*given, groups=3).y.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_temporaries_do_not_overlap_the_workspace_of_parts(fake: FakeCudnn) -> None:
    x, scale, bias = operands()
    ct.group_norm(*map(ct.asarray, (x, scale, bias)), groups=3)
    plan = composed()
    own = max(part.workspace for part in parts_of(plan))
    _, offsets, nbytes, _ = plan._program._line
    spans = sorted(zip(offsets, [spec.size * 4 for spec in plan._steps.temporaries], strict=True))
    assert spans[0][0] >= own
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= nbytes


def test_a_part_that_copies_its_operands_is_rejected(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def definition(problem: Any, parts: Any, **at: Any) -> None:
        assert active()
        ct.activation(at["x"][::-1], mode="relu", out=at["y"])

    operation = _compose.of_calls(definition)
    from cudnn_ct.ops.norm import group_norm

    forward = group_norm._FORWARD._replace(implementations=(operation,))
    monkeypatch.setattr(group_norm, "_FORWARD", forward)
    with pytest.raises(ct.NotSupportedError, match="copies its operands"):
        ct.group_norm(*map(ct.asarray, operands()), groups=3)
    assert not active()
