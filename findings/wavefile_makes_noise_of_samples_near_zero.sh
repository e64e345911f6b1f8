#!/usr/bin/env bash
# wavefile converts the float samples 1e-12 and 7e-30 to 3 and 2 in 16 bits, and 7e-30 to 136 in 8 bits, 6 percent of the range; silence is 0 and 128.
#
# Expected: 0 and 128, as for 1e-8 and as NumPy rounds. Seen with wavefile 11.0.0 on Node.js 20: the scaled number is cut as text, and the text of a tiny
# number starts with the digits before its exponent. 32-bit integers from 1 to 16 become 129 to 137 in 8 bits. The tails of filters and of reverberation
# and fades decay through such numbers, so that silence becomes a noise of up to 9 steps, with the sign of the sample. toBitDepth is the
# documented way to convert. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts wavefile@11.0.0
cat > silence.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import module from "wavefile";

console.log(`wavefile ${JSON.parse(readFileSync("node_modules/wavefile/package.json")).version}, Node.js ${process.version}`);
const convert = (from, to, samples) => {
  const file = new module.WaveFile();
  file.fromScratch(1, 8000, from, samples);
  file.toBitDepth(to);
  return Array.from(file.getSamples(false)).join();
};
const floats = [0.5, 1e-8, 1e-12, -1e-12, 7e-30, -7e-30, 0];
const rows = [
  ["64", "8", floats, "191,128,129,127,136,120,128"],
  ["64", "16", floats, "16383,0,3,-3,2,-2,0"],
  ["32f", "16", floats, "16383,0,3,-3,2,-2,0"],
  ["64", "24", floats, "4194303,0,0,0,5,-5,0"],
  ["32", "8", [0, 1, 2, 10, 16, 17, -1, 2 ** 30], "128,133,129,133,137,128,123,191"],
  ["32", "16", [0, 1, 2, 10, 16, 17, -1, 2 ** 30], "0,0,0,0,0,0,0,16383"],
  ["16", "8", [0, 1, 2, 10, 16, 17, -1, 2 ** 14], "128,128,128,128,128,128,128,191"],
];
let changed = false;
for (const [from, to, samples, described] of rows) {
  const seen = convert(from, to, samples);
  console.log(`${from} to ${to} bits: ${samples.join()} becomes ${seen}`);
  changed ||= seen !== described;
}
// The tail of an echo: a decaying sine.
const tail = Array.from({ length: 4000 }, (_, i) => Math.exp(-i / 40) * Math.sin(i / 3));
const late = convert("64", "8", tail).split(",").slice(1600).map((sample) => Number(sample) - 128);
const largest = Math.max(...late.map(Math.abs));
console.log(`tail below 4e-18: samples that are not silent in 8 bits ${late.filter((x) => x !== 0).length} of ${late.length}, largest ${largest} steps`);
if (changed || largest < 8) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: tiny numbers become noise");
JAVASCRIPT
node silence.mjs
