#!/usr/bin/env bash
# USearch reads uint8 vectors as bits: (100, 50, 20, 3, 0, 1, 2, 3) is stored as (0, 1, 1, 0, 0, 1, 0, 0), in an index of uint8 too.
#
# Expected: the numbers, as from the same vector in float32, or an error as for int32. Seen with usearch 2.26.6 and NumPy 2.4.6
# (x86-64 Linux) on 2026-11-29, for indexes of each type but bits: the eight bits of the first byte become the eight elements, and the
# other bytes are ignored. Images that differ after the first eighth are at distance 0. int8 is divided by 127 in indexes of floats, so that
# an int8 vector is not found next to the same numbers in float32. Each vector has the right number of dimensions, and no warning is given.
# astype(np.float32) before add and search is enough for indexes of floats.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 usearch==2.26.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from usearch.index import Index

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("usearch", "numpy")))
vector = np.array([100, 50, 20, 3, 0, 1, 2, 3], np.uint8)
bits = np.unpackbits(vector[:1]).tolist()
changed = False


def stored(kind, x):
    index = Index(ndim=len(x), metric="l2sq", dtype=kind)
    index.add(0, x)
    return np.asarray(index.get(0))


for kind in ("f64", "f32", "f16", "bf16", "u8"):
    bytes_, floats = stored(kind, vector), stored(kind, vector.astype(np.float32))
    print(f"index {kind}: uint8 {bytes_.tolist()}, float32 {floats.tolist()}")
    changed |= bytes_.tolist() != bits or (kind != "u8" and floats.tolist() != vector.tolist())
signed = stored("f32", vector.astype(np.int8))
print(f"index f32: int8 {signed.round(3).tolist()}")
changed |= not np.allclose(signed, vector / 127)
try:
    stored("f32", vector.astype(np.int32))
    error = "no error"
except ValueError as caught:
    error = str(caught)
print(f"index f32: int32 raises {error!r}")
changed |= error == "no error"

generator = np.random.default_rng(0)
images = generator.integers(0, 256, (2, 64), dtype=np.uint8)
images[1, :8] = images[0, :8]
distances = {}
for name, data in (("uint8", images), ("float32", images.astype(np.float32))):
    index = Index(ndim=64, metric="l2sq", dtype="f32")
    index.add(0, data[0])
    distances[name] = float(index.search(data[1], 1).distances[0])
print(f"two images of 64 bytes that differ after the first eight: squared distances {distances}")
changed |= distances["uint8"] != 0 or distances["float32"] < 1e5
if changed:
    sys.exit("the behaviour has changed")
print("as described: the bits of the first bytes are the elements")
PYTHON
