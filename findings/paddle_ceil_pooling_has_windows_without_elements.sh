#!/usr/bin/env bash
# Paddle's pooling with ceil_mode and padding returns a window that covers padding alone: -3.4e38 as its maximum, NaN as its mean.
#
# Expected: no such window, as in PyTorch and ONNX Runtime, which drop it: 1, 3, 5 and 7 for the maxima of 1 to 7 with windows of 2, stride 2 and a padding of 1.
# Seen with paddlepaddle 3.3.1 and NumPy 2.4.6 (CPU): a fifth window, behind the image and its padding. Its maximum is the lowest number of float32, and its mean
# without padding is 0 / 0. The next layer turns it into an infinity, or the loss into NaN, and the image has one column more.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 paddlepaddle==3.3.1
HOME="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import paddle
from paddle.nn import functional

x = paddle.to_tensor(np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7))
found = {}
for window, stride, padding in ((2, 3, 0), (2, 2, 1), (3, 4, 1)):
    given = window, stride, padding
    largest = functional.max_pool1d(x, *given, ceil_mode=True).numpy().ravel()
    mean = functional.avg_pool1d(x, *given, ceil_mode=True, exclusive=True).numpy().ravel()
    print(f"paddle {paddle.__version__}: 1 to 7, window {window}, stride {stride}, padding {padding}: maxima {largest}, means {mean}")
    found[given] = largest, mean
lowest = np.finfo(np.float32).min
same = found[2, 3, 0][0].tolist() == [2, 5, 7] and not np.isnan(found[2, 3, 0][1]).any()
same &= found[2, 2, 1][0].tolist() == [1, 3, 5, 7, lowest] and found[3, 4, 1][0].tolist() == [2, 6, lowest]
same &= all(np.isnan(found[given][1][-1]) for given in ((2, 2, 1), (3, 4, 1)))
sys.exit(0 if same else "changed")
PYTHON
