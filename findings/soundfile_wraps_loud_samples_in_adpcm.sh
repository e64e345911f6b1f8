#!/usr/bin/env bash
# soundfile writes the sample 1.01 to an ADPCM file as -0.99 and 1.5 as -0.5; in PCM files, each sample above 1 becomes 1.
#
# Expected: 1 for each format of limited range, or an error. Seen with soundfile 0.14.0 (libsndfile 1.2.2) and NumPy 2.4.6 on Linux: soundfile
# switches libsndfile's clipping on, which PCM and ALAC obey. IMA, Microsoft and NMS ADPCM, G.721 and 16-bit DPCM wrap around, and for G.721 and
# NMS the sample 1.0 is -1.0. Resampling, filters and lossy decoders make samples just above 1, each of which becomes a click of full height.
# An array of the other byte order is read as if it had the machine's byte order, in each format: 0.5, 0.25 and -0.5 are written as zeros, and
# the int16 number 1000 as -6141. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 soundfile==0.14.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import io
import sys

import numpy as np
import soundfile

print(f"soundfile {soundfile.__version__} ({soundfile.__libsndfile_version__}), NumPy {np.__version__}")


def read_again(samples, file_format, subtype, dtype="float64"):
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format=file_format, subtype=subtype)
    file.seek(0)
    return soundfile.read(file, dtype=dtype)[0]


loud = [0.5, 1.0, 1.01, 1.5, -1.5]
clipped, wrapped, early = [0.5, 1, 1, 1, -1], [0.5, 1, -0.99, -0.5, 0.5], [0.5, -1, -0.99, -0.5, 0.5]
rows = {
    ("WAV", "PCM_16"): clipped,
    ("WAV", "PCM_24"): clipped,
    ("CAF", "ALAC_16"): clipped,
    ("WAV", "FLOAT"): loud,
    ("WAV", "IMA_ADPCM"): wrapped,
    ("WAV", "MS_ADPCM"): wrapped,
    ("XI", "DPCM_16"): wrapped,
    ("WAV", "NMS_ADPCM_32"): early,
    ("AU", "G721_32"): early,
}
changed = False
for (file_format, subtype), expected in rows.items():
    seen = [float(read_again(np.full(2000, sample), file_format, subtype)[1000]) for sample in loud]
    print(f"{file_format} {subtype}: {loud} are read as {[round(sample, 2) for sample in seen]}")
    changed |= not np.allclose(seen, expected, atol=0.02)
for dtype, samples, expected in ((">f8", [0.5, 0.25, -0.5], [0, 0, 0]), (">i2", [1000, 2000, -1000], [-6141, -12281, 6396])):
    for file_format in ("WAV", "FLAC"):
        seen = read_again(np.array(samples, dtype), file_format, "PCM_16", "float64" if dtype == ">f8" else "int16").tolist()
        print(f"{file_format} of {dtype}: {samples} are read as {seen}")
        changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: samples above 1 wrap around, and bytes of the other order are not swapped")
PYTHON
