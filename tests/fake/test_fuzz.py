"""Hostile arguments on the fakes: 2,000 calls, and the reports of the fuzzer about wrong calls."""

from __future__ import annotations

import re

import pytest

import cudnn_ct as ct
from tests.fuzz.draw import OTHERS, families
from tests.fuzz.run import Result, fuzz, summary
from tests.nightly import some

CALLS = 600  # .ci/nightly makes more


def test_hostile_calls_raise_only_documented_exceptions() -> None:
    result = fuzz(CALLS, seed=0)
    assert result.wrong == [], summary(result)
    assert sum(result.outcomes.values()) == CALLS
    assert result.outcomes["fine"] > CALLS // 8
    assert result.outcomes["ValueError"] > CALLS // 12


def test_base_calls_succeed_before_their_arguments_are_replaced() -> None:
    rejected = ("set_config", "ct.import_algo_cache")  # None is not a value; the file does not exist
    lines = [text for text in OTHERS if not text.startswith(rejected)]
    assert fuzz(0, lines=lines) == Result({"fine": len(lines)}, [])


def test_every_public_function_is_called() -> None:
    """Except values that other calls return and take."""
    left_out = {"Candidate", "DeviceArray", "config", "dnn", "reference", "raw"}
    left_out |= {"DropoutMask", "DropoutResult", "PlanDescription", "RNNForward", "RNNReserve", "RNNSpec"}
    left_out |= {"CapturedFunction", "capture"}  # tests/fake/test_capture.py
    left_out |= {"from_pointer", "preload"}  # test_raw_memory.py, tests/lib/test_preload.py
    left_out |= {"BuiltGraph", "Explanation", "GraphTensor", "Reason"}
    left_out |= {"RecordedPlans", "export_plans", "import_plans", "record_plans"}  # test_plans.py
    left_out |= {"Algorithms", "Availability", "CTCLoss", "ConvPlan", "LibraryFile", "LibraryInfo", "Stream"}
    values = ("Error", "Warning", "Result", "Gradients", "Reduction")
    left_out |= {name for name in ct.__all__ if name.endswith(values)}
    text = "\n".join(right for family in families() for right in family)
    assert set(ct.__all__) - left_out - set(re.findall(r"\bct\.(\w+)\(", text)) == set()


@pytest.mark.parametrize(
    ("text", "reason"),
    some(
        [
            ("ct.conv(1 / 0)", "! ZeroDivisionError: division by zero"),
            ("ct.TensorSpec(0, 0, 'x').size", "! by accident TypeError: 'int' object is not iterable"),
            ("np.int64([2]).shape and __import__('warnings').warn('x', UserWarning)", "! UserWarning: x"),
            ("__import__('ctypes').string_at(0)", "exit status -11: "),
            ("__import__('os')._exit(3)", "exit status 3: "),
            ("setattr(ct, 'leaked', array((2, 3)))", "24 bytes of device memory are left"),
            ("setattr(ct, 'conv', lambda *_: array((1, 3, 3, 3)))", "a convolution of ones gives"),
            (
                "(_ for _ in ()).throw(ct.ExecutionFailedError('a kernel'))",
                "! ExecutionFailedError: a kernel",
            ),
        ],
        3,
    ),
)
def test_fuzz_reports_a_wrong_call(text: str, reason: str) -> None:
    result = fuzz(0, lines=[text])
    (found,) = result.wrong
    assert found[0].startswith(reason)
    assert found[1] == text
    assert f"WRONG {reason}" in summary(result)


def test_fuzz_ends_a_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "__import__('time').sleep(100)"
    (found,) = fuzz(0, lines=[text], seconds=2).wrong
    assert found[0].startswith("exit status 1: Timeout (0:00:02)!")
    assert found[1] == text


def test_fuzz_accepts_right_calls_and_documented_errors() -> None:
    result = fuzz(0, lines=["ct.conv(array((2, 3, 4, 5)), array((2, 3, 2, 2)))", "ct.conv(None, None)"])
    assert result == Result({"fine": 1, "TypeError": 1}, [])
    assert summary(result).splitlines()[-1] == "2 calls, 0 wrong"
