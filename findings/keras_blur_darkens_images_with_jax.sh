#!/usr/bin/env bash
# With JAX, Keras's gaussian_blur returns 0.45 for an image of ones, and blurs in one direction, unless data_format is given.
#
# Expected: 1 in the middle of an image of ones, as the weights of the filter have the sum 1, and as with the backends NumPy and TensorFlow. The
# documentation says that data_format defaults to that of the configuration, channels_last. Seen with keras 3.15.1, jax 0.10.2, scipy 1.17.1 and
# NumPy 2.4.6 on a CPU: without data_format, the function takes the rows of the image for its channels. A filter of 3 x 3 then has one row, an
# image keeps 45% of its brightness, and colours change: the first and the last channel of a pixel lose 27%, the middle one does not.
# With data_format="channels_last" the result is right. The same code trains and evaluates on other images after a change of the backend.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2
cat > "$work/blur.py" <<'PYTHON'
import sys

import numpy as np
from keras import config, ops

assert config.image_data_format() == "channels_last"
ones = np.ones((1, 5, 5, 1), np.float32)
point = np.zeros((1, 5, 5, 1), np.float32)
point[0, 2, 2] = 1
colours = np.ones((1, 5, 5, 3), np.float32)
seen = []
for keywords in ({}, {"data_format": "channels_last"}):
    blurred = [np.asarray(ops.image.gaussian_blur(x, (3, 3), (1.0, 1.0), **keywords), np.float64) for x in (ones, point, colours)]
    middle = [y[0, 1:4, 1:4].round(2) for y in blurred]
    seen.append([middle[0][1, 1, 0].item(), middle[1][..., 0].tolist(), middle[2][1, 1].tolist()])
    print(f"{sys.argv[1]}, {keywords}: ones {seen[-1][0]}, a point {seen[-1][1]}, three channels of ones {seen[-1][2]}")
right = [1, [[0.08, 0.12, 0.08], [0.12, 0.2, 0.12], [0.08, 0.12, 0.08]], [1, 1, 1]]
one_row = [0.45, [[0, 0, 0], [0.12, 0.2, 0.12], [0, 0, 0]], [0.73, 1, 0.73]]
sys.exit(0 if np.all([np.allclose(a, b) for a, b in zip(sum(seen, []), (one_row if sys.argv[1] == "jax" else right) + right)]) else "changed")
PYTHON
for backend in numpy jax; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu "$work/venv/bin/python" "$work/blur.py" "$backend"
done
echo "as described: with JAX, a blurred image of ones is 0.45"
