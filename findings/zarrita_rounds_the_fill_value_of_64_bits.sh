#!/usr/bin/env bash
# zarrita fills chunks with 9007199254740992 where the fill value of an int64 array is 9007199254740993.
#
# Expected: the fill value, because zarrita returns 64-bit integers as BigInt, which hold each of them. Seen
# with zarrita 0.7.5 on Node.js 20, Zarr 3.1.6 and NumPy 2.4.6 on Linux, for int64 and uint64 and for versions
# 2 and 3 of the format: the fill value is read from the metadata as a float, and only chunks that were
# written have the exact one. Labels and identifiers of cells have 64 bits, and a fill value of 2^63 or more
# marks voxels without one. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 zarr==3.1.6
npm install --silent --no-audit --no-fund --ignore-scripts zarrita@0.7.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import zarr

for version in (2, 3):
    for dtype, value in (("int64", 2**53 + 1), ("uint64", 2**64 - 2), ("int64", 7)):
        name = f"{version}_{dtype}_{value}"
        layout = {"shape": (4,), "chunks": (2,), "dtype": dtype, "zarr_format": version}
        array = zarr.create_array(name, fill_value=value, **layout)
        array[0] = 1
        assert array[:].tolist() == [1, value, value, value]
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import { existsSync, readdirSync, readFileSync } from "node:fs";
import * as zarr from "zarrita";

const { version } = JSON.parse(readFileSync("node_modules/zarrita/package.json"));
console.log(`zarrita ${version}, Node.js ${process.version}`);
const rounded = { "9007199254740993": 9007199254740992n, "18446744073709551614": 0n, "7": 7n };
let changed = false;
for (const name of readdirSync(".").filter((each) => /^\d_u?int64_/.test(each))) {
  const read = (path) => (existsSync(path) ? new Uint8Array(readFileSync(path)) : undefined);
  const store = { get: async (key) => read(name + key) };
  const { data } = await zarr.get(await zarr.open(store, { kind: "array" }));
  const [format, dtype, value] = name.split("_");
  console.log(`version ${format}, ${dtype}, fill value ${value}: ${Array.from(data, String).join(", ")}`);
  const wrong = rounded[value];
  changed ||= data[0] !== 1n || data[1] !== BigInt(value) || data[2] !== wrong || data[3] !== wrong;
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: chunks that were not written have a rounded fill value");
JAVASCRIPT
node read.mjs
