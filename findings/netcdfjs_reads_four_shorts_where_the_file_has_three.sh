#!/usr/bin/env bash
# netcdfjs reads the three shorts -1, 0 and 1 of a netCDF file as -1, 0, 1 and -32767, and the byte -1 as 255.
#
# Expected: as many elements as the dimension has, as for the types int, float and double, and signed bytes, as the format's specification defines the type
# byte. Seen with netcdfjs 4.0.0 on Node.js 20, with SciPy 1.17.1 and netCDF4 1.7.4 as writers on Linux: each variable is padded to a multiple of four bytes, and
# netcdfjs computes the number of elements from the padded size. Records get the extra elements too. The padding is the fill value or what
# the writer left. Packed variables, numbers with a scale factor, are shorts or bytes. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 netCDF4==1.7.4
npm install --silent --no-audit --no-fund --ignore-scripts netcdfjs@4.0.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import netCDF4
import numpy as np
import scipy.io

for name, opened in (("scipy", scipy.io.netcdf_file("scipy.nc", "w")), ("netCDF4", netCDF4.Dataset("netCDF4.nc", "w", format="NETCDF3_CLASSIC"))):
    with opened as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        for code in ("i1", "i2", "i4", "f4", "f8"):
            file.createVariable(f"fixed_{code}", code, ("x",))[:] = np.array([-1, 0, 1], code)
            file.createVariable(f"record_{code}", code, ("time", "x"))[:2] = np.array([[-1, 0, 1], [2, 3, 4]], code)
    with netCDF4.Dataset(f"{name}.nc") as file:
        for code in ("i1", "i2", "i4", "f4", "f8"):
            assert file[f"fixed_{code}"][:].tolist() == [-1, 0, 1] and file[f"record_{code}"][:].tolist() == [[-1, 0, 1], [2, 3, 4]]
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from "node:fs";
import { NetCDFReader } from "netcdfjs";

const version = JSON.parse(readFileSync("node_modules/netcdfjs/package.json")).version;
console.log(`netcdfjs ${version}, Node.js ${process.version}`);
let changed = false;
for (const writer of ["scipy", "netCDF4"]) {
  const file = new NetCDFReader(readFileSync(`${writer}.nc`));
  for (const code of ["i1", "i2", "i4", "f4", "f8"]) {
    const fixed = Array.from(file.getDataVariable(`fixed_${code}`), Number);
    const record = file.getDataVariable(`record_${code}`).map((row) => Array.from(row, Number));
    console.log(`${writer}, ${code}: ${JSON.stringify(fixed)}, records ${JSON.stringify(record)}`);
    const minus = code === "i1" ? 255 : -1;
    const length = code === "i1" || code === "i2" ? 4 : 3;
    const start = (row, numbers) => JSON.stringify(row.slice(0, 3)) === JSON.stringify(numbers) && row.length === length;
    changed ||= !start(fixed, [minus, 0, 1]) || !start(record[0], [minus, 0, 1]) || !start(record[1], [2, 3, 4]);
  }
}
if (changed) {
  console.error("the behaviour has changed");
  process.exit(1);
}
console.log("as described: the padding is read as elements, and bytes are unsigned");
JAVASCRIPT
node read.mjs
