#!/usr/bin/env bash
# onnxslim removes a Dropout whose mask is used, and the nodes that read the mask read the data: 0, -2, 0.5 and 3 in place of four times true.
#
# Expected: the mask of inference, which is true everywhere, or a Dropout that stays. Seen with onnxslim 0.1.98, onnxsim 0.8.1, onnx 1.23.2, ONNX
# Runtime 1.32.0 and NumPy 2.4.6: onnxslim joins both outputs of the node with its input. A Cast of the mask to float32 then returns the data. A
# Where that reads the mask gets float32 in place of bool, and ONNX Runtime rejects the model. A Dropout stays if its mask is an output of the
# model. onnxsim keeps the node in all cases. A network that counts kept elements or masks a second tensor gets wrong numbers without a warning
# if a conversion follows, and an unreadable model otherwise.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxslim==0.1.98 onnxsim==0.8.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import onnxsim
import onnxslim

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
x = np.array([0, -2, 0.5, 3], np.float32)


def results(model):
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "rejected" if "tensor(float)" in str(error) else str(error)
    return [y.tolist() for y in session.run(None, {"x": x})]


head, ratio = "g (float[4] x) =>", "<float ratio = {0.5}>"
data, ones = x.tolist(), [1] * 4
rows = {
    "Cast of the mask": (f"{head} (float[4] y) {ratio} {{ t, m = Dropout(x, ratio)  y = Cast <to = 1> (m) }}", [ones], [data]),
    "Where of the mask": (f"{head} (float[4] y) {ratio} {{ t, m = Dropout(x, ratio)  y = Where(m, x, x) }}", [data], "rejected"),
    "mask as output": (f"{head} (float[4] y, bool[4] m) {ratio} {{ y, m = Dropout(x, ratio) }}", [data, ones], [data, ones]),
}
changed = False
for name, (text, expected, after) in rows.items():
    text = f'<ir_version: 8, opset_import: ["": 18]> {text}'
    original = onnx.parser.parse_model(text)
    onnx.checker.check_model(original, full_check=True)
    slim, simplified = onnxslim.slim(onnx.parser.parse_model(text)), onnxsim.simplify(onnx.parser.parse_model(text))[0]
    seen = [results(model) for model in (original, simplified, slim)]
    print(f"{name}: {seen[0]}, after onnxsim {seen[1]}, after onnxslim {seen[2]} {[node.op_type for node in slim.graph.node]}")
    changed |= seen != [expected, expected, after]
if changed:
    sys.exit("the behaviour has changed")
print("as described: the data takes the place of the mask")
PYTHON
