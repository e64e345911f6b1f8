"""The table of the operations of libcudnn_ext, on the fakes."""

from __future__ import annotations

import pytest

from cudnn_ct.errors import NotSupportedError
from tools import ext_support
from tools.ext_support import ROWS, line, outcome

from .cudnn import FakeCudnn

SHORT = [i for i, row in enumerate(ROWS) if "the length" not in row.what]


@pytest.mark.parametrize("number", SHORT, ids=lambda number: f"{ROWS[number][:3]}")
def test_row_is_right_on_the_fakes(fake: FakeCudnn, number: int) -> None:
    found = outcome(ROWS[number])
    assert found["verdict"] == "right", found
    assert " right " in line(ROWS[number], found)


def test_wrong_and_rejected_rows_are_printed_with_the_reason(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in ROWS if row.operation == "b2b_causal_conv1d")
    monkeypatch.setitem(ext_support.TOLERANCE, row.dtype, -1.0)
    assert outcome(row)["verdict"] == "wrong"
    fake.fail["cudnnB2BCausalConv1dForward"] = 3000
    found = outcome(row)
    assert found["verdict"] == "rejected"
    assert "returned CUDNN_STATUS_NOT_SUPPORTED" in line(row, found)
    assert line(row, None).endswith("not reached")
    with pytest.raises(NotSupportedError):
        list(row.run(ext_support.np.random.default_rng(0), row.dtype))


def test_children_divide_the_rows() -> None:
    """Without a GPU each row is rejected."""
    found = ext_support.divided(SHORT[:4], 2, 100)
    assert {one["verdict"] for one in found.values()} <= {"rejected", "right"}
    assert sorted(found) == SHORT[:4]
