"""Parameter types of the commands, and the options that describe a convolution."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ..shapes.arithmetic import conv_dtypes
from ..shapes.conv import ROLES, ConvProblem, conv_output_shape, conv_problem
from ..shapes.specs import INT_MAX, LAYOUTS, TensorSpec
from ..typing import Direction, Layout, Precision
from .output import usage

PRECISIONS = ("as_input_f32", "float32", "tf32", "as_input", "float16", "float64")

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # older versions of click are not generic


class Shape(ParamType):
    """Lengths, separated by commas: ``8,64,28,28``."""

    name = "N,C,H,W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        lengths = [_count(part) for part in str(value).split(",")]
        if len(lengths) < 2 or not all(lengths):
            self.fail(f"{value!r} is not a shape such as 8,64,28,28", param, ctx)
        return tuple(length for length in lengths if length)


class Ints(ParamType):
    """One number for all spatial axes, or one for each, separated by commas."""

    name = "N[,N]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        numbers = [_count(part) for part in value.split(",")]
        if None in numbers:
            self.fail(f"{value!r} is not a number, or one for each axis such as 1,2", param, ctx)
        return numbers[0] if len(numbers) == 1 else tuple(numbers)


class Padding(Ints):
    """Padding: `Ints`, a word, or ``before:after`` for each axis."""

    name = "N[,N]|WORD|A:B,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("valid", "half", "full"):
            return value
        if not set(value) - set("0123456789,"):
            return super().convert(value, param, ctx)
        pairs = [[_count(side) for side in part.split(":")] for part in value.split(",")]
        if any(len(pair) != 2 or None in pair for pair in pairs):
            self.fail(
                f"{value!r} is not a padding: expected a number, one for each axis such as 1,2, valid, half, "
                "full, or before:after for each axis such as 0:1,2:2",
                param,
                ctx,
            )
        return tuple(map(tuple, pairs))


class OutputFile(click.Path):
    """A file to write: a regular file or a new one, because the write to a pipe waits for its reader."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if os.path.exists(value) and not os.path.isfile(value):
            kind = "a folder" if os.path.isdir(value) else "a pipe or a device"
            self.fail(f"{os.fspath(value)!r} is {kind}: expected a regular file or a new one", param, ctx)
        return super().convert(value, param, ctx)


SHAPE, INTS, PADDING, OUTPUT = Shape(), Ints(), Padding(), OutputFile(writable=True)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")


class Convolution(NamedTuple):
    """The parameters of one convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    dtype: str = "float32"
    layout: Layout = "nchw"
    direction: Direction = "forward"
    padding: Any = 0
    stride: Any = 1
    dilation: Any = 1
    groups: int = 1
    precision: Precision | None = None

    @property
    def geometry(self) -> dict[str, Any]:
        """Padding, stride, dilation and groups, as keyword arguments."""
        return {name: getattr(self, name) for name in ("padding", "stride", "dilation", "groups")}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of x, w and y."""
        y = conv_output_shape(self.x, self.w, **self.geometry)
        return {"x": self.x, "w": self.w, "y": y}

    def problem(self, allow_tf32: bool = True) -> ConvProblem:
        """Return its problem; raise TypeError or ValueError if shapes, dtype or parameters do not match."""
        *inputs, result = ROLES[self.direction].operands
        specs = [TensorSpec.packed(self.shapes[name], self.dtype, self.layout) for name in inputs]
        return conv_problem(
            self.direction,
            *specs,
            shape=self.shapes[result],
            precision=self.precision,
            allow_tf32=allow_tf32,
            **self.geometry,
        )


def choice(name: str, words: Sequence[str], default: str = "") -> Callable[[F], F]:
    """Return an option that takes one of some words, by default the first."""
    return click.option(name, type=click.Choice(words), default=default or words[0], show_default=True)


def convolution_options(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """Add the options of a convolution; the command gets a valid `Convolution`, or None if not required."""

    def gathered(**given: Any) -> Any:
        wanted = Convolution(**{name: given.pop(name) for name in Convolution._fields})
        if not required and wanted.x is wanted.w is None:
            return command(convolution=None, **given)
        with usage():
            wanted.problem()
        return command(convolution=wanted, **given)

    gathered.__name__, gathered.__doc__ = command.__name__, command.__doc__
    gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--precision", type=click.Choice(PRECISIONS), help="Precision of the computation."),
        choice("--direction", tuple(ROLES), "forward"),
        choice("--layout", LAYOUTS),
        choice("--dtype", conv_dtypes("forward"), "float32"),
        click.option("--groups", type=click.IntRange(1, INT_MAX), default=1),
        click.option("--dilation", type=INTS, default="1"),
        click.option("--stride", type=INTS, default="1"),
        click.option("--padding", type=PADDING, default="0", help="Numbers, valid, half, full, or 0:1,2:2."),
        click.option("--w", type=Shape(), metavar="K,C,R,S", required=required, help="Shape of the filters."),
        click.option("--x", type=SHAPE, required=required, help="Shape of the images."),
    ):
        gathered = option(gathered)
    return gathered


def _count(text: str) -> int | None:
    """Parse a number up to the largest that cuDNN supports; None for other text."""
    if not re.fullmatch(r"\s*\d{1,10}\s*", text, re.ASCII) or int(text) > INT_MAX:
        return None
    return int(text)
