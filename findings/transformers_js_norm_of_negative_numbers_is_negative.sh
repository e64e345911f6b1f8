#!/usr/bin/env bash
# In Transformers.js, the 1-norm of -1 and -2 is -3, their 3-norm is NaN, and normalize(1) of -1 and 2 divides by 1.
#
# Expected: 3, 2.08 and a division by 3, as in PyTorch, whose norm and normalize the tensors of Transformers.js follow. Seen with
# @huggingface/transformers 4.3.2 on Node.js 20: numbers are raised to the power p without their absolute value, and sum() is norm(1). Embeddings have
# negative numbers, and a vector whose numbers add up to 0 becomes infinite. Even p are right. The norm of integers is truncated to their
# type: that of the bytes 200 and 100 is 8. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts @huggingface/transformers@4.3.2
cat > norm.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { Tensor } from "@huggingface/transformers";

const { version } = JSON.parse(readFileSync("node_modules/@huggingface/transformers/package.json"));
console.log(`@huggingface/transformers ${version}, Node.js ${process.version}`);
const vector = (...numbers) => new Tensor("float32", Float32Array.from(numbers), [1, numbers.length]);
const bytes = new Tensor("uint8", Uint8Array.of(200, 100), [1, 2]);
const rows = [
  ["1-norm of -1, -2", vector(-1, -2).norm(1), "-3"],
  ["1-norm of each row", vector(-1, 2).norm(1, 1), "1"],
  ["2-norm of -3, 4", vector(-3, 4).norm(2), "5"],
  ["3-norm of -1, -2", vector(-1, -2).norm(3), "NaN"],
  ["normalize(1) of -1, 2", vector(-1, 2).normalize(1), "-1,2"],
  ["normalize(1) of 1, 2", vector(1, 2).normalize(1), "0.333,0.667"],
  ["normalize(1) of -1, 0.5, 0.5", vector(-1, 0.5, 0.5).normalize(1), "-Infinity,Infinity,Infinity"],
  ["normalize() of -3, 4", vector(-3, 4).normalize(), "-0.6,0.8"],
  ["2-norm of the bytes 200, 100", bytes.norm(2, 1), "8"],
];
let changed = false;
for (const [name, tensor, described] of rows) {
  const seen = Array.from(tensor.data, (number) => String(Number(number.toFixed(3)))).join(",");
  console.log(`${name}: ${seen}`);
  changed ||= seen !== described;
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: signs are kept");
JAVASCRIPT
node norm.mjs
