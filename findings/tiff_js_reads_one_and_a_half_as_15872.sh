#!/usr/bin/env bash
# The npm package tiff, the decoder of image-js, reads the half-precision number 1.5 of a TIFF file as 15872, and the int16 number -50 as 65486.
#
# Expected: the number, as for float32 and float64, or an error, as for 32-bit integers. Seen with tiff 7.1.3 on Node.js 20 and tifffile 2026.3.3 as the
# writer: the array is chosen by the number of bits alone, except for 32 and 64. The field sampleFormat has the right code, 2 or 3, but the data
# are bits. Minimum, mean and display of the array are wrong, and a predictor on top does not change that. Elevations, temperatures and CT images are signed,
# and half precision is common for depth. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tifffile==2026.3.3
npm install --silent --no-audit --no-fund --ignore-scripts tiff@7.1.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import tifffile

for dtype in ("uint8", "uint16", "int8", "int16", "float16", "float32", "float64", "int32"):
    signed = np.dtype(dtype).kind != "u"
    numbers = np.array([[-50, 0, 1.5, 100]] if signed else [[50, 0, 1.5, 100]]).astype(dtype)
    tifffile.imwrite(f"{dtype}.tif", numbers, photometric="minisblack")
    assert np.array_equal(tifffile.imread(f"{dtype}.tif"), numbers)
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { decode } from "tiff";

console.log(`tiff ${JSON.parse(readFileSync("node_modules/tiff/package.json")).version}, Node.js ${process.version}`);
const described = {
  uint8: "Uint8Array 50,0,1,100",
  uint16: "Uint16Array 50,0,1,100",
  int8: "Uint8Array 206,0,1,100",
  int16: "Uint16Array 65486,0,1,100",
  float16: "Uint16Array 53824,0,15872,22080",
  float32: "Float32Array -50,0,1.5,100",
  float64: "Float64Array -50,0,1.5,100",
  int32: "Error",
};
let changed = false;
for (const [dtype, expected] of Object.entries(described)) {
  let seen, format;
  try {
    const [image] = decode(readFileSync(`${dtype}.tif`));
    seen = `${image.data.constructor.name} ${Array.from(image.data).join()}`;
    format = image.sampleFormat;
  } catch (error) {
    seen = error.constructor.name;
  }
  console.log(`${dtype}: ${seen}, sampleFormat ${format}`);
  changed ||= seen !== expected;
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: bits of signed and of half-precision numbers are read as unsigned");
JAVASCRIPT
node read.mjs
