#!/usr/bin/env bash
# node-wav reads the sample -1 of a 24-bit WAV file as 1, and the silence that it writes to an 8-bit file is -0.0078.
#
# Expected: -1 and 0, as in soundfile 0.14.0 and as node-wav has them for 16 and 32 bits. Seen with node-wav 0.0.2 on Node.js 20, for files of node-wav
# and of soundfile: the lowest number of 24 bits is taken for a positive one. A sine that is clipped at full scale gets jumps from -1 to 1,
# the loudest click that exists, in each period. An 8-bit file of node-wav has 127 for silence, where the format has 128, so each file has an
# offset. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 soundfile==0.14.0
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts node-wav@0.0.2
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np
import soundfile

samples = np.array([0, 0.5, -0.5, 1, -1, -1, 1])
for bits in (16, 24, 32):
    soundfile.write(f"soundfile-{bits}.wav", samples, 8000, subtype=f"PCM_{bits}")
PYTHON
cat > wav.cjs <<'JAVASCRIPT'
const { readFileSync, writeFileSync } = require("node:fs");
const wav = require("node-wav");

console.log(`node-wav ${JSON.parse(readFileSync("node_modules/node-wav/package.json")).version}, Node.js ${process.version}`);
const samples = new Float32Array([0, 0.5, -0.5, 1, -1, -1, 1]);
for (const bitDepth of [8, 16, 24, 32]) {
  writeFileSync(`node-wav-${bitDepth}.wav`, wav.encode([samples], { sampleRate: 8000, float: false, bitDepth }));
}
const seen = {};
for (const name of ["node-wav-8", "node-wav-16", "node-wav-24", "node-wav-32", "soundfile-16", "soundfile-24", "soundfile-32"]) {
  seen[name] = Array.from(wav.decode(Uint8Array.from(readFileSync(`${name}.wav`)).buffer).channelData[0]);
}
writeFileSync("seen.json", JSON.stringify(seen));
JAVASCRIPT
node wav.cjs
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import json
import pathlib
import sys

import numpy as np
import soundfile

print(f"soundfile {importlib.metadata.version('soundfile')}, NumPy {np.__version__}")
right = np.array([0, 0.5, -0.5, 1, -1, -1, 1])
changed = False
for name, samples in json.loads(pathlib.Path("seen.json").read_text()).items():
    other = soundfile.read(f"{name}.wav")[0]
    print(f"{name}.wav: {np.round(samples, 4).tolist()}; soundfile: {np.round(other, 4).tolist()}")
    bits = int(name.rpartition("-")[2])
    # The file itself is right but for 8 bits, in which silence is one step too low.
    changed |= not np.allclose(other, right, atol=0.016 if bits == 8 else 1e-4) or (bits == 8) != (other[0] == -1 / 128)
    changed |= (bits == 8) != (samples[0] < 0)
    described = np.where(right == -1, 1, right) if bits == 24 else right
    changed |= not np.allclose(samples, described, atol=0.016 if bits == 8 else 1e-4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the lowest sample of 24 bits is read as the highest")
PYTHON
