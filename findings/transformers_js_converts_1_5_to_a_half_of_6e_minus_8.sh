#!/usr/bin/env bash
# In Transformers.js on Node.js 20, a tensor with 0.5, 1.5 and 1000 that is converted to float16 and back has 0, 6e-8 and 6e-5.
#
# Expected: 0.5, 1.5 and 1000, which half precision has. Seen with @huggingface/transformers 4.3.2 where JavaScript has no Float16Array: the bits
# of halves are kept as 16-bit integers, and Tensor.to("float16") stores each number truncated in place of its bits. The way back reads the
# bits rightly. A model in half precision gets inputs near zero and returns a plausible result. to("bool") keeps the low byte: 0.5 and 256 are
# false, where PyTorch has true. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts @huggingface/transformers@4.3.2
cat > half.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { Tensor } from "@huggingface/transformers";

const { version } = JSON.parse(readFileSync("node_modules/@huggingface/transformers/package.json"));
const native = typeof Float16Array !== "undefined";
console.log(`@huggingface/transformers ${version}, Node.js ${process.version}, Float16Array: ${native}`);
const numbers = [0.5, 1.5, 3, 1000, 70000];
const tensor = new Tensor("float32", Float32Array.from(numbers), [5]);
const half = tensor.to("float16");
const back = half.to("float32");
const right = new Tensor("float16", Uint16Array.of(0x3800, 0x3e00, 0x4200, 0x63d0, 0x7c00), [5]).to("float32");
const boolean = new Tensor("float32", Float32Array.of(0.5, 0, 1, 256), [4]).to("bool");
console.log(`${numbers} as float16: ${half.data.constructor.name} ${half.data}, and back as float32: ${back.data}`);
console.log(`bits of the right halves as float32: ${right.data}`);
console.log(`0.5, 0, 1 and 256 as bool: ${boolean.data}`);
// With a Float16Array, the conversion is left to JavaScript.
const described = native ? "0.5,1.5,3,1000,Infinity" : [0, 1, 3, 1000, 4464].map((bits) => (bits < 1024 ? bits * 2 ** -24 : 0.00066375732421875)).join();
let changed = String(back.data) !== described || String(boolean.data) !== "0,0,1,0";
changed ||= !native && String(right.data) !== "0.5,1.5,3,1000,Infinity";
if (native) {
  console.log("this JavaScript has a Float16Array: the numbers are converted");
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: a half gets the truncated number as its bits");
JAVASCRIPT
node half.mjs
