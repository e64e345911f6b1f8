"""`cudnn-ct supports`, `assert_supported`, recordings and the first call give one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct.graph.recording import rejected

from .test_jit import JITS, NONE, ran

pytestmark = pytest.mark.usefixtures("cudnn")
FOLDERS = [pytest.param(None, id="full"), *(JITS or [NONE])]
SEED = 11  # `python -m tests.supported_calls --seed N` draws others
REJECTED = "import cudnn_ct as ct\nz = ct.zeros((1, 256), 'float64')\nct.matmul(z, z.T, activation='gelu')\n"
WITHOUT_LEGACY_CALLS = """
import cudnn_ct as ct

images, channels = ct.zeros((2, 3, 8, 8)), ct.zeros((3,))
ct.pool(images, window=2)
ct.lrn(images)
ct.batch_norm_training(images, channels, channels)
ct.conv_backward_bias(images)
ct.conv_backward_filter(ct.zeros((2, 16, 8, 8)), images, (16, 3, 3, 3), padding=1)
ct.group_norm(ct.zeros((2, 6, 4, 4)), ct.zeros((6,)), ct.zeros((6,)), groups=2)
ct.conv(ct.zeros((1, 3, 8, 8))[:, :, ::2], ct.zeros((8, 3, 1, 1)))
ct.batch_norm_finalize(*[ct.zeros((8,))] * 6, 16)
"""
EMPTY = """
import cudnn_ct as ct

ct.pool(ct.zeros((0, 4, 4, 4)), window=2)
ct.transform(ct.zeros((1, 0), "float64"), dtype="float32")
ct.affine_grid(ct.zeros((0, 2, 3)), (0, 2, 1))
ct.clear_padding(ct.zeros((1, 1, 8, 0)), [8])
ct.activation(ct.zeros((0, 3)))
"""

CONVERTED = """
import cudnn_ct as ct

for dtype, other in (("float16", "float32"), ("float32", "float16"), ("bfloat16", "float16")):
    q, stats = ct.zeros((2, 2, 8, 64), dtype), ct.zeros((2, 2, 8))
    for shape in ((1, 1, 8, 8), (2, 1, 8, 8), (1, 2, 1, 8)):
        ct.attention(q, q, q, bias=ct.zeros(shape, other))
        if dtype != "float32":
            ct.attention_backward(q, q, q, q, q, stats, bias=ct.zeros(shape, other), dbias=True)
"""


@pytest.fixture
def supports(tmp_path: Path) -> Callable[[Path | None, str], tuple[int, dict[str, Any]]]:
    """A function that returns the exit status and the report of ``supports`` for a program."""

    def supports(folder: Path | None, text: str) -> tuple[int, dict[str, Any]]:
        program = tmp_path / "program.py"
        program.write_text(text)
        done = ran(folder, "-m", "cudnn_ct", "supports", str(program), "--gpu", "a100", "--json")
        (report,) = json.loads(done.stdout)["gpus"]
        return done.returncode, report | {"rejected_calls": rejected(report["skipped"])}

    return supports


@pytest.mark.parametrize("folder", FOLDERS)
def test_drawn_calls_are_answered_as_their_first_run_would_be(folder: Path | None) -> None:
    done = ran(folder, "-m", "tests.supported_calls", "--seed", str(SEED), "--examples", "3")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_supports_rejects_a_call_that_nothing_computes(folder: Path | None, supports: Any) -> None:
    status, report = supports(folder, REJECTED)
    ((call, reason),) = report["rejected_calls"].items()
    assert (status, report["graphs"]) == (1, [])
    assert call.startswith("matmul at program.py:3")
    assert "NotSupportedError: the legacy calls do not support gelu" in reason


@pytest.mark.parametrize("folder", FOLDERS)
def test_assert_supported_rejects_a_call_that_nothing_computes(folder: Path | None, tmp_path: Path) -> None:
    code = (
        "from cudnn_ct import testing\nimport cudnn_ct as ct\nz = lambda: ct.zeros((1, 256), 'float64')\n"
        "testing.assert_supported(lambda: ct.matmul(z(), z().T, activation='gelu'), 'a100')"
    )
    done = ran(folder, "-c", code)
    assert "AssertionError: cuDNN does not support these calls:\nmatmul at <string>:4" in done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_supports_answers_as_the_first_call(folder: Path | None, supports: Any) -> None:
    status, report = supports(folder, WITHOUT_LEGACY_CALLS)
    assert (status, report["rejected_calls"]) == (0, {})
    assert not [row for row in report["graphs"] if not (row["engines"] or row["unknown"])]
    if folder is not None:
        assert report["skipped"] == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_supports_passes_calls_on_empty_operands(folder: Path | None, supports: Any) -> None:
    status, report = supports(folder, EMPTY)
    assert (status, report["graphs"], report["rejected_calls"]) == (3, [], {})
    assert set(report["skipped"].values()) == {"cuDNN computes it by a function that needs no plan"}


@pytest.mark.parametrize("folder", JITS or [NONE])
def test_compile_takes_the_graphs_that_replace_one_without_engine(folder: Path, tmp_path: Path) -> None:
    program, plans = tmp_path / "program.py", tmp_path / "plans"
    program.write_text(WITHOUT_LEGACY_CALLS)
    done = ran(folder, "-m", "cudnn_ct", "compile", str(program), "--gpu", "a100", "-o", str(plans))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_attention_converts_a_bias_of_another_dtype(folder: Path | None, supports: Any) -> None:
    status, report = supports(folder, CONVERTED)
    assert (status, report["rejected_calls"]) == (0, {})
    assert all(row["engines"] for row in report["graphs"])
