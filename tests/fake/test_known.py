"""Convolutions on versions with known defects: on the fakes."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._lib import load
from cudnn_ct.cuda import stream
from cudnn_ct.typing import Precision

from .cudnn import FakeCudnn
from .test_conv import images

SHAPES = (1, 4, 6, 6, 6), (4, 4, 3, 3, 3)
pytestmark = pytest.mark.usefixtures("fake")


def compute(dtype: str, algo: str = "heuristic") -> None:
    x, w = (ct.asarray(images(*shape), dtype) for shape in SHAPES)
    ct.conv(x, w, algo=algo)


def problem(x: ct.DeviceArray, w: ct.DeviceArray, precision: Precision | None = None) -> str:
    candidate = ct.conv_plan(x, w, precision=precision).candidate
    return str(candidate.problem)


@pytest.mark.parametrize("algo", ["heuristic", "none"])
def test_3d_convolution_in_half_precision_is_rejected(monkeypatch: pytest.MonkeyPatch, algo: str) -> None:
    monkeypatch.setattr(load(), "version", 91002)
    with pytest.raises(ct.NotSupportedError, match=r"3-D convolutions in half precision .* cuDNN 9\.15"):
        compute("float16", algo=algo)
    compute("float32", algo=algo)


def test_3d_convolution_has_no_tf32_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (ct.asarray(images(*shape)) for shape in SHAPES)
    assert "on tensor cores" in problem(x, w)
    testing.reset()
    monkeypatch.setattr(load(), "version", 91500)
    assert "on tensor cores" not in problem(x, w)
    with pytest.warns(ct.CudnnWarning, match="3-D convolutions in TF32 is broken"):
        assert "on tensor cores" in problem(x, w, "tf32")


def test_engine_with_a_defect_is_rejected(monkeypatch: pytest.MonkeyPatch, fake: FakeCudnn) -> None:
    x, w = (ct.asarray(images(*shape)) for shape in ((1, 4, 6, 6), (4, 4, 3, 3)))
    monkeypatch.setattr(load(), "version", 92301)
    monkeypatch.setattr(stream, "compute_capability", lambda _: (8, 6))
    fake.engines, fake.engine_number = True, 5
    (row,) = (row for row in ct.conv_algorithms(x, w) if row.backend == "graph")
    assert "results of engine 5 vary from run to run" in row.rejected
    assert "pull/188318" in row.rejected


def test_attention_with_a_wrong_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q = ct.zeros((1, 2, 1, 64), "float16")
    monkeypatch.setattr(stream, "compute_capability", lambda _: (10, 0))
    with pytest.raises(
        ct.NotSupportedError, match=r"of one query .* without cuDNN \(fact [\w.-]+, https://.*/193893\)"
    ):
        ct.attention(q, q, q)
    monkeypatch.setattr(stream, "compute_capability", lambda _: (9, 0))
    assert ct.attention(q, q, q).y.shape == q.shape


def test_attention_warns_once_of_a_defect_whose_effect_is_unstated(monkeypatch: pytest.MonkeyPatch) -> None:
    q, pages = ct.zeros((1, 2, 4, 64), "float16"), ct.zeros((2, 2, 16, 64), "float16")
    table = ct.asarray(np.array([[0, 1]], np.int32))
    monkeypatch.setattr(stream, "compute_capability", lambda _: (12, 0))
    with pytest.warns(ct.CudnnWarning, match="cache of keys and values has a bug on compute capability 12"):
        ct.attention(q, pages, pages, page_table=table, lengths_kv=[20])
    ct.attention(q, pages, pages, page_table=table, lengths_kv=[20], scale=1.0)  # another plan
