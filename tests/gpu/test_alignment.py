"""Operands that start behind a 16-byte boundary, on a GPU: a group of calls in each child process.

A kernel that loads 16 bytes at once from such memory ends the CUDA context of its process, so a lost context
fails one test, whose message has the call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OFFSETS = (1, 2, 3, 5)

CHILD = """
import sys
sys.path.insert(0, {root!r})
from tests.alignment import EVEN, UNEVEN, check_roughly, conv_calls, norm_calls, own, sweep

for calls in {groups}:
    for name, case in calls.items():
        if {chosen!r} in name:
            print(name, flush=True)
            sweep(case, own, check_roughly(case), {offsets})
print("all calls were made")
"""

LAYOUTS = ("nchw", "nhwc")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def run(groups: str, chosen: str = "") -> None:
    """Make calls in a child process, and fail with its last lines if it does not make them all."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(root=str(ROOT), groups=groups, chosen=chosen, offsets=OFFSETS)],
        env=os.environ | {"CUDNN_CT_ALGO_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    last = "\n".join([*done.stdout.splitlines()[-3:], *done.stderr.splitlines()[-20:]])
    assert done.returncode == 0, last
    assert done.stdout.endswith("all calls were made\n"), last


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", ["training", "inference", "backward"])
def test_batch_norm_keeps_the_context_when_an_operand_is_misaligned(
    step: str, dtype: str, layout: str
) -> None:
    shapes: list[tuple[int, ...]] = [(8, 32, 16, 16), (2, 3, 4, 2), (3, 2, 4, 2)]
    shapes += [(3, 4), (17, 32)] if layout == "nchw" else []
    run(f"[norm_calls(shape, {dtype!r}, {layout!r}) for shape in {shapes}]", step)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["fused", "conv", "backward_data", "backward_filter"])
def test_convolution_keeps_the_context_when_an_operand_is_misaligned(
    operation: str, dtype: str, layout: str
) -> None:
    """With equal and with uneven padding, which only engines have."""
    sizes = "[((2, 4, 5, 4), (6, 2, 3, 2)), ((8, 32, 16, 16), (32, 32, 3, 3))]"
    calls = f"conv_calls({dtype!r}, {layout!r}, padding, *size)"
    run(f"[{calls} for padding in (EVEN, UNEVEN) for size in {sizes}]", operation)
