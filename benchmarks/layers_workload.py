"""Workload of the layer benchmark: families of operations, and their rows.

A row is an operation on a layer of a network, in a dtype and a layout. This module needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from harness.operands import Array
from harness.shards import select


class Layer(NamedTuple):
    """Shape of an operation in a network, and the parameters of the call."""

    network: str
    x: tuple[int, ...]
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Name that is the same in every process, and unique among the layers of an operation."""
        parts = (f"{key}={_text(value)}" for key, value in self.parameters)
        return " ".join([f"x{'x'.join(map(str, self.x))}", *parts])


class Kind(NamedTuple):
    """Dtype in a layout. Arrays that are not images are in C order, like NCHW."""

    name: str
    title: str
    dtype: str
    nhwc: bool


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fp16-nhwc", "fp16 NHWC", "float16", True),
        Kind("fp16-nchw", "fp16 NCHW", "float16", False),
        Kind("bf16-nhwc", "bf16 NHWC", "bfloat16", True),
        Kind("bf16-nchw", "bf16 NCHW", "bfloat16", False),
        Kind("fp32-nhwc", "float32 NHWC", "float32", True),
        Kind("fp32-nchw", "float32 NCHW", "float32", False),
    )
}
DIRECTIONS = ("forward", "backward")
SMALL = 8  # maximum length of an axis in a row of which the host time is measured


class Row(NamedTuple):
    """Operation on a layer, which PyTorch and cudnn_ct run. ``operation`` is its name in `cudnn_ct`."""

    family: str
    operation: str
    layer: Layer
    kind: Kind

    @property
    def id(self) -> str:
        """The key of the row in files of results."""
        return f"{self.operation} | {self.layer.name} | {self.kind.name}"

    @property
    def direction(self) -> str:
        return "backward" if self.operation.endswith("_backward") else "forward"

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.layer.parameters)

    def array(self, shape: Sequence[int] | None = None, *, empty: bool = False) -> Array:
        """Return an operand or a result of the row's dtype and layout, by default of the shape of x."""
        shape = self.layer.x if shape is None else tuple(shape)
        return Array(shape, self.kind.dtype, self.kind.nhwc and len(shape) == 4, empty)


class Case(NamedTuple):
    """Operations that are measured on the same layers and in the same kinds."""

    operations: tuple[str, ...]
    layers: tuple[Layer, ...]
    kinds: tuple[str, ...]


class Family(NamedTuple):
    """Operations with one target: the geometric mean of ours / PyTorch is at most ``limit``, if given."""

    title: str
    limit: float | None
    cases: tuple[Case, ...]


def rows(
    *,
    families: Iterable[str] | None = None,
    kinds: Iterable[str] = tuple(KINDS),
    every: int = 1,
    shard: tuple[int, int] = (1, 1),
) -> list[Row]:
    """Return the selected rows in the order of `harness.shards.select`."""
    kinds = set(kinds)
    found = [
        Row(name, operation, layer, KINDS[kind])
        for name in families or FAMILIES
        for case in FAMILIES[name].cases
        for operation in case.operations
        for layer in case.layers
        for kind in case.kinds
        if kind in kinds
    ]
    return select(found, every=every, shard=shard)


def operations() -> dict[str, Row]:
    """Return the first row of each operation."""
    found: dict[str, Row] = {}
    for name, family in FAMILIES.items():
        for case in family.cases:
            for operation in case.operations:
                row = Row(name, operation, case.layers[0], KINDS[case.kinds[0]])
                found.setdefault(operation, row)
    return found


def small(row: Row) -> Row:
    """Return the row with axes of length `SMALL` at most."""
    layer = row.layer._replace(x=tuple(min(n, SMALL) for n in row.layer.x))
    if "b" in row.parameters:
        shape = tuple(min(n, SMALL) for n in row.parameters["b"])
        layer = layer._replace(parameters=tuple((row.parameters | {"b": shape}).items()))
    return row._replace(layer=layer)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# --- the layers --------------------------------------------------------------------------------------------


def _layer(network: str, *x: int, **parameters: Any) -> Layer:
    return Layer(network, x, tuple(parameters.items()))


def _each(layers: Iterable[Layer], **options: Iterable[Any]) -> tuple[Layer, ...]:
    """Return the layers with each value of an additional parameter."""
    ((key, given),) = options.items()
    several = tuple(given)
    return tuple(
        layer._replace(parameters=((key, value), *layer.parameters)) for layer in layers for value in several
    )


_HALF_AND_SINGLE = ("fp16-nhwc", "fp16-nchw", "fp32-nchw")
_MIXED = ("fp16-nhwc", "bf16-nhwc", "fp32-nchw")
_C_ORDER = ("fp16-nchw", "bf16-nchw", "fp32-nchw")

_VGG = tuple(  # pooling layers of VGG-16
    _layer("vgg16", 64, channels, size, size, window=2, mode="max")
    for channels, size in ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14))
)
_UNET = tuple(  # Ronneberger et al. 2015, on 572x572
    _layer("unet", 8, channels, size, size, window=2, mode="max")
    for channels, size in ((64, 568), (128, 280), (256, 136), (512, 64))
)
_STEM = _layer("resnet50", 64, 64, 112, 112, window=3, stride=2, padding=1, mode="max")
_GLOBAL = _layer("resnet50", 64, 2048, 7, 7, window="global", mode="average")
_SHORTCUT = _layer("resnet50-d", 64, 256, 56, 56, window=2, mode="average")

