#!/usr/bin/env bash
# IREE computes NaN for 0 to the power of 0, for powers of negative numbers, and for the angle of a zero vector.
#
# Expected: the values that StableHLO takes from IEEE 754 and C: 1 for x**0, -125 for (-5)**3, 0 or pi for atan2 of zeros, and an infinite cube
# root of infinity. Seen with iree-base-compiler and iree-base-runtime 3.13.0 and the target llvm-cpu (x86-64 Linux): all of these are NaN, and the
# compiler gives no warning. The power of int32 numbers is right, and so is the power with a constant exponent of 2. A polynomial with its
# exponents in a tensor, or the angle of an empty pixel, becomes NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 iree-base-compiler==3.13.0 iree-base-runtime==3.13.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import iree.compiler
import iree.runtime
import numpy as np

inf, nan = np.inf, np.nan
functions = []
for name, operator, kind in (("pow", "power", "f32"), ("int_pow", "power", "i32"), ("atan2", "atan2", "f32")):
    tensor = f"tensor<4x{kind}>"
    functions.append(f"""func.func @{name}(%x: {tensor}, %y: {tensor}) -> {tensor} {{
        %r = stablehlo.{operator} %x, %y : {tensor} return %r : {tensor} }}""")
functions.append("""func.func @square(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.constant dense<2.0> : tensor<4xf32>
    %r = stablehlo.power %x, %y : tensor<4xf32> return %r : tensor<4xf32> }""")
functions.append("""func.func @cbrt(%x: tensor<4xf32>) -> tensor<4xf32> {
    %r = stablehlo.cbrt %x : tensor<4xf32> return %r : tensor<4xf32> }""")
binary = iree.compiler.compile_str(
    "module @module {" + "\n".join(functions) + "}",
    target_backends=["llvm-cpu"],
    input_type="stablehlo",
    extra_args=["--iree-llvmcpu-target-cpu=generic"],
)
context = iree.runtime.SystemContext(config=iree.runtime.Config("local-sync"))
context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, binary))
module = context.modules.module
x, y = np.array([0, -5, -2, 2], np.float32), np.array([0, 3, 2, 3], np.float32)
zeros = np.array([0.0, 0.0, -0.0, 1.0], np.float32), np.array([0.0, -0.0, 0.0, 1.0], np.float32)
cubes = np.array([inf, -inf, -8, 27], np.float32)
rows = {
    "pow": ((x, y), np.power(x, y), [nan, nan, nan, 8.0]),
    "int_pow": ((x.astype(np.int32), y.astype(np.int32)), np.power(x, y), [1, -125, 4, 8]),
    "square": ((x,), np.square(x), [0.0, 25.0, 4.0, 4.0]),
    "atan2": (zeros, np.arctan2(*zeros), [nan, nan, nan, 0.785]),
    "cbrt": ((cubes,), np.cbrt(cubes), [nan, nan, -2.0, 3.0]),
}
changed = False
for name, (arguments, exact, expected) in rows.items():
    seen = np.round(module[name](*arguments).to_host(), 3)
    print(f"{name}: {seen.tolist()}; NumPy: {np.round(exact, 3).tolist()}")
    changed |= not np.allclose(seen, expected, rtol=1e-3, atol=0, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: 0 to the power of 0 is NaN")
PYTHON
