"""Compare the doors to JAX, CuPy and cuda-python with their peers on one GPU, and check their results.

    python benchmarks/doors.py [--part convolutions lstm ...] [--rounds N] [--json OUT] [--dry]

Each part runs in a process of its own and prints a line for each row, so that a failure loses its row or its
part alone. Times are those of loops of steps in turns, on random data; a ratio is the median over rounds of
our time divided by that of the peer in the same round. The table at the end compares them with the targets.
With ``--dry``, JAX computes tiny shapes on the CPU: that tests the command, and its times mean nothing. The
exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from doors_checks import CHECKS, pointer
from doors_stacks import STACKS
from harness.parts import Part, Parts, Target

# XLA's flags with and without command buffers; the calls of this package are custom calls.
CAPTURED = (
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL "
    "--xla_gpu_graph_min_graph_size=1"
)
NOT_CAPTURED = "--xla_gpu_enable_command_buffer="
TWO_CPUS = "--xla_force_host_platform_device_count=2"

TARGETS = (
    Target("12 convolutions, autotuned, command buffers / jax.lax", "convolutions", "ratio", 0.90),
    Target("12 convolutions, default algorithms / jax.lax", "convolutions", "ratio_default", 0.90),
    Target("12 attention layers, command buffers / jax.nn", "attention", "ratio", 0.97),
    Target("4 LSTM layers, float32 / jax.experimental.rnn", "lstm", "ratio", 1.0),
    Target("4 LSTM layers, float16 / float32 there", "lstm", "ratio_half", 0.60),
    Target("handler calls per step once captured", "host", "calls", 0, max),
    Target("host time of a step / jax alone", "host", "ratio", 1.05),
    Target("host time added per call without command buffers, us", "plain", "added_us", 25, max),
    Target("check_grads: rows that fail", "rows", "bad_gradient", 0, sum),
    Target("vmap: rows that differ from a loop", "rows", "bad_vmap", 0, sum),
    Target("shard_map of vmap: rows that differ from a loop", "rows", "bad_split", 0, sum),
    Target("shard_map: largest difference from one device", "devices", "far", 5e-3, max),
    Target("sigpy: convolution tests that fail", "sigpy", "bad", 0, sum),
    Target("ct.from_pointer, us", "pointer", "ours_us", 3, max),
)

TIMED: Mapping[str, Part] = {**STACKS, "pointer": pointer}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return DOORS.main(argparse.ArgumentParser(description=__doc__.splitlines()[0]), arguments)


def environment(part: str, dry: bool) -> dict[str, str]:
    """Return the variables of a part's process.

    A part that measures times sees one GPU, the first of ``CUDA_VISIBLE_DEVICES``: with two, a step of JAX
    has more host time.
    """
    flags = TWO_CPUS if dry else {"plain": NOT_CAPTURED, **dict.fromkeys(CHECKS, "")}.get(part, CAPTURED)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    return {
        "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDNN_CT_ALGO_CACHE": "off",
        **({"JAX_PLATFORMS": "cpu"} if dry else {}),
        **({"CUDA_VISIBLE_DEVICES": visible[0]} if part in TIMED else {}),
    }  # fmt: skip


DOORS = Parts(
    *("doors", Path(__file__), TIMED, TARGETS),
    checks=CHECKS,
    shards={"rows": 4},
    environment=environment,
    has_dry=True,
)

if __name__ == "__main__":
    sys.exit(main())