_ROWS_TO_NORMALISE = (
    _layer("resnet50", 64, 1000, axis=-1),  # classes
    _layer("language model", 8192, 32000, axis=-1),  # a vocabulary
    _layer("attention", 16 * 12, 512, 512, axis=-1),
)
_PIXELS_TO_NORMALISE = (
    _layer("resnet50", 64, 64, 56, 56, axis=1),
    _layer("segmentation", 64, 21, 128, 128, axis=1),  # the classes of Pascal VOC
)
_ALGORITHMS = ("accurate", "log")

# Batch normalisation layers of ResNet-50 v1.5 on 224x224: channels and size.
_RESNET = (
    (64, 112), (64, 56), (256, 56), (128, 56), (128, 28), (512, 28),
    (256, 28), (256, 14), (1024, 14), (512, 14), (512, 7), (2048, 7),
)  # fmt: skip
_NORMS = tuple(_layer("resnet50", 64, channels, size, size) for channels, size in _RESNET)

_ACTIVATED = _each(
    (_layer("resnet50", 64, 256, 56, 56), _layer("small", 64, 64, 7, 7)),
    mode=("relu", "sigmoid", "tanh", "elu", "swish"),
)

_WIDE, _DEEP = (64, 256, 56, 56), (64, 2048, 7, 7)
_REDUCED_IMAGES = (
    _layer("global sum", *_WIDE, op="add", axis=(2, 3)),
    _layer("global sum", *_DEEP, op="add", axis=(2, 3)),
    _layer("mean per channel", *_WIDE, op="average", axis=(0, 2, 3)),
    _layer("mean per channel", 64, 64, 112, 112, op="average", axis=(0, 2, 3)),
    _layer("norm", *_WIDE, op="norm2", axis=None),
    _layer("largest", *_WIDE, op="amax", axis=None),
)
_REDUCED_ROWS = (
    _layer("largest of a vocabulary", 8192, 32000, op="max", axis=-1),
    _layer("largest of a vocabulary", 8192, 32000, op="max", axis=-1, indices=True),
    _layer("attention", 16 * 12, 512, 512, op="max", axis=-1),
    _layer("gradient", 512, 512, 3, 3, op="norm2", axis=None),
    _layer("gradient", 512, 512, 3, 3, op="amax", axis=None),
)

_TRANSFORMED = (_layer("stn", 64, 3, 128, 128), _layer("stn", 32, 64, 56, 56))
_DROPPED = _each(
    (
        _layer("vgg16", 64, 4096),
        _layer("transformer", 16, 512, 3072),
        _layer("resnet50", *_WIDE),
    ),
    p=(0.5, 0.1),
)
_RESPONSES = (_layer("alexnet", 128, 96, 55, 55), _layer("alexnet", 128, 256, 27, 27))

_POOL = ("pool", "pool_backward")
_SOFTMAX = ("softmax", "softmax_backward")

FAMILIES = {
    "pooling": Family("pooling", 0.8, (
        Case(_POOL, (_STEM, _GLOBAL, _SHORTCUT, *_VGG, *_UNET), _HALF_AND_SINGLE),
        Case(_POOL, (_STEM, _GLOBAL, _VGG[2], _UNET[1]), ("bf16-nhwc",)),
    )),
    "softmax": Family("softmax", 0.8, (
        Case(_SOFTMAX, _each(_ROWS_TO_NORMALISE, algo=_ALGORITHMS), _C_ORDER),
        Case(_SOFTMAX, _each(_PIXELS_TO_NORMALISE, algo=_ALGORITHMS), (*_HALF_AND_SINGLE, "bf16-nhwc")),
    )),
    "batch_norm": Family("batch normalisation", 0.9, (
        Case(
            ("batch_norm_training", "batch_norm_inference", "batch_norm_backward"),
            _NORMS, (*_HALF_AND_SINGLE, "fp32-nhwc"),
        ),
    )),
    "activation": Family("activation", 1.0, (
        Case(("activation", "activation_backward"), _ACTIVATED, _MIXED),
    )),
    "reduction": Family("reduction", 1.0, (
        Case(("reduce",), _REDUCED_IMAGES, _HALF_AND_SINGLE),
        Case(("reduce",), _REDUCED_ROWS, _C_ORDER),
    )),
    "grid": Family("grid sampling", 1.0, (
        Case(
            ("grid_sample", "grid_sample_backward", "affine_grid", "affine_grid_backward"),
            _TRANSFORMED, _C_ORDER,
        ),
    )),
    "dropout": Family("dropout", 1.0, (
        Case(("dropout", "dropout_backward"), _DROPPED, _C_ORDER),
    )),
    "lrn": Family("local response normalisation", None, (
        Case(("lrn", "lrn_backward"), _RESPONSES, _HALF_AND_SINGLE),
    )),
    "tensor": Family("whole tensors", None, (
        Case(("add",), (
            _layer("bias", *_WIDE, b=(1, 256, 1, 1)), _layer("residual", *_WIDE, b=_WIDE),
        ), _MIXED),
        Case(("op_tensor",), (_layer("gate", *_WIDE, b=_WIDE, op="mul"),), _MIXED),
    )),
}  # fmt: skip
