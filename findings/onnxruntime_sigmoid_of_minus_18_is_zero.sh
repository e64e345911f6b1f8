#!/usr/bin/env bash
# ONNX Runtime's Sigmoid of the float32 number -18 is 0 in place of 1.5e-8, and that of -17 is larger than that of -16.
#
# Expected: results within some units of the last place, as ONNX Runtime's Softplus and Exp return for the same numbers. Seen with
# onnxruntime 1.32.0, onnx 1.23.2, SciPy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the error is below 1e-7 everywhere, but
# it is not relative. Sigmoid(-16) is half of the correct number, Sigmoid(-17) is more than twice of it, and from -18 on
# the result is 0. Sigmoid of float64 has five correct digits or more for these numbers. QuickGelu of com.microsoft has the same factors. The
# logarithm of the result is -infinity, so log-likelihoods of such logits are infinite, and a ranking of unlikely classes is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from scipy.special import expit

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "onnx", "scipy", "numpy")))


def run(operators, x):
    """Return the result of operators, one after another."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [
        helper.make_node(name, [f"x{i}"], [f"x{i + 1}"], domain=domain, **attributes)
        for i, (name, domain, attributes) in enumerate(operators)
    ]
    values = [helper.make_tensor_value_info(name, kind, [None]) for name in ("x0", f"x{len(nodes)}")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "graph", values[:1], values[1:]), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x0": x})[0].astype(float)


sigmoid, log, softplus = ("Sigmoid", "", {}), ("Log", "", {}), ("Softplus", "", {})
quick_gelu = ("QuickGelu", "com.microsoft", {"alpha": 1.0})
x = np.array([-22, -20, -18, -17, -16, -12, -5, 5, 20], np.float32)
exact = expit(x.astype(float))
factors = run([sigmoid], x) / exact
results = {
    "x": x,
    "Sigmoid": run([sigmoid], x),
    "SciPy": exact,
    "factor": factors,
    "factor of QuickGelu": run([quick_gelu], x) / (x * exact),
    "factor of float64": run([sigmoid], x.astype(float)) / exact,
    "factor of Softplus": run([softplus], x) / np.log1p(np.exp(x.astype(float))),
    "Log(Sigmoid)": run([sigmoid, log], x),
}
for name, result in results.items():
    print(f"{name}: {' '.join(f'{number:.4g}' for number in result)}")
if (
    results["Sigmoid"][:3].tolist() != [0, 0, 0]
    or not (1.5 < factors[3] < 3 and 0.3 < factors[4] < 0.7 and results["Sigmoid"][3] > results["Sigmoid"][4])
    or not np.allclose(factors[5:], 1, rtol=0.01)
    or not np.allclose(results["factor of QuickGelu"], factors, rtol=1e-3)
    or not np.allclose(results["factor of float64"], 1, rtol=1e-5)
    or not np.allclose(results["factor of Softplus"], 1, rtol=1e-5)
    or not np.isneginf(results["Log(Sigmoid)"][:3]).all()
    or np.abs(results["Sigmoid"] - exact).max() > 1e-7
):
    sys.exit("the behaviour has changed")
print("as described: small results have large relative errors, and are 0 from -18 on")
PYTHON
