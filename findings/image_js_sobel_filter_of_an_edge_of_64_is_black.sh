#!/usr/bin/env bash
# image-js' Sobel filter does not see an edge between the gray values 0 and 64, nor one between 0 and 128; one of 200 is weaker than one of 20.
#
# Expected: a magnitude that grows with the edge up to 255, as its filter for one direction has, and as SciPy's, clipped. Seen with image-js 1.7.0 on Node.js 20
# for derivativeFilter and gradientFilter with two kernels: the magnitude, four times the step, is written into 8 bits and wraps around, while results of
# directConvolution are clipped. 16-bit images get an 8-bit result too, and the option bitDepth, for a wider one, is ignored. The other way,
# convertBitDepth(16), turns white, 255, into 65280. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
npm install --silent --no-audit --no-fund --ignore-scripts image-js@1.7.0
cat > edges.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import { Image } from "image-js";

console.log(`image-js ${JSON.parse(readFileSync("node_modules/image-js/package.json")).version}, Node.js ${process.version}`);
const [kernelX, kernelY] = [[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], [[-1, -2, -1], [0, 0, 0], [1, 2, 1]]];
const edge = (step, bitDepth = 8) => {
  const data = (bitDepth === 8 ? Uint8Array : Uint16Array).from({ length: 40 }, (_, i) => (i % 8 < 4 ? 0 : step));
  return new Image(8, 5, { data, bitDepth, colorModel: "GREY" });
};
const middle = (image) => image.getRawImage().data[20];
const rows = [10, 20, 63, 64, 65, 128, 200, 255].map((step) => ({
  step,
  derivative: middle(edge(step).derivativeFilter()),
  gradient: middle(edge(step).gradientFilter({ kernelX, kernelY })),
  one: middle(edge(step).gradientFilter({ kernelX })),
}));
const deep = edge(640, 16).gradientFilter({ kernelX, kernelY, bitDepth: 16 });
const white = new Image(1, 1, { data: new Uint8Array([255]), bitDepth: 8, colorModel: "GREY" }).convertBitDepth(16);
writeFileSync("rows.json", JSON.stringify({ rows, deep: [deep.bitDepth, middle(deep)], white: white.getRawImage().data[0] }));
JAVASCRIPT
node edges.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import numpy as np
import scipy.ndimage

seen = json.loads(pathlib.Path("rows.json").read_text())
changed = False
for row in seen["rows"]:
    image = np.where(np.arange(8) < 4, 0.0, row["step"]) * np.ones((5, 1))
    right = np.hypot(scipy.ndimage.sobel(image, 0), scipy.ndimage.sobel(image, 1))[2, 4]
    print(f"edge of {row['step']}: derivativeFilter {row['derivative']}, gradientFilter {row['gradient']}, one direction {row['one']}; SciPy {right:.0f}")
    changed |= not row["derivative"] == row["gradient"] == right % 256 or row["one"] != min(right, 255)
print(f"16 bits, edge of 640, with bitDepth 16: {seen['deep'][0]} bits, {seen['deep'][1]}; 255 in 16 bits: {seen['white']}")
if changed or seen["deep"] != [8, 2560 % 256] or seen["white"] != 65280:
    sys.exit("the behaviour has changed")
print("as described: the magnitude wraps around")
PYTHON
