"""Operands at every start address within 16 bytes, on the fakes, which reject what ends a CUDA context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.alignment import EVEN, UNEVEN, conv_calls, norm_calls, own, shifted, sweep
from tests.layers import LayerCase, Place, Tensor, check_layer, compare
from tests.properties import in_memory_of

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host

NORMS = sorted(norm_calls((2, 3, 2, 2), "float32"))


def places(host: Host) -> list[Place]:
    return [own, lambda array: ForeignArray(host, array)]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc"), ("float64", "nchw")])
def test_batch_norm_takes_each_operand_at_each_offset(
    fake: FakeCudnn, host: Host, name: str, dtype: str, layout: str
) -> None:
    case = norm_calls((2, 4, 2, 1), dtype, layout)[name]
    for place in places(host):
        sweep(case, place, check_layer)


def test_batch_norm_inference_gives_aligned_parts_to_cudnn_when_the_batch_is_too_large(
    fake: FakeCudnn,
) -> None:
    """A batch of 65,536 images and more takes several calls, each of which starts within x."""
    x = np.random.default_rng(0).standard_normal((65_537, 1, 1, 3)).astype(np.float16)
    x = np.concatenate([x, -x], axis=1)
    ones = np.ones(2, np.float32)
    got = ct.batch_norm_inference(own(x), *map(own, (ones, ones, ones, ones)))
    calls = [name for name in fake.names() if name == "cudnnBatchNormalizationForwardInference"]
    assert len(calls) == 2
    compare(got, ct.reference.batch_norm_inference(x, ones, ones, ones, ones))


@pytest.mark.parametrize("offset", range(8))
def test_shifted_arrays_start_behind_a_boundary(fake: FakeCudnn, host: Host, offset: int) -> None:
    """The tests of this file depend on it."""
    array = norm_calls((2, 3, 2, 2), "float16")["training"].operands[0].array()
    for place in places(host):
        assert place(shifted(array, offset)).pointer % 16 == 2 * offset


# --- convolutions ------------------------------------------------------------------------------------------

CONVS = sorted(conv_calls("float32", "nchw", EVEN))


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc")])
@pytest.mark.parametrize(("padding", "engines"), [(EVEN, False), (EVEN, True), (UNEVEN, True)])
def test_convolution_takes_each_operand_at_each_offset(
    fake: FakeCudnn, host: Host, name: str, dtype: str, layout: str, padding: Any, engines: bool
) -> None:
    fake.engines, fake.engine_workspace, fake.workspaces = engines, 100, {"GEMM": 60, "ALGO_1": 60}
    case = conv_calls(dtype, layout, padding)[name]
    for place in places(host):
        sweep(case, place, check_layer, range(1, 8, 3))


@pytest.mark.parametrize("sums", ["int32", "float32"])
def test_int8_convolution_takes_each_operand_at_each_offset(fake: FakeCudnn, host: Host, sums: str) -> None:
    fake.engines = True
    x, w = Tensor((2, 4, 5, 4), "int8"), Tensor((8, 4, 3, 2), "int8", seed=1)
    out = Tensor(ct.conv_output_shape(x.shape, w.shape), sums, seed=2)
    for place in places(host):
        sweep(LayerCase("conv", (x, w), outs={"out": out}), place, check_layer, range(1, 16, 5))


def operands(offset: int) -> list[ct.DeviceArray]:
    """An image and filters, of which the image starts ``offset`` elements behind a boundary."""
    case = conv_calls("float32", "nchw", UNEVEN)["conv"]
    x, w = (operand.array() for operand in case.operands)
    return [own(shifted(x, offset)), own(w)]


KEYWORDS = {"padding": UNEVEN, "stride": (2, 1), "groups": 2}


@pytest.mark.parametrize("algo", ["guess_once", "time_once", "autotune"])
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


def test_conv_plan_counts_the_copies_as_workspace(fake: FakeCudnn) -> None:
    fake.engines, fake.engine_workspace = True, 100
    plan = ct.conv_plan(*operands(1), **KEYWORDS)
    assert plan.workspace >= 100 + sum(array.nbytes for array in operands(0))
    with pytest.raises(NotSupportedError, match="the limit is 100"):
        ct.conv_plan(*operands(1), **KEYWORDS, workspace_limit=100)
    assert ct.conv_plan(*operands(0), **KEYWORDS, workspace_limit=100).workspace == 100


def test_conv_plan_of_aligned_operands_rejects_misaligned_ones(fake: FakeCudnn) -> None:
    fake.engines = True
    plan = ct.conv_plan(*operands(0), **KEYWORDS)
    with pytest.raises(ValueError, match="prepared for 16-byte aligned operands"):
        plan(*operands(1))


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


def test_conv_of_misaligned_operands_is_captured(fake: FakeCudnn, host: Host) -> None:
    fake.engines = True
    arrays = operands(1)
    first = ct.conv(*arrays, **KEYWORDS, stream=0x77)
    host.capturing.add(0x77)
    again = ct.conv(*arrays, **KEYWORDS, stream=0x77)
    host.capturing.clear()
    np.testing.assert_array_equal(again.numpy(), first.numpy())
