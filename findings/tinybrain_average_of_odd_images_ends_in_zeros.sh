#!/usr/bin/env bash
# tinybrain's average of an image of 5 x 4 pixels, all of them 100, ends with a row of zeros; a width of 5 gives a column of other numbers.
#
# Expected: 100 everywhere, as with the factor (2, 2, 2), from downsample_segmentation and for an odd level in the middle of one call, or an
# error for odd sizes. Seen with tinybrain 1.7.0 and NumPy 2.4.6 on Linux for downsample_with_averaging with the factor (2, 2, 1), the common
# case of its documentation, for all types and both orders of the elements. The last row is zeros, and the last column has numbers that
# are not computed, which change from run to run. An image pyramid that is made level by level gets dark edges. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tinybrain==1.7.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import tinybrain

print(f"tinybrain {importlib.metadata.version('tinybrain')}, NumPy {np.__version__}")
average = tinybrain.downsample_with_averaging
changed = columns = False
for dtype in (np.uint8, np.uint16, np.float32, np.float64):
    for order in "CF":

        def image(*shape):
            return np.full(shape, 100, dtype, order=order)

        even = average(image(4, 4, 1), (2, 2, 1))[0].squeeze()
        tall = average(image(5, 4, 1), (2, 2, 1))[0].squeeze()
        wide = [average(image(4, width, 1), (2, 2, 1))[0].squeeze() for width in (3, 5, 7)]
        print(f"{np.dtype(dtype)}, order {order}: 5 x 4 becomes {tall.tolist()}; 4 x 5 becomes {wide[1].tolist()}")
        changed |= even.tolist() != [[100, 100]] * 2 or tall.tolist() != [[100, 100], [100, 100], [0, 0]]
        changed |= any((result[:, :-1] != 100).any() for result in wide)
        columns |= any((result[:, -1] != 100).any() for result in wide)
        volume = average(image(5, 5, 5), (2, 2, 2))[0]
        levels = average(image(6, 6, 1), (2, 2, 1), num_mips=2)
        changed |= any((result != 100).any() for result in (volume, *levels))
labels = tinybrain.downsample_segmentation(np.full((5, 5, 1), 100, np.uint16), (2, 2, 1))[0]
print(f"two levels of 6 x 6: {[level.squeeze().tolist() for level in levels]}; labels of 5 x 5: {labels.squeeze().tolist()}")
changed |= (labels != 100).any()
if changed or not columns:
    sys.exit("the behaviour has changed")
print("as described: the last row is zeros, and the last column is not computed")
PYTHON
