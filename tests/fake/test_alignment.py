"""Operands at every start address within 16 bytes, on the fakes, which reject what ends a CUDA context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import Tensor
from tests.strategies import in_memory_of, own, shifted

from .conftest import forget
from .cudnn import FakeCudnn


def operands(offset: int) -> list[ct.DeviceArray]:
    """An image and filters, of which the image starts ``offset`` elements behind a boundary."""
    x, w = Tensor((2, 4, 5, 4), "float32").array(), Tensor((6, 2, 3, 2), "float32", seed=1).array()
    return [own(shifted(x, offset)), own(w)]


KEYWORDS = {"padding": (1, 2), "stride": (2, 1), "groups": 2}


@pytest.mark.usefixtures("only_engines")
@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
def test_conv_plan_of_misaligned_operands_takes_all_others(fake: FakeCudnn, algo: str) -> None:
    fake.engines = True
    plan = ct.conv_plan(*operands(1), **KEYWORDS, algo=algo)
    assert "misaligned operands copied to aligned memory" in plan.describe()
    expected = ct.reference.conv(*(array.numpy() for array in operands(0)), **KEYWORDS)
    for offset in (1, 3, 0, 4):
        np.testing.assert_array_equal(plan(*operands(offset)).numpy(), expected)
        out = own(shifted(np.full_like(expected, np.nan), 2))
        assert in_memory_of(plan(*operands(offset), out=out), out)
        np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.usefixtures("only_engines")
def test_conv_plan_of_misaligned_operands_scales_the_result_of_aligned_ones(fake: FakeCudnn) -> None:
    fake.engines = True
    expected = ct.reference.conv(*(array.numpy() for array in operands(0)), **KEYWORDS)
    out = ct.full(expected.shape, 4)
    plan = ct.conv_plan(*operands(1), **KEYWORDS, alpha=3, beta=0.5, out=own(shifted(out.numpy(), 1)))
    np.testing.assert_array_equal(plan(*operands(0), out=out).numpy(), 3 * expected + 2)


def test_softmax_of_misaligned_rows_takes_no_path_for_aligned_ones(fake: FakeCudnn) -> None:
    for offset in (0, 1):
        ct.softmax(own(shifted(np.zeros((2, 4000), np.float32), offset)))
    first, second = (args[2] for name, args in fake.calls if name == "cudnnSoftmaxForward")
    assert first != second  # the mode


def test_autotune_runs_no_engine_whose_copies_exceed_the_limit(fake: FakeCudnn) -> None:
    fake.engines, fake.engine_workspace, fake.second_engine = True, 100, 3
    x, scale, bias = (own(shifted(np.ones(shape, np.float16), 1)) for shape in ((16, 64), 64, 64))
    with pytest.raises(NotSupportedError, match="the limit is 150"):
        ct.layer_norm(x, scale, bias, algo="autotune", workspace_limit=150)
    assert "cudnnBackendExecute" not in dict(fake.calls)
    ct.layer_norm(x, scale, bias, algo="autotune")
    assert "cudnnBackendExecute" in dict(fake.calls)


@pytest.mark.usefixtures("only_engines")
def test_conv_plan_counts_the_copies_as_workspace(fake: FakeCudnn) -> None:
    fake.engines, fake.engine_workspace = True, 100
    plan = ct.conv_plan(*operands(1), **KEYWORDS)
    assert plan.workspace >= 100 + sum(array.nbytes for array in operands(0))
    with pytest.raises(NotSupportedError, match="the limit is 100"):
        ct.conv_plan(*operands(1), **KEYWORDS, workspace_limit=100)
    plan = ct.conv_plan(*operands(0), **KEYWORDS, workspace_limit=100)
    assert plan.workspace == 100
    with pytest.raises(ValueError, match="prepared for 16-byte aligned operands"):
        plan(*operands(1))


@pytest.mark.usefixtures("only_engines")
def test_conv_algorithms_lists_rows_for_misaligned_operands(fake: FakeCudnn) -> None:
    """The rows of both tables run on operands of either kind."""
    fake.engines = True
    expected = ct.reference.conv(*(array.numpy() for array in operands(0)), **KEYWORDS)
    for offset in (0, 1):
        rows = [row for row in ct.conv_algorithms(*operands(offset), **KEYWORDS) if not row.rejected]
        assert rows
        for row in rows:
            for other in (0, 1, 3):
                got = ct.conv(*operands(other), **KEYWORDS, algo=row)
                np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.usefixtures("only_engines")
def test_timed_choice_for_misaligned_operands_is_exported_and_imported(
    fake: FakeCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.engines = True
    monkeypatch.setattr(ct.config, "algo_cache", str(tmp_path / "algo_cache"))
    timed = ct.conv_plan(*operands(1), **KEYWORDS, algo="autotune")
    assert ct.export_algo_cache(tmp_path / "algo_cache.json") == 1
    monkeypatch.setattr(ct.config, "algo_cache", str(tmp_path / "other"))
    forget()
    assert ct.import_algo_cache(tmp_path / "algo_cache.json") == 1
    plan = ct.conv_plan(*operands(1), **KEYWORDS, algo="autotune")
    assert "as the cache file has it" in plan.describe()
    assert plan.candidate == timed.candidate
    assert np.isfinite(plan(*operands(1)).numpy()).all()


def test_conv_of_misaligned_operands_makes_no_copy_where_a_legacy_call_serves(fake: FakeCudnn) -> None:
    fake.engines = True
    plan = ct.conv_plan(*operands(1), padding=1, groups=2)
    assert plan.candidate.backend == "legacy"
    assert plan.workspace == 0
