#!/usr/bin/env bash
# mean_squared_error of TorchMetrics is 1 for a black and a white uint8 image; its signal-to-noise ratio for the same images is right.
#
# Expected: 65025, the square of 255, or an error. Seen with torchmetrics 1.9.0, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on
# 2026-11-29: 0 - 255 wraps around to 1 in uint8, and the square of 255 wraps around to -511 in int16. mean_absolute_error and
# total_variation of uint8 and minkowski_distance of both types are affected; peak_signal_noise_ratio converts to float32 and is right.
# log_cosh_error is infinite for float32 differences of 90, because it computes the exponential of the difference. No warning is given. An
# error of 1 between inverted images looks like a good result.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchmetrics==1.9.0
cat > "$work/bytes.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from torchmetrics.functional import log_cosh_error, mean_absolute_error, mean_squared_error, minkowski_distance
from torchmetrics.functional.image import peak_signal_noise_ratio, total_variation

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchmetrics", "torch", "numpy")))
black, white = torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 255)
stripes = torch.tensor([0, 255, 0, 255]).expand(1, 1, 4, 4)


def measure(dtype):
    pair = black.to(dtype), white.to(dtype)
    return [
        float(result)
        for result in (
            mean_squared_error(*pair),
            mean_absolute_error(*pair),
            minkowski_distance(pair[0].flatten(), pair[1].flatten(), 2),
            total_variation(stripes.to(dtype)),
            peak_signal_noise_ratio(*pair, data_range=255.0),
        )
    ]


expected = {
    torch.float32: [65025, 255, 1020, 12 * 255, 0],
    torch.uint8: [1, 1, 4, 8 * 255 + 4, 0],
    torch.int16: [65025 - 65536, 255, None, 12 * 255, 0],
}
changed = False
for dtype, numbers in expected.items():
    results = measure(dtype)
    print(f"{dtype}: squared {results[0]}, absolute {results[1]}, Minkowski {results[2]}, variation {results[3]}, ratio {results[4]} dB")
    changed |= any(number is not None and abs(result - number) > 1e-3 for result, number in zip(results, numbers))
for difference, infinite in ((80.0, False), (90.0, True)):
    result = float(log_cosh_error(torch.zeros(3), torch.full((3,), difference)))
    print(f"log-cosh error of {difference}: {result}")
    changed |= (result == float("inf")) != infinite
if changed:
    sys.exit("the behaviour has changed")
print("as described: the errors of bytes wrap around")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/bytes.py"
