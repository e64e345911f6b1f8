#!/usr/bin/env bash
# Apache Arrow for JavaScript converts 65536 to the Float16 number 2, 100000 to 3.05 and a million to 3.81; 65520 becomes infinity.
#
# Expected: infinity, as in PyArrow 26.0.1 and NumPy 2.4.6 and as for 65520 and 1e30. Seen with apache-arrow 21.2.0 on Node.js 20 for vectors of
# type Float16 that are built from numbers. A number from 65536 on gets an exponent that lost its upper bits, unless the number has more than 21
# significant bits. A tie is rounded away from zero: 2049 becomes 2050, where the others have 2048. An embedding or an activation that
# overflows becomes a small number that looks right, and a file or a message with it is read so everywhere. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyarrow==26.0.1
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts apache-arrow@21.2.0
cat > write.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import { Float16, Table, tableToIPC, vectorFromArray } from "apache-arrow";

console.log(`apache-arrow ${JSON.parse(readFileSync("node_modules/apache-arrow/package.json")).version}, Node.js ${process.version}`);
const numbers = [1.5, -0.1, 2049, 2051, 65504, 65520, 65536, 70000, 100000, 1e6, -1e6, 1e30];
const vector = vectorFromArray(numbers, new Float16());
writeFileSync("file.arrow", tableToIPC(new Table({ x: vector }), "file"));
writeFileSync("seen.json", JSON.stringify({ numbers, seen: vector.toJSON().map(String) }));
JAVASCRIPT
node write.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import numpy as np
import pyarrow
import pyarrow.ipc

print(f"PyArrow {pyarrow.__version__}, NumPy {np.__version__}")
row = json.loads(pathlib.Path("seen.json").read_text())
numbers, seen = row["numbers"], np.array(row["seen"], np.float64)
read = pyarrow.ipc.open_file("file.arrow").read_all()["x"].to_numpy()
with np.errstate(over="ignore"):
    right = np.array(numbers).astype(np.float16)
changed = not np.array_equal(read.astype(np.float64), seen)
changed |= not np.array_equal(pyarrow.array(numbers).cast(pyarrow.float16()).to_numpy(), right)
for number, arrow, numpy in zip(numbers, seen, right, strict=True):
    print(f"{number:g}: {arrow:g}, and {float(numpy):g} in PyArrow and NumPy")
described = {2049: 2050, 65536: 2, 70000: 2.134765625, 100000: 3.05078125, 1e6: 3.814453125, -1e6: -3.814453125}
changed |= seen.tolist() != [described.get(number, float(half)) for number, half in zip(numbers, right, strict=True)]
if changed:
    sys.exit("the behaviour has changed")
print("as described: large numbers become small ones")
PYTHON
