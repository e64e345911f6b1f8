#!/usr/bin/env bash
# Warp rounds a number to float16 in one way on the host and in another inside a kernel.
#
# Expected: ties go to even in both places, as in NumPy and CUDA. Seen with warp-lang 1.19.0 and NumPy 2.4.6 on the CPU device (x86-64
# Linux): wp.full, array.fill_ and a float16 argument of a kernel round ties away from zero, so 2049 becomes 2050 and 2**-25 becomes 2**-24.
# wp.array and wp.float16(x) in a kernel return 2048 and 0. bfloat16 rounds to even in all of them. An array filled with a number is not
# equal to the array built from the same number.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 warp-lang==1.19.0
cat >"$work/half.py" <<'PYTHON'
import sys

import numpy as np
import warp as wp

wp.config.kernel_cache_dir = sys.argv[1]
wp.init()


@wp.kernel
def store(argument: wp.float16, number: wp.float32, out: wp.array(dtype=wp.float16)):
    out[0] = argument
    out[1] = wp.float16(number)


changed = False
for value, host, even in ((2049.0, 2050.0, 2048.0), (-2049.0, -2050.0, -2048.0), (2051.0, 2052.0, 2052.0), (2**-25, 2**-24, 0.0)):
    out, filled = wp.zeros(2, dtype=wp.float16, device="cpu"), wp.zeros(1, dtype=wp.float16, device="cpu")
    filled.fill_(value)
    wp.launch(store, 1, inputs=[value, value, out], device="cpu")
    results = {
        "wp.full": wp.full(1, value, dtype=wp.float16, device="cpu").numpy()[0],
        "fill_": filled.numpy()[0],
        "argument": out.numpy()[0],
        "wp.array": wp.array([value], dtype=wp.float16, device="cpu").numpy()[0],
        "kernel": out.numpy()[1],
        "NumPy": np.float16(value),
    }
    print(f"{value:g}:", ", ".join(f"{name} {float(result):g}" for name, result in results.items()))
    changed |= list(map(float, results.values())) != [host] * 3 + [even] * 3
bits = [wp.full(1, value, dtype=wp.bfloat16, device="cpu").numpy()[0] for value in (257.0, 259.0)]
bfloat16 = [float(number) for number in (np.array(bits, np.uint32) << 16).view(np.float32)]
print(f"wp.full of 257 and 259 in bfloat16: {bfloat16}")
if changed or bfloat16 != [256.0, 260.0]:
    sys.exit("the behaviour has changed")
print("as described: ties go away from zero on the host, and to even in a kernel")
PYTHON
"$work/venv/bin/python" "$work/half.py" "$work/cache" 2>"$work/warnings" || { cat "$work/warnings" >&2; exit 1; }
