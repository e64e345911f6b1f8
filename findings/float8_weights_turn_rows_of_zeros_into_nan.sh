#!/usr/bin/env bash
# The float8 weights of torchao and optimum-quanto turn a row of zeros into NaN; the int8 weights of both packages keep it.
#
# Expected: the bias, 0.5, for an output whose weights are all zero. Seen with torchao 0.18.0, optimum-quanto 0.2.7 and torch 2.14.1 (CPU, x86-64
# Linux) on 2026-11-28: the scale of the row is its largest absolute value divided by that of the type, which is 0, and 0 / 0 is NaN. The output
# is NaN for every input. Float8WeightOnlyConfig of torchao, and qfloat8_e4m3fn and qfloat8_e5m2 of optimum-quanto are affected; their
# eight-, four- and two-bit integer types return the bias. No warning is given. Pruning produces rows of zeros, and so does padding of a
# vocabulary: one such row makes all outputs of the next layer NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 torch==2.14.1 torchao==0.18.0 optimum-quanto==0.2.7
cat > "$work/zeros.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from optimum.quanto import freeze, qfloat8_e4m3fn, qfloat8_e5m2, qint2, qint4, qint8, quantize
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_


def layer():
    """Return a layer of three outputs, the second of which has no weights."""
    linear = torch.nn.Linear(128, 3)
    with torch.no_grad():
        linear.weight.fill_(1)
        linear.weight[1] = 0
        linear.bias.fill_(0.5)
    return torch.nn.Sequential(linear)


def quanto(dtype):
    model = layer()
    quantize(model, weights=dtype)
    freeze(model)
    return model


def torchao(config):
    model = layer()
    quantize_(model, config)
    return model


models = {
    "float32": (layer(), False),
    "torchao, int8": (torchao(Int8WeightOnlyConfig()), False),
    "torchao, float8_e4m3fn": (torchao(Float8WeightOnlyConfig()), True),
    "optimum-quanto, int8": (quanto(qint8), False),
    "optimum-quanto, int4": (quanto(qint4), False),
    "optimum-quanto, int2": (quanto(qint2), False),
    "optimum-quanto, float8_e4m3fn": (quanto(qfloat8_e4m3fn), True),
    "optimum-quanto, float8_e5m2": (quanto(qfloat8_e5m2), True),
}
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torchao", "optimum-quanto")))
changed = False
for name, (model, is_nan) in models.items():
    with torch.no_grad():
        output = model(torch.full((1, 128), 1 / 128))[0]
    print(f"{name}: {[round(number, 2) for number in output.tolist()]}")
    expected = torch.tensor([1.5, float("nan") if is_nan else 0.5, 1.5])
    changed |= not torch.allclose(output, expected, rtol=0.02, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: a row of zeros is NaN in float8 only")
PYTHON
HOME="$work" "$work/venv/bin/python" "$work/zeros.py"
