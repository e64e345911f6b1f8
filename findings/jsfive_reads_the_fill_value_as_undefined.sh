#!/usr/bin/env bash
# jsfive reads the elements of an HDF5 dataset that were never written as undefined in place of the fill value 7, and the int64 number 2**53 + 1 as 2**53.
#
# Expected: 7, as from h5py and as the HDF5 library defines it for parts of a chunked dataset without data, and a BigInt or an error. Seen with jsfive 0.4.2 on
# Node.js 20 and h5py 3.16.0: a chunk that is not in the file leaves holes in the array, also for the default fill value 0, while holes in a chunk are right. A sum
# over the array is NaN, and a typed array made from it has zeros for integers. Datasets that grow or that are sparse have such chunks. No error is
# raised for either.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 h5py==3.16.0
npm install --silent --no-audit --no-fund --ignore-scripts jsfive@0.4.2
"$work/venv/bin/python" - <<'PYTHON'
import h5py
import numpy as np

with h5py.File("file.h5", "w") as file:
    for name, fill in (("seven", 7), ("default", None)):
        for dtype in ("i4", "f8"):
            data = file.create_dataset(f"{name}_{dtype}", (6,), dtype, chunks=(2,), fillvalue=fill)
            data[0] = 1
            assert data[:].tolist() == [1] + [fill or 0] * 5
    file["large"] = np.array([2**53 + 1, 5])
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { File } from "jsfive";

console.log(`jsfive ${JSON.parse(readFileSync("node_modules/jsfive/package.json")).version}, Node.js ${process.version}`);
const bytes = readFileSync("file.h5");
const file = new File(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length), "file.h5");
let changed = false;
for (const [name, fill] of [["seven", 7], ["default", 0]]) {
  for (const type of ["i4", "f8"]) {
    const seen = Array.from(file.get(`${name}_${type}`).value);
    const sum = seen.reduce((total, each) => total + each, 0);
    console.log(`${name}, ${type}: ${seen.map(String).join()}; sum ${sum}, should be ${1 + 5 * fill}`);
    changed ||= seen[0] !== 1 || seen[1] !== fill || seen.length !== 6 || seen.slice(2).some((each) => each !== undefined);
  }
}
const large = file.get("large").value;
console.log(`int64 9007199254740993: ${large[0]}`);
if (changed || large[0] !== 2 ** 53) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: chunks that are not in the file are holes");
JAVASCRIPT
node read.mjs
