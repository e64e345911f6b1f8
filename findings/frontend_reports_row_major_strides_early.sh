#!/usr/bin/env bash
# cudnn-frontend reports row-major strides for the output of an NHWC convolution before the graph is validated.
#
# Expected: get_stride() returns the strides of NHWC, or no strides before they are inferred. Seen with nvidia-cudnn-frontend 1.32.0
# (x86-64 Linux, no GPU): the output has the strides of NCHW as soon as conv_fprop returns. Version 1.14.1 returns no strides there, and
# those of NHWC after validate(). According to the sources of 1.32.0, not run here because validate() needs a driver, the early strides
# are provisional and change when the operation graph is built. A buffer allocated by them has the right size and another layout.
# The older version needs a libcudnn.so.9 to import; the script takes it from nvidia-cudnn-jit-cu12 9.20.0.48.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" --target "$work/old" nvidia-cudnn-frontend==1.14.1
"${pip[@]}" --target "$work/new" nvidia-cudnn-frontend==1.32.0
"${pip[@]}" --target "$work/cudnn" nvidia-cudnn-jit-cu12==9.20.0.48
cat >"$work/strides.py" <<'PYTHON'
import sys

sys.path.insert(0, sys.argv[1])
import cudnn

graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT)
x = graph.tensor(name="x", dim=[2, 8, 5, 5], stride=[200, 1, 40, 8])
w = graph.tensor(name="w", dim=[4, 8, 3, 3], stride=[72, 1, 24, 8])
y = graph.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
y.set_output(True).set_data_type(cudnn.data_type.HALF)
print(*y.get_stride())
if sys.argv[2:] == ["validate"]:
    graph.validate()
    print(*y.get_stride())
PYTHON
run() { LD_LIBRARY_PATH="$work/cudnn/nvidia/cudnn_jit/lib" "$work/venv/bin/python" "$work/strides.py" "$@"; }
old=$(run "$work/old" validate) new=$(run "$work/new")
printf '1.14.1, before and after validate():\n%s\n1.32.0, before validate():\n%s\n' "$old" "$new"
[ "$old" = $'\n100 1 20 4' ] && [ "$new" = "100 25 5 1" ] || { echo "the behaviour has changed"; exit 1; }
echo "as described: version 1.32.0 reports the strides of NCHW for an NHWC convolution"
