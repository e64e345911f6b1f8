#!/usr/bin/env bash
# A gray image gets a tint if DALI removes its colour: fn.saturation(saturation=0) turns (200, 200, 200) into (200, 200, 201).
#
# Expected: the unchanged image, because it has no colour, as fn.color_space_conversion to gray and back returns it. Seen with
# nvidia-dali-cuda120 2.4.0 and NumPy 2.4.6 (CPU operators): the third channel is 0.3 percent larger than the others. In gray images of bytes, the
# levels 178 to 254 get a blue that is larger by 1, and int16 10000 becomes 9997, 9996 and 10028. With saturation=1 the image is unchanged. A
# test for gray images by equal channels fails after the operator.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 nvidia-dali-cuda120==2.4.0
cat > "$work/gray.py" <<'PYTHON'
import sys

import numpy as np
from nvidia.dali import fn, pipeline_def, types


def dali(image, function):
    def source():
        return [image]

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        return function(fn.external_source(source=source))

    instance = pipeline()
    instance.build()
    return np.array(instance.run()[0].at(0))


def through_gray(image):
    gray = fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
    return fn.color_space_conversion(gray, image_type=types.GRAY, output_type=types.RGB)


levels = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 256, 3)
zero, one = (dali(levels, lambda image, s=s: fn.saturation(image, saturation=s)) for s in (0.0, 1.0))
tinted = np.flatnonzero(np.ptp(zero[0].astype(int), axis=1))
large = dali(np.full((1, 1, 3), 10000, np.int16), lambda image: fn.saturation(image, saturation=0.0)).ravel().tolist()
print("saturation=0: 100 ->", zero[0, 100].tolist(), "and 200 ->", zero[0, 200].tolist(), "and int16 10000 ->", large)
print(f"levels with unequal channels: {len(tinted)}, from {tinted[:1]} to {tinted[-1:]}")
print("unchanged by saturation=1:", np.array_equal(one, levels), "by gray and back:", np.array_equal(dali(levels, through_gray), levels))
if zero[0, 200].tolist() != [200, 200, 201] or len(tinted) < 70 or not np.array_equal(one, levels) or large[2] - large[0] < 25:
    sys.exit("the behaviour has changed")
print("as described: gray images get a tint")
PYTHON
"$work/venv/bin/python" -W ignore "$work/gray.py"
