#!/usr/bin/env bash
# In numpy-ts, 3 * 0.5 is 1 for an int32 array and 3 for an int64 array, and the bytes 10 and 200 minus their mean, 105, are 161 and 95.
#
# Expected: 1.5, and -95 and 95, float64 numbers, as in NumPy and as for an array of 0.5 in place of the number. Seen with numpy-ts 1.4.0 on Node.js
# 20, a library that calls itself complete NumPy for JavaScript: a number takes the type of the integer array. Results are truncated and wrap
# around, and for 64 bits the number itself is rounded first, so that an int64 1 equals 0.5. add, subtract, multiply, mod, floor_divide,
# maximum and where do so; divide, power and hypot return floats. A division by 255 works, and a product with 1 / 255 is black. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts numpy-ts@1.4.0
cat > half.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import * as np from "numpy-ts";

console.log(`numpy-ts ${JSON.parse(readFileSync("node_modules/numpy-ts/package.json")).version}, Node.js ${process.version}`);
const array = (type) => np.array([0, 1, 3], type);
const pixels = np.array([10, 200], "uint8");
const rows = [
  ["int32 * 0.5", np.multiply(array("int32"), 0.5), "int32 0,0,1"],
  ["int64 * 0.5", np.multiply(array("int64"), 0.5), "int64 0,1,3"],
  ["int32 * array of 0.5", np.multiply(array("int32"), np.array([0.5, 0.5, 0.5])), "float64 0,0.5,1.5"],
  ["float32 * 0.5", np.multiply(array("float32"), 0.5), "float32 0,0.5,1.5"],
  ["int32 / 2", np.divide(array("int32"), 2), "float64 0,0.5,1.5"],
  ["int32 + 0.5", np.add(array("int32"), 0.5), "int32 0,1,3"],
  ["uint64 - 0.5", np.subtract(array("uint64"), 0.5), "uint64 18446744073709551615,0,2"],
  ["int64 == 0.5", np.equal(array("int64"), 0.5), "bool 0,1,0"],
  ["maximum of int32 and 1.5", np.maximum(array("int32"), 1.5), "int32 1,1,3"],
  ["where(true and false, int32, 0.5)", np.where(np.array([true, false, true], "bool"), array("int32"), 0.5), "int32 0,0,3"],
  ["pixels - mean", np.subtract(pixels, np.mean(pixels)), "uint8 161,95"],
  ["pixels / 255", np.divide(pixels, 255), `float64 ${10 / 255},${200 / 255}`],
  ["pixels * (1 / 255)", np.multiply(pixels, 1 / 255), "uint8 0,0"],
];
let changed = false;
for (const [name, result, described] of rows) {
  const seen = `${result.dtype} ${result.toArray().join(",")}`;
  console.log(`${name}: ${seen}`);
  changed ||= seen !== described;
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: a number takes the type of the integer array");
JAVASCRIPT
node half.mjs
