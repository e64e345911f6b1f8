#!/usr/bin/env bash
# A causal decoder of x-transformers depends on later tokens if attn_orthog_projected_values or orthog_residual is set.
#
# Expected: the logits of a token depend on this token and on earlier ones only, as in every other Decoder of the package: a new last token
# leaves all logits before it as they are. Seen with x-transformers 2.31.10 and torch 2.13.0 (CPU, x86-64 Linux) on 2026-11-29: they change by some
# thousandths in an untrained network. The projection uses one scalar product over all tokens and channels of a sequence, in place
# of one for each token, and orthog_residual, which has the same formula, is affected too. No warning is given. The loss in training is
# lower than the model deserves, because it sees the tokens to predict, and tokens that are generated one after another have other logits.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 einops==0.8.2 x-transformers==2.31.10
cat > "$work/causal.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from x_transformers import Decoder, TransformerWrapper

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("x-transformers", "torch")))
cases = {
    "no option": ({}, False),
    "attn_orthog_projected_values": ({"attn_orthog_projected_values": True}, True),
    "attn_orthog_projected_values_per_head": ({"attn_orthog_projected_values_per_head": True}, True),
    "orthog_residual": ({"orthog_residual": True}, True),
    "gate_residual": ({"gate_residual": True}, False),
}
changed = False
for name, (options, affected) in cases.items():
    torch.manual_seed(0)
    decoder = Decoder(dim=64, depth=4, heads=4, **options)
    network = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=decoder).eval()
    tokens = torch.randint(0, 50, (1, 24))
    others = tokens.clone()
    others[0, -1] = (others[0, -1] + 1) % 50
    with torch.no_grad():
        difference = float((network(tokens) - network(others))[:, :-1].abs().max())
        first = float((network(tokens) - network(others))[:, 0].abs().max())
    print(f"{name}: a new last token changes earlier logits by {difference:.1e}, the first ones by {first:.1e}")
    changed |= (difference > 1e-4) != affected or (first > 1e-5) != affected
if changed:
    sys.exit("the behaviour has changed")
print("as described: orthogonal projections look at later tokens")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/causal.py"
