#!/usr/bin/env bash
# ecCodes packs the values 280, 270, NaN and 290 into a GRIB message as 280, 270, 270 and 290.
#
# Expected: an error, which infinity raises and which NaN raises too when it is the first value, or a missing
# value, or NaN, as with the packing grid_ieee. Seen with ecCodes 2.50.0 and NumPy 2.4.6 on Linux for GRIB 1
# and 2, with the packings grid_simple, grid_second_order and grid_ccsds, and also where the message has a
# bitmap and NaN as its missing value, where the number of missing values is 0. A field with a mask has NaN in
# NumPy and xarray. A temperature over land becomes the lowest of the sea, and precipitation 0. No warning is
# given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 eccodeslib==2.50.0.33 eccodes==2.50.0
"$work/venv/bin/python" -W error - 2> /dev/null <<'PYTHON'
import importlib.metadata
import sys

import eccodes
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("eccodes", "eccodeslib", "numpy")))


def packed(edition, packing, values, missing):
    message = eccodes.codes_grib_new_from_samples(f"regular_ll_sfc_grib{edition}")
    for key, value in {"Ni": len(values), "Nj": 1, "packingType": packing}.items():
        eccodes.codes_set(message, key, value)
    if missing is not None:
        eccodes.codes_set(message, "bitmapPresent", 1)
        eccodes.codes_set(message, "missingValue", missing)
    try:
        eccodes.codes_set_values(message, np.array(values, float))
    except eccodes.CodesInternalError as error:
        return type(error).__name__
    read = eccodes.codes_new_from_message(eccodes.codes_get_message(message))
    return np.round(eccodes.codes_get_values(read), 2).tolist(), eccodes.codes_get(read, "numberOfMissing")


changed = False
fields = inner, first, infinite = [280, 270, np.nan, 290], [np.nan, 280, 270], [280, np.inf, 270]
packings = [(1, "grid_simple"), (1, "grid_second_order")]
packings += [(2, "grid_simple"), (2, "grid_ccsds"), (2, "grid_ieee")]
for edition, packing in packings:
    for missing in (None, np.nan):
        seen = [packed(edition, packing, values, missing) for values in fields]
        shown = "; ".join(f"{values}: {result}" for values, result in zip(fields, seen))
        print(f"GRIB {edition}, {packing}, missing value {missing}: {shown}")
        if packing == "grid_ieee":
            changed |= missing is None and not np.array_equal(seen[0][0], inner, equal_nan=True)
        else:
            changed |= seen != [([280, 270, 270, 290], 0), "EncodingError", "EncodingError"]
seen = packed(2, "grid_simple", [280, 270, 9999, 290], 9999)
print(f"missing value 9999: {seen}")
changed |= seen != ([280, 270, 9999, 290], 1)
if changed:
    sys.exit("the behaviour has changed")
print("as described: NaN is packed as the lowest value")
PYTHON
