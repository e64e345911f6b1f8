#!/usr/bin/env bash
# TensorFlow.js on WebAssembly takes the bits of floats for integers: where of int32 numbers and 0.5 is 1056964608, and clipping int32 at 0.5 too.
#
# Expected: floats, as on the back end for the CPU, and as from maximum and add of the same tensors on both, since the types are upcast. Seen with TensorFlow.js
# 4.22.0 and its WebAssembly back end on Node.js 20. where copies elements without converting them, so that float32 numbers in an int32 result are
# huge integers and int32 numbers in a float32 result are nearly zero; it needs two tensors of one type to be right. clipByValue of NaN is the lower
# limit there, and NaN on the CPU. WebAssembly is the faster back end for pages without a GPU. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts @tensorflow/tfjs@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0
cat > where.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import * as tf from "@tensorflow/tfjs";
import { setWasmPaths } from "@tensorflow/tfjs-backend-wasm";

const folder = "node_modules/@tensorflow/tfjs-backend-wasm";
console.log(`TensorFlow.js ${tf.version.tfjs}, WebAssembly ${JSON.parse(readFileSync(`${folder}/package.json`)).version}, Node.js ${process.version}`);
setWasmPaths(`${folder}/wasm-out/`);
const described = {
  "where(int32, float32)": ["1,1.5,3,0 float32", "1,1069547520,3,0 int32"],
  "where(float32, int32)": ["0.5,2,-2,4 float32", "0.5,2.802596928649634e-45,-2,5.605193857299268e-45 float32"],
  "where(int32, 0.5)": ["1,0.5,3,0.5 float32", "1,1056964608,3,1056964608 int32"],
  "where(int32, int32 * 10)": ["1,20,3,40 float32", "1,1101004800,3,1109393408 int32"],
  "where(float32, float32 * 10)": ["0.5,15,-2,0 float32", "0.5,15,-2,0 float32"],
  "where(int32 as float32, float32)": ["1,1.5,3,0 float32", "1,1.5,3,0 float32"],
  "maximum(int32, float32)": ["1,2,3,4 float32", "1,2,3,4 float32"],
  "clipByValue(int32, 0.5, 2.5)": ["1,2,2,2 int32", "1056964608,1056964608,1056964608,1056964608 int32"],
  "clipByValue(NaN and 7, 1, 6)": ["NaN,6 float32", "1,6 float32"],
};
let changed = false;
for (const [column, name] of ["cpu", "wasm"].entries()) {
  await tf.setBackend(name);
  await tf.ready();
  changed ||= tf.getBackend() !== name;
  const condition = tf.tensor1d([true, false, true, false], "bool");
  const integers = tf.tensor1d([1, 2, 3, 4], "int32");
  const floats = tf.tensor1d([0.5, 1.5, -2, 0]);
  const seen = {
    "where(int32, float32)": tf.where(condition, integers, floats),
    "where(float32, int32)": tf.where(condition, floats, integers),
    "where(int32, 0.5)": tf.where(condition, integers, 0.5),
    "where(int32, int32 * 10)": tf.where(condition, integers, tf.mul(integers, 10)),
    "where(float32, float32 * 10)": tf.where(condition, floats, tf.mul(floats, 10)),
    "where(int32 as float32, float32)": tf.where(condition, tf.cast(integers, "float32"), floats),
    "maximum(int32, float32)": tf.maximum(integers, floats),
    "clipByValue(int32, 0.5, 2.5)": tf.clipByValue(integers, 0.5, 2.5),
    "clipByValue(NaN and 7, 1, 6)": tf.clipByValue(tf.tensor1d([NaN, 7]), 1, 6),
  };
  for (const [what, tensor] of Object.entries(seen)) {
    const text = `${Array.from(tensor.dataSync()).join()} ${tensor.dtype}`;
    console.log(`${name}, ${what}: ${text}`);
    changed ||= text !== described[what][column];
  }
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: the bits of floats are taken for integers");
JAVASCRIPT
node where.mjs 2> errors.txt || { cat errors.txt >&2; exit 1; }
