#!/usr/bin/env bash
# In jax-js, the sum of three trues is true, so that counting by np.sum(np.greater(x, 0)) returns true for one match and for a thousand.
#
# Expected: 3, an integer, as in JAX and NumPy, and as jax-js counts in cumsum, countNonzero and mean. Seen with @jax-js/jax 0.1.25 on Node.js 20
# with its Wasm backend: sum, nansum, prod, dot and matmul of booleans stay booleans. Divided by the number of elements, a count becomes an
# accuracy of 1 / n, or 0: JavaScript computes with true as 1. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts @jax-js/jax@0.1.25
cat > count.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { defaultDevice, init, numpy as np } from "@jax-js/jax";

await init("wasm");
defaultDevice("wasm");
console.log(`@jax-js/jax ${JSON.parse(readFileSync("node_modules/@jax-js/jax/package.json")).version}, Node.js ${process.version}`);
const trues = () => np.array([true, true, true]);
const labels = () => np.array([0, 1, 2, 3], { dtype: "int32" });
const correct = np.sum(np.equal(labels(), np.array([0, 1, 2, 0], { dtype: "int32" }))).js();
const rows = {
  sum: [np.sum(trues()).js(), true],
  "sum of each row": [np.sum(np.array([[true, true], [false, false]]), 1).js(), [true, false]],
  dot: [np.dot(trues(), trues()).js(), true],
  "three correct of four by sum": [correct, true],
  "accuracy by sum": [correct / 4, 0.25],
  "sum of integers": [np.sum(trues().astype("int32")).js(), 3],
  cumsum: [np.cumsum(trues()).js(), [1, 2, 3]],
  countNonzero: [np.countNonzero(trues()).js(), 3],
  mean: [np.mean(trues()).js(), 1],
};
let changed = false;
for (const [name, [seen, described]] of Object.entries(rows)) {
  console.log(`${name}: ${JSON.stringify(seen)}`);
  changed ||= JSON.stringify(seen) !== JSON.stringify(described);
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: a sum of booleans is a boolean");
JAVASCRIPT
node count.mjs
