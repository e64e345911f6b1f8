#!/usr/bin/env bash
# onnx-graphsurgeon's fold_constants ignores the attributes start and end of Shape: the height of a 1 x 3 x 4 x 5 image becomes 1.
#
# Expected: the part of the shape that start and end select, as in ONNX since opset 15, or a node that stays. Seen with onnx-graphsurgeon 0.6.1,
# onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6: Shape with start=2 of a 1 x 3 x 4 x 5 tensor is folded to 1, 3, 4, 5 in place of 4, 5. The
# first element of it, which is the height, becomes 1, the size of the batch. A Reshape to the size of the batch and -1 returns five axes in place
# of two. onnxsim 0.8.1 folds the same nodes to the right numbers, and onnx-graphsurgeon does so for a Shape without attributes. An engine that
# is built from the folded model has other sizes, or mixes images of a batch, without a warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnx-graphsurgeon==0.6.1 onnxsim==0.8.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnx_graphsurgeon
import onnxruntime
import onnxsim

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
x = np.zeros((1, 3, 4, 5), np.float32)


def result(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].tolist()


def folded(model):
    graph = onnx_graphsurgeon.import_onnx(model)
    return onnx_graphsurgeon.export_onnx(graph.fold_constants().cleanup().toposort())


head = "g (float[1, 3, 4, 5] x) =>"
whole = [1, 3, 4, 5]
rows = {
    "start=2": (f"{head} (int64[2] y) {{ y = Shape <start = 2> (x) }}", [4, 5], whole),
    "start=-1": (f"{head} (int64[1] y) {{ y = Shape <start = -1> (x) }}", [5], whole),
    "start=1, end=2": (f"{head} (int64[1] y) {{ y = Shape <start = 1, end = 2> (x) }}", [3], whole),
    "height": (f"{head} (int64 y) <int64 i = {{0}}> {{ s = Shape <start = 2> (x)  y = Gather(s, i) }}", 4, 1),
    "height of the whole shape": (f"{head} (int64 y) <int64 i = {{2}}> {{ s = Shape(x)  y = Gather(s, i) }}", 4, 4),
    "shape of a Reshape to the batch and -1": (
        f"{head} (int64[k] y) <int64[1] rest = {{-1}}> {{ b = Shape <end = 1> (x)  s = Concat <axis = 0> (b, rest)  r = Reshape(x, s)  y = Shape(r) }}",
        [1, 60],
        [1, 3, 4, 5, 1],
    ),
}
changed = False
for name, (text, expected, after) in rows.items():
    text = f'<ir_version: 8, opset_import: ["": 18]> {text}'
    models = [onnx.parser.parse_model(text) for _ in range(3)]
    onnx.checker.check_model(models[0], full_check=True)
    seen = [result(models[0]), result(onnxsim.simplify(models[1])[0]), result(folded(models[2]))]
    print(f"{name}: {seen[0]}, onnxsim {seen[1]}, onnx-graphsurgeon {seen[2]}")
    changed |= seen != [expected, expected, after]
if changed:
    sys.exit("the behaviour has changed")
print("as described: start and end are ignored")
PYTHON
