"""Workload of the convolution benchmark: layers of networks, and their rows.

A row is a layer in one direction and one kind (dtype, layout, precision). This module needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.shards import digest, select

import cudnn_ct as ct

DIRECTIONS = ("forward", "backward_data", "backward_filter")


class Layer(NamedTuple):
    """Distinct convolution, with the networks that contain it."""

    networks: tuple[str, ...]
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def geometry(self) -> dict[str, tuple[int, ...] | int]:
        """Keyword arguments of `cudnn_ct.conv`."""
        return {
            "padding": self.padding,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def y(self) -> tuple[int, ...]:
        """Shape of the result."""
        return ct.conv_output_shape(self.x, self.w, **self.geometry)

    @property
    def name(self) -> str:
        """Name of the convolution, which does not depend on the networks."""
        parts = [f"x{_times(self.x)}", f"w{_times(self.w)}"]
        for letter, numbers, usual in (
            ("s", self.stride, 1),
            ("p", self.padding, 0),
            ("d", self.dilation, 1),
        ):
            if set(numbers) != {usual}:
                parts.append(letter + (_times(numbers) if len(set(numbers)) > 1 else str(numbers[0])))
        return " ".join(parts + ([f"g{self.groups}"] if self.groups > 1 else []))


class Kind(NamedTuple):
    """Dtype in a layout. ``precision`` is passed to cudnn_ct, and ``tf32`` allows TF32 in PyTorch."""

    name: str
    title: str
    dtype: str
    nhwc: bool
    precision: str | None = None
    tf32: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fp16", "fp16 NHWC", "float16", True),
        Kind("bf16", "bf16 NHWC", "bfloat16", True),
        Kind("tf32-nhwc", "TF32 NHWC", "float32", True),
        Kind("tf32-nchw", "TF32 NCHW", "float32", False),
        Kind("fp32", "strict float32 NCHW", "float32", False, "float32", False),
        Kind("fp64", "float64 NCHW", "float64", False),
    )
}


class Row(NamedTuple):
    """Layer in one direction and kind, on which all contenders run alternately."""

    layer: Layer
    direction: str
    kind: Kind

    @property
    def id(self) -> str:
        """The key of the row in files of results."""
        return f"{self.layer.name} | {self.direction} | {self.kind.name}"

    @property
    def half(self) -> str:
        """Use of the row for heuristic rules: "fit" or "report". Similar rows of all kinds have the same."""
        return ("fit", "report")[digest(f"{self.layer.name} | {self.direction}") % 2]


def rows(
    *,
    networks: Iterable[str] | None = None,
    directions: Iterable[str] = DIRECTIONS,
    kinds: Iterable[str] = tuple(KINDS),
    every: int = 1,
    shard: tuple[int, int] = (1, 1),
) -> list[Row]:
    """Return the selected rows in the order of `harness.shards.select`."""
    chosen = set(networks or NETWORKS)
    directions, kinds = set(directions), set(kinds)
    found = [
        Row(layer, direction, kind)
        for layer in layers()
        if chosen.intersection(layer.networks)
        for direction in DIRECTIONS
        if direction in directions
        for kind in KINDS.values()
        if kind.name in kinds
    ]
    return select(found, every=every, shard=shard)


def layers() -> list[Layer]:
    """Return every distinct convolution once, in the order of the networks."""
    merged: dict[tuple[object, ...], Layer] = {}
    for network, members in NETWORKS.items():
        for _, *geometry in members:
            known = merged.setdefault(tuple(geometry), Layer((), *geometry))
            if network not in known.networks:
                merged[tuple(geometry)] = known._replace(networks=(*known.networks, network))
    return list(merged.values())


# --- the networks ------------------------------------------------------------------------------------------

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and blocks of ResNet-50's four stages


def _conv(
    batch: int,
    channels: int,
    size: int,
    filters: int,
    window: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Layer:
    """Return a square 2-D layer with the padding that keeps the size at stride 1."""
    return Layer(
        (),
        (batch, channels, size, size),
        (filters, channels // groups, window, window),
        (stride, stride),
        (dilation * (window // 2),) * 2,
        (dilation, dilation),
        groups,
    )


def _resnet50(batch: int) -> Iterator[Layer]:
    """ResNet-50 v1.5 (He et al. 2015, with the stride on the 3x3 layer) on 224x224."""
    yield _conv(batch, 3, 224, 64, 7, stride=2)
    channels, size = 64, 56
    for width, blocks in _STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            yield _conv(batch, channels, size, width, 1)
            yield _conv(batch, width, size, width, 3, stride=stride)
            yield _conv(batch, width, size // stride, 4 * width, 1)
            if block == 0:
                yield _conv(batch, channels, size, 4 * width, 1, stride=stride)
            channels, size = 4 * width, size // stride


def _mobilenetv2(batch: int) -> Iterator[Layer]:
    """The depthwise layers of MobileNetV2 (Sandler et al. 2018) on 224x224."""
    channels, size = 32, 112
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
    for expansion, width, blocks, first in (*table, (6, 320, 1, 1)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            deep = expansion * channels
            yield _conv(batch, deep, size, deep, 3, stride=stride, groups=deep)
            channels, size = width, size // stride


def _vgg16(batch: int) -> Iterator[Layer]:
    """VGG-16 (Simonyan and Zisserman 2014) on 224x224, which has only 3x3 layers."""
    channels, size = 3, 224
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            yield _conv(batch, channels, size, width, 3)
            channels = width
        size //= 2


def _resnext50(batch: int) -> Iterator[Layer]:
    """The grouped 3x3 layers of ResNeXt-50 32x4d (Xie et al. 2016) on 224x224."""
    size = 56
    for width, blocks in _STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            yield _conv(batch, 2 * width, size, 2 * width, 3, stride=stride, groups=32)
            size //= stride


def _deeplabv3(batch: int) -> Iterator[Layer]:
    """The dilated layers of DeepLabv3 (Chen et al. 2017), ResNet-50, output stride 16, on 513x513.

    The last block has multi-grid (1, 2, 4) on rate 2. The pyramid after it has rates 6, 12 and 18.
    """
    for dilation in (2, 4, 8):
        yield _conv(batch, 512, 33, 512, 3, dilation=dilation)
    for dilation in (6, 12, 18):
        yield _conv(batch, 2048, 33, 256, 3, dilation=dilation)


def _r3d18(batch: int) -> Iterator[Layer]:
    """R3D-18 (Tran et al. 2017) on 16 frames of 112x112."""

    def cube(channels: int, size: tuple[int, ...], filters: int, window: int, stride: int) -> Layer:
        shape = (filters, channels, window, window, window)
        return Layer((), (batch, channels, *size), shape, (stride,) * 3, (window // 2,) * 3, (1, 1, 1), 1)

    stem = (64, 3, 3, 7, 7), (1, 2, 2), (1, 3, 3), (1, 1, 1), 1
    yield Layer((), (batch, 3, 16, 112, 112), *stem)
    channels, size = 64, (16, 56, 56)
    for width in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and width > 64 else 1
            yield cube(channels, size, width, 3, stride)
            if stride == 2:
                yield cube(channels, size, width, 1, stride)
            channels, size = width, tuple(n // stride for n in size)
            yield cube(channels, size, width, 3, 1)


NETWORKS: dict[str, Sequence[Layer]] = {
    "resnet50": tuple(_resnet50(64)),
    "resnet50-b1": tuple(_resnet50(1)),
    "mobilenetv2": tuple(_mobilenetv2(64)),
    "vgg16": tuple(_vgg16(64)),
    "resnext50": tuple(_resnext50(64)),
    "deeplabv3": tuple(_deeplabv3(8)),
    "r3d18": tuple(_r3d18(8)),
}


def _times(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))
