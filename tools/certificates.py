"""Make the certificates that the package ships: those of the training fusions of common networks.

python tools/certificates.py --jobs 12     # writes cudnn_ct/certify/shipped.txt

Convolutions are those of residual networks of 18 to 152 layers and of networks for segmentation, for the
batch sizes that people train with. The first result of each is compared with a second opinion on this GPU, as
for a user; what agreed is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from cudnn_ct.errors import AllocationError

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Channels, filters, window, stride, and the size of the image.
CONVOLUTIONS = (
    *((c, c, 3, 1, s) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *((c, c, 3, 2, s) for c, s in ((128, 56), (256, 28), (512, 14))),
    *((c, 2 * c, 3, 2, s) for c, s in ((64, 56), (128, 28), (256, 14))),
    *((c, 4 * c, 1, 1, s) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *((4 * c, c, 1, 1, s) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *((4 * c, 2 * c, 1, 1, s) for c, s in ((64, 56), (128, 28), (256, 14))),
    *((4 * c, 8 * c, 1, 2, s) for c, s in ((64, 56), (128, 28), (256, 14))),
    *((c, 2 * c, 1, 2, s) for c, s in ((64, 56), (128, 28), (256, 14))),
    (64, 64, 1, 1, 56),
    *((c, c, 3, 1, s) for c, s in ((64, 128), (128, 64), (256, 32), (512, 16), (64, 256), (32, 256))),
    *((2 * c, c, 3, 1, s) for c, s in ((64, 128), (128, 64), (256, 32), (512, 16), (32, 256))),
    *((c, 2 * c, 3, 1, s) for c, s in ((64, 64), (128, 32), (256, 16), (512, 8))),
)
MAX_ELEMENTS = 2**28  # of a tensor
FILE = Path(__file__).resolve().parents[1] / "cudnn_ct" / "certify" / "shipped.txt"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=3, help="the time after which no problem begins")
    options = parser.parse_args(arguments)
    problems = list(_problems())
    parts = [(problems[at :: options.jobs], options.minutes) for at in range(options.jobs)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        keys = {key for found in pool.map(_certified, parts) for key in found}
    print(f"{len(problems)} problems, {len(keys)} structures agreed")
    _add(keys)
    return 0


def _problems() -> Iterator[tuple[int, ...]]:
    """Yield batch, channels, filters, window, stride and size, the frequent batch sizes first."""
    for batch in sorted(BATCHES, key=lambda batch: abs(batch - 32)):
        for channels, filters, window, stride, size in CONVOLUTIONS:
            if batch * max(channels, filters) * size * size <= MAX_ELEMENTS:
                yield batch, channels, filters, window, stride, size


def _certified(part: tuple[list[tuple[int, ...]], float]) -> set[str]:
    """Return the keys of the certificates of problems that agreed."""
    problems, minutes = part
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDNN_CT_ALGO_CACHE": folder, "CUDNN_CT_CERTIFY": "new"}
        from cudnn_ct.certify import certificates

        certificates._shipped = frozenset  # type: ignore[assignment]  # those of the package are found again
        for problem in problems:
            if time.monotonic() < end:
                with suppress(AllocationError):
                    run(*problem)
        return {key for key, found in certificates._known.items() if found.verdict == "right"}


def run(batch: int, channels: int, filters: int, window: int, stride: int, size: int) -> None:
    """Call the training fusions of one convolution on random operands."""
    import cudnn_ct as ct
    from cudnn_ct.errors import NotSupportedError

    random = np.random.default_rng(0)
    geometry: dict[str, Any] = {"padding": window // 2, "stride": stride}

    def drawn(*shape: int, dtype: str = "float16", layout: Any = "nhwc", least: float = -1.0) -> Any:
        values = random.uniform(least, 1, shape).astype(np.float32)
        return ct.asarray(values, dtype, layout=layout if len(shape) == 4 else None)

    x, w = drawn(batch, channels, size, size), drawn(filters, channels, window, window)
    factors = {"scale": drawn(channels, least=0.5), "bias": drawn(channels)}
    pixels = -(-size // stride)
    dy = drawn(batch, filters, pixels, pixels)
    mean, scale, bias = (drawn(channels, dtype="float32") for _ in range(3))
    invstd = drawn(channels, dtype="float32", least=0.5)
    calls = (
        lambda: ct.conv_batch_norm_statistics(x, w, **geometry),
        lambda: ct.conv_batch_norm_statistics(x, w, **factors, **geometry),
        lambda: ct.conv_backward_filter_scale_bias_relu(
            dy, x, factors["scale"], factors["bias"], w.shape, **geometry
        ),
        lambda: ct.conv_backward_data_relu_batch_norm(dy, w, x, mean, invstd, scale, bias, **geometry),
        lambda: ct.batch_norm_finalize(mean, invstd, scale, bias, mean, invstd, count=batch * size * size),
    )
    for call in calls:
        with suppress(NotSupportedError):
            call()


def _add(keys: set[str]) -> None:
    """Write certificates into the file of the package, in place of those for the same cuDNN and GPU."""
    from cudnn_ct.certify.certificates import digest

    sections: dict[str, list[str]] = {}
    introduction, *lines = FILE.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("# "):
            sections[line] = found = []
        else:
            found.append(line)
    for place in {tuple(key.split(" | ")[1:3]) for key in keys}:
        own = [key for key in keys if tuple(key.split(" | ")[1:3]) == place]
        sections[f"# {' | '.join(place)}"] = sorted(map(digest, own))
    rows = [row for title in sorted(sections) for row in (title, *sections[title])]
    FILE.write_text("\n".join([introduction, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
