#!/usr/bin/env bash
# rotary-embedding-torch rotates tokens 256 and 257 of a bfloat16 query by the same angle, and tokens 511 to 513 as well.
#
# Expected: each token has its own position, and the result is the float32 result rounded to bfloat16. Seen with rotary-embedding-torch 0.9.1
# and torch 2.14.1 (CPU, x86-64 Linux) on 2026-11-29: the positions have the type of the query, and bfloat16 has no odd integers above 256. The
# errors are as large as the numbers, 2.2 for a query of ones. float16 is affected from position 2049 on. The frequencies are cached: a
# float32 query after a bfloat16 query of the same module has the wrong positions too. The attention score of two neighbours,
# 61.8 in float32, is 48, 56 or 64 in bfloat16. No warning is given. Up to 257 tokens, a comparison with float32 shows rounding errors only.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 einops==0.8.2 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch-einops-utils==0.2.0 rotary-embedding-torch==0.9.1
cat > "$work/rotary.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from rotary_embedding_torch import RotaryEmbedding

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("rotary-embedding-torch", "torch")))
tokens = 4096
query = torch.ones(1, 1, tokens, 64)
correct = RotaryEmbedding(dim=64).rotate_queries_or_keys(query)[0, 0]


def same_as_previous(rotated):
    """Return the tokens that are equal to the previous token in all 64 numbers."""
    return [place for place in range(1, tokens) if torch.equal(rotated[place], rotated[place - 1])]


changed = False
for dtype, first in ((torch.float32, None), (torch.bfloat16, 257), (torch.float16, 2049)):
    module = RotaryEmbedding(dim=64)
    rotated = module.rotate_queries_or_keys(query.to(dtype))[0, 0]
    repeated = same_as_previous(rotated)
    error = float((rotated.float() - correct).abs().max())
    later = float((module.rotate_queries_or_keys(query)[0, 0] - correct).abs().max())
    print(f"{dtype}: {len(repeated)} of {tokens} tokens are equal to the previous one, the first is {repeated[:1]}")
    print(f"    largest error {error:.4f}, and {later:.4f} for a float32 query afterwards")
    changed |= (repeated[:1] or [None])[0] != first or rotated.dtype != dtype
    changed |= (error > 1, later > 1) != (first is not None, first is not None)
    if dtype is torch.bfloat16:
        for place in (100, 256, 257, 514):
            score, expected = (float(x[place].float() @ x[place + 1].float()) for x in (rotated, correct))
            print(f"    score of tokens {place} and {place + 1}: {score:.1f}, float32 {expected:.1f}")
            changed |= (abs(score - expected) > 1) != (place > 255)
if changed:
    sys.exit("the behaviour has changed")
print("as described: bfloat16 tokens share positions")
PYTHON
"$work/venv/bin/python" "$work/rotary.py"
