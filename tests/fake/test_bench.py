"""tools/bench.py on the fakes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tests.maintainers import tool

from .cudnn import FakeCudnn
from .test_cli import SMALL

bench = tool("bench")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench.command, arguments, catch_exceptions=False)


def test_bench_conv_times_every_candidate(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    ran = run("conv", *SMALL)
    assert ran.exit_code == 0, ran.output
    rows = [line.split() for line in ran.stdout.splitlines()[4:]]
    assert [row[0] for row in rows] == ["1000.0", "9000.0"]
    assert [row[4] for row in rows] == ["implicit_gemm", "gemm"]


LAYER = "--x 2,4,6,6 --layout nhwc"
RNN = "rnn --x 4,2,3 --hidden 5 --dtype float16"
PASSES = ["forward", "forward, training", "forward and gradients"]
NORMS = [f"batch_norm_{step}" for step in ("training", "backward", "inference")]
nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("line", "names"),
    [
        pytest.param(
            f"pool --window 3 --stride 2 --padding 1 {LAYER}", ["pool", "pool_backward"], marks=nightly
        ),
        (f"softmax --algo log --dtype bfloat16 {LAYER}", ["softmax", "softmax_backward"]),
        pytest.param(f"batch_norm {LAYER}", NORMS, marks=nightly),
        (RNN, PASSES),
        (f"{RNN} --algo standard --layers 2", PASSES),
        (f"{RNN} --mode gru --bidirectional", PASSES),
    ],
)
def test_bench_times_layers_and_networks(fake: FakeCudnn, line: str, names: list[str]) -> None:
    ran = run(*line.split(), "--json")
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert [row["what"] for row in told["rows"]] == names
    assert all(row["nbytes"] > 0 for row in told["rows"])
    text = run(*line.split()).stdout
    assert "on a device of the tests" in text
    assert names[0] != "forward" or " of float16[4, 2, 3]" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pool --x 2,3,5,6 --window 9", "window of 9 is larger"),
        ("rnn --x 2,3 --hidden 4", "x has shape (2, 3); expected (T, N, C)"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_bench_rejects_wrong_shapes(line: str, words: str) -> None:
    ran = run(*line.split())
    assert ran.exit_code == 2
    assert words in ran.stderr
