#!/usr/bin/env bash
# In PyTorch, get_optimizer_state_dict before the first step changes the training: a weight of 1 is 0.926 after a step in place of 0.9.
#
# Expected: a function that returns the state leaves the optimizer unchanged, as optimizer.state_dict() does, so that a checkpoint of the
# start has no effect on the run that writes it. Seen with torch 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30: get_state_dict
# and get_optimizer_state_dict of torch.distributed.checkpoint run a step with gradients of zero and a learning rate of zero if the
# optimizer has no state yet, and leave its results in the optimizer. Adam, AdamW, NAdam, RAdam and Adamax continue with the bias
# correction of the second step, the first step of SGD with a dampening of 0.9 is a tenth, and Rprop continues with a step size of 1e-6.
# SGD without dampening, RMSprop and Adagrad are right, and so is a call after the first step. No warning is given. A run that saves its
# start differs from a run that does not.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy")))
optim = torch.optim
readers = {
    "no call": lambda model, optimizer: None,
    "state_dict": lambda model, optimizer: optimizer.state_dict(),
    "get_optimizer_state_dict": get_optimizer_state_dict,
    "get_state_dict": get_state_dict,
}


def train(make, reader, at):
    """Return the weight after each of three steps; the state is read before step ``at``."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = make(model.parameters())
    weights = []
    for step in range(3):
        if step == at:
            readers[reader](model, optimizer)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        weights.append(round(float(model.weight.detach()[0, 0]), 3))
    return weights


rows = {
    "Adam": (lambda p: optim.Adam(p, lr=0.1), True),
    "AdamW": (lambda p: optim.AdamW(p, lr=0.1), True),
    "NAdam": (lambda p: optim.NAdam(p, lr=0.1), True),
    "RAdam": (lambda p: optim.RAdam(p, lr=0.1), True),
    "Adamax": (lambda p: optim.Adamax(p, lr=0.1), True),
    "Rprop": (lambda p: optim.Rprop(p, lr=0.1), True),
    "SGD, dampening": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.9), True),
    "SGD, momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), False),
    "RMSprop": (lambda p: optim.RMSprop(p, lr=0.1), False),
    "Adagrad": (lambda p: optim.Adagrad(p, lr=0.1), False),
}
changed = False
for name, (make, affected) in rows.items():
    seen = {reader: train(make, reader, 0) for reader in readers}
    later = train(make, "get_optimizer_state_dict", 1)
    print(f"{name}: {seen['no call']}, after get_optimizer_state_dict {seen['get_optimizer_state_dict']}")
    changed |= seen["state_dict"] != seen["no call"] or later != seen["no call"]
    changed |= seen["get_state_dict"] != seen["get_optimizer_state_dict"]
    changed |= (seen["get_state_dict"] != seen["no call"]) != affected
    changed |= name == "Adam" and seen["get_state_dict"] != [0.926, 0.84, 0.749]
if changed:
    sys.exit("the behaviour has changed")
print("as described: the call is a step")
PYTHON
