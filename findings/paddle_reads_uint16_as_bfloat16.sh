#!/usr/bin/env bash
# Paddle imports a uint16 array as uint16 by DLPack, and as bfloat16 by to_tensor.
#
# Expected: both imports keep the type, because Paddle has paddle.uint16, or to_tensor raises an error, as for uint32. Seen with
# paddlepaddle 3.3.1 and NumPy 2.4.6: paddle.to_tensor(array) reads the bits of uint16 numbers as bfloat16, so 16256 becomes 1.0 and 65535
# becomes NaN, while from_dlpack returns the numbers. So to_tensor(tensor.numpy()) does not return an equal tensor. With dtype="int32",
# to_tensor converts the numbers correctly. Depth maps and 16-bit images are such arrays.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 paddlepaddle==3.3.1
"$work/venv/bin/python" - 2>"$work/warnings" <<'PYTHON' || { cat "$work/warnings" >&2; exit 1; }
import sys

import numpy as np
import paddle

array = np.array([16256, 65535], np.uint16)
by_dlpack = paddle.from_dlpack(array)
imported = {
    "from_dlpack": by_dlpack,
    "to_tensor, int32": paddle.to_tensor(array, dtype="int32"),
    "to_tensor": paddle.to_tensor(array),
    "to_tensor of numpy()": paddle.to_tensor(by_dlpack.numpy()),
}
seen = {}
for name, tensor in imported.items():
    dtype = next(dtype for dtype in ("uint16", "int32", "bfloat16") if tensor.dtype == getattr(paddle, dtype))
    seen[name] = dtype, (tensor.astype("float32") if dtype == "bfloat16" else tensor).numpy().tolist()
    print(f"{name}:", *seen[name])
right, wrong = [16256, 65535], [1.0, float("nan")]
if str(list(seen.values())) != str([("uint16", right), ("int32", right), ("bfloat16", wrong), ("bfloat16", wrong)]):
    sys.exit("the behaviour has changed")
print("as described: to_tensor reads uint16 as bfloat16")
PYTHON
