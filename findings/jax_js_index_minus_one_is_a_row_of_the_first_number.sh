#!/usr/bin/env bash
# In jax-js, row -1 of [[10, 20], [30, 40], [50, 60]] by an array of indices is [10, 10], and the one-hot vector of -1 is all ones.
#
# Expected: [50, 60] and zeros, as in JAX and NumPy and as jax-js documents for a negative number: slice(-1) is [50, 60]. Seen with @jax-js/jax
# 0.1.25 on Node.js 20 with its Wasm backend, for take, takeAlongAxis and slice with an array, and for nn.oneHot, which takes rows of the identity
# matrix. The number is taken from the place before the row in memory, or from place 0 if the array starts behind it: column -1 is 10, 20 and 40.
# -1 is the usual label for a pixel or a token to be ignored; here it counts for all classes in a cross entropy. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts @jax-js/jax@0.1.25
cat > index.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { defaultDevice, init, nn, numpy as np } from "@jax-js/jax";

await init("wasm");
defaultDevice("wasm");
console.log(`@jax-js/jax ${JSON.parse(readFileSync("node_modules/@jax-js/jax/package.json")).version}, Node.js ${process.version}`);
const matrix = () => np.array([[10, 20], [30, 40], [50, 60]]);
const indices = (...numbers) => np.array(numbers, { dtype: "int32" });
const rows = {
  "slice(-1)": [matrix().slice(-1), "[50,60]"],
  "slice of the array 1, -1": [matrix().slice(indices(1, -1)), "[[30,40],[10,10]]"],
  "take of rows 2, -1": [np.take(matrix(), indices(2, -1), 0), "[[50,60],[10,10]]"],
  "take of columns 0, -1": [np.take(matrix(), indices(0, -1), 1), "[[10,10],[30,20],[50,40]]"],
  "takeAlongAxis of column -1": [np.takeAlongAxis(matrix(), np.array([[-1], [-1], [-1]], { dtype: "int32" }), 1), "[[10],[20],[40]]"],
  "take of 1, -1 from 10, 20, 30": [np.take(np.array([10, 20, 30]), indices(1, -1)), "[20,10]"],
  "one-hot vectors of 1, 2, -1": [nn.oneHot(indices(1, 2, -1), 3), "[[0,1,0],[0,0,1],[1,1,1]]"],
};
const cross = np.sum(nn.oneHot(indices(0, -1), 2).mul(nn.logSoftmax(np.array([[3, 0], [3, 0]]), -1))).neg().js();
rows["cross entropy of two tokens, the second with label -1, is above 3"] = [{ js: () => cross > 3 }, "true"];
let changed = false;
for (const [name, [array, described]] of Object.entries(rows)) {
  const seen = JSON.stringify(array.js());
  console.log(`${name}: ${seen}`);
  changed ||= seen !== described;
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: a negative index in an array is a place before the row");
JAVASCRIPT
node index.mjs
