#!/usr/bin/env bash
# A 16-bit image from a FITS file is written to DICOM and to TIFF with JPEG 2000 with swapped bytes: the pixel 1 is read as 256.
#
# Expected: the numbers of the array, as for other compressions of TIFF and for pydicom's compress, or an error, as from imagecodecs' PNG, JPEG XL,
# JPEG-LS and JPEG XR. Seen with pydicom 3.0.2, tifffile 2026.3.3, imagecodecs 2026.3.6, Astropy 8.0.2 and NumPy 2.4.6 on Linux: pydicom's
# set_pixel_data and the encoders jpeg2k_encode and htj2k_encode take the bytes of the array as if they had the machine's order. Astropy
# reads FITS files into big-endian arrays, and MRC and NRRD files can have them. A TIFF file of this byte order with complex64 numbers
# and the predictor of floats exchanges the real and the imaginary parts. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pydicom==3.0.2 tifffile==2026.3.3 imagecodecs==2026.3.6 \
    astropy==8.0.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import io
import sys

import astropy
import imagecodecs
import numpy as np
import pydicom
import tifffile
from astropy.io import fits
from pydicom.pixels import set_pixel_data
from pydicom.uid import ExplicitVRLittleEndian, RLELossless

print(f"pydicom {pydicom.__version__}, tifffile {tifffile.__version__}, imagecodecs {imagecodecs.__version__}, Astropy {astropy.__version__}")


def from_fits(image):
    file = io.BytesIO()
    fits.PrimaryHDU(image).writeto(file)
    file.seek(0)
    return fits.getdata(file)


def dicom(image, compress=False):
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    set_pixel_data(dataset, image.astype(image.dtype.newbyteorder("=")) if compress else image, "MONOCHROME2", 16)
    if compress:
        dataset.compress(RLELossless, image, generate_instance_uid=False)
    return dataset.pixel_array


def tiff(image, **options):
    file = io.BytesIO()
    tifffile.imwrite(file, image, **options)
    file.seek(0)
    return tifffile.imread(file)


image = from_fits(np.array([[1, 2, 3], [256, 257, 1000]] * 4, np.int16))
swapped = image.astype("<i2").view(">i2").tolist()
waves = np.array([[1 + 2j, 3 + 4j]], np.complex64)
rows = {
    "TIFF, no compression": (tiff(image), image.tolist()),
    "TIFF, zlib": (tiff(image, compression="zlib"), image.tolist()),
    "TIFF, JPEG 2000": (tiff(image, compression="jpeg2000"), swapped),
    "jpeg2k_encode": (imagecodecs.jpeg2k_decode(imagecodecs.jpeg2k_encode(image)), swapped),
    "htj2k_encode": (imagecodecs.htj2k_decode(imagecodecs.htj2k_encode(image)), swapped),
    "DICOM, set_pixel_data": (dicom(image), swapped),
    "DICOM, compress with RLE": (dicom(image, compress=True), image.tolist()),
    "TIFF, complex numbers, predictor 3": (tiff(waves, byteorder="<", compression="zlib", predictor=3), waves.tolist()),
    "TIFF, complex numbers, predictor 3, other byte order": (
        tiff(waves, byteorder=">", compression="zlib", predictor=3),
        [[2 + 1j, 4 + 3j]],
    ),
}
print(f"read from FITS: {image.dtype.str}, {image[0].tolist()}")
changed = image.dtype.str != ">i2"
for name, (seen, expected) in rows.items():
    print(f"{name}: {seen.ravel()[:3].tolist()}")
    changed |= seen.tolist() != expected
for name in ("png", "jpegxl", "jpegls", "jpegxr"):
    try:
        getattr(imagecodecs, f"{name}_encode")(image.astype(">u2"))
    except ValueError as error:
        print(f"{name}_encode: ValueError: {error}")
    else:
        changed = True
if changed:
    sys.exit("the behaviour has changed")
print("as described: JPEG 2000 and DICOM get the bytes in the other order")
PYTHON
