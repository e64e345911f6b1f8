#!/usr/bin/env bash
# geotiff.js writes the Int16Array 0, 1, 2, 3, 4, 5 as the pixels 1, 515, 1029, 0, 0, 0, and an Int32Array into a quarter of the image.
#
# Expected: the numbers of the array, as for Uint16Array, Uint32Array, Float32Array and Float64Array, or an error. Seen with geotiff 3.0.5 on
# Node.js 20 for writeArrayBuffer, whose types list Int16Array and Int32Array; tifffile 2026.3.3 reads the same numbers. One byte of each number is
# stored, so that two or four numbers become one pixel, and the rest of the image is zeros. The file has the right size and says that it has
# signed integers of 16 or 32 bits, the common type of elevation models. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tifffile==2026.3.3
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts geotiff@3.0.5
cat > write.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import { fromArrayBuffer, writeArrayBuffer } from "geotiff";

console.log(`geotiff ${JSON.parse(readFileSync("node_modules/geotiff/package.json")).version}, Node.js ${process.version}`);
const numbers = [0, 1, 2, 3, 4, 5, 1000, -3].concat(Array.from({ length: 8 }, (_, index) => 10 + index));
for (const type of [Uint16Array, Uint32Array, Float32Array, Float64Array, Int16Array, Int32Array]) {
  const pixels = type.from(numbers, (number) => (type.name.startsWith("Uint") ? Math.abs(number) : number));
  const file = writeArrayBuffer(pixels, { height: 4, width: 4 });
  writeFileSync(`${type.name}.tif`, Buffer.from(file));
  const image = await (await fromArrayBuffer(file)).getImage();
  const [read] = await image.readRasters();
  writeFileSync(`${type.name}.json`, JSON.stringify({ type: read.constructor.name, written: [...pixels], read: [...read] }));
}
JAVASCRIPT
node write.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import tifffile

print(f"tifffile {tifffile.__version__}")
changed = False
for name in ("Uint16Array", "Uint32Array", "Float32Array", "Float64Array", "Int16Array", "Int32Array"):
    row = json.loads(pathlib.Path(f"{name}.json").read_text())
    other = tifffile.imread(f"{name}.tif")
    print(f"{name}: {row['written']} is read as {row['read']}; tifffile: {other.dtype}, {other.shape}")
    changed |= other.ravel().tolist() != row["read"] or row["type"] != name
    # The low byte of each number, and bytes of zero behind them.
    low = bytes(number % 256 for number in row["written"])
    size = other.itemsize
    squeezed = [int.from_bytes(low[start : start + size], "big", signed=True) for start in range(0, 16, size)]
    squeezed += [0] * (16 - len(squeezed))
    changed |= row["read"] != (squeezed if name.startswith("Int") else row["written"])
if changed:
    sys.exit("the behaviour has changed")
print("as described: one byte of each signed number is written")
PYTHON
