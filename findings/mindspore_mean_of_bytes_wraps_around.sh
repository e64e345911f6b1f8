#!/usr/bin/env bash
# MindSpore's mean of the uint8 numbers 200 and 100 is 22, and the norm of three int8 numbers 8 is NaN.
#
# Expected: 150 as an integer or a float, or an error, because MindSpore's sum of the same tensor is 300 in int64; and 13.86 for the norm, whose
# result has the type float32. Seen with mindspore 2.10.0 and NumPy 1.26.4 (CPU, x86-64 Linux) on 2026-11-28: the mean adds in the type of the
# tensor, which wraps around, and divides the rest; the mean of two int32 numbers 2**31 - 1 is -1073741824. The norm adds the squares in the type
# of the tensor before it takes the root: 65536 and 1 of int32 have the norm 1. mint.mean and Tensor.mean are affected too, and no warning is
# given. The mean of a uint8 image with 100 x 100 pixels is 0, whatever the image shows.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==1.26.4 mindspore==2.10.0
cat > "$work/mean.py" <<'PYTHON'
import sys

import mindspore
import numpy as np
from mindspore import Tensor, mint, ops

mindspore.set_device("CPU")
pair = Tensor(np.array([200, 100], np.uint8))
large = Tensor(np.array([2**31 - 1] * 2, np.int32))
image = Tensor(np.full((100, 100), 200, np.uint8))
results = {
    "sum of uint8 200, 100": ops.sum(pair),
    "mean of uint8 200, 100": ops.mean(pair),
    "mint.mean of uint8 200, 100": mint.mean(pair),
    "Tensor.mean of uint8 200, 100": pair.mean(),
    "mean of a uint8 image, all pixels 200": ops.mean(image),
    "mean of int32 2**31 - 1, 2**31 - 1": ops.mean(large),
    "norm of uint8 200, 100": ops.norm(pair),
    "norm of int8 8, 8, 8": ops.norm(Tensor(np.array([8, 8, 8], np.int8))),
    "norm of int32 65536, 1": ops.norm(Tensor(np.array([65536, 1], np.int32))),
}
print("mindspore", mindspore.__version__, "NumPy", np.__version__)
seen = {}
for name, tensor in results.items():
    array = tensor.asnumpy()
    seen[name] = f"{array.dtype} {array.item():.7g}"
    print(f"{name}: {seen[name]}")
if list(seen.values()) != [
    "int64 300", "uint8 22", "uint8 22", "uint8 22", "uint8 0", "int32 -1.073742e+09", "float32 8.944272", "float32 nan", "float32 1",
]:
    sys.exit("the behaviour has changed")
print("as described: means and norms of integers wrap around")
PYTHON
GLOG_v=3 "$work/venv/bin/python" "$work/mean.py"
