"""``cudnn-ct device``: name this GPU, or export its description for planning on other machines."""

from __future__ import annotations

import click

from .. import context
from ..cuda import device as devices
from ..cuda import stream as streams
from ..graph import offline
from .errors import need_gpu
from .options import OUTPUT
from .table import say, say_lines

STDOUT = "-"


@click.command(name="device")
@click.option(
    "--export",
    is_flag=False,
    flag_value=STDOUT,
    type=OUTPUT,
    metavar="[FILE]",
    help="Write cuDNN's description of the GPU to FILE, or to stdout.",
)
def device_command(export: str | None) -> None:
    """Name this GPU, or export its description to plan for it on other machines.

    `compile`, `supports` and `algorithms` read the description with --gpu. cuDNN writes
    it; needs cuDNN >= 9.8.
    """
    need_gpu()
    stream = streams.current_stream()
    if export is None:
        say(f"{name_here()}, device {stream.device}")
        return
    with streams.on_device(stream.device):
        text = offline.describe_device(context.current(stream))
    if export == STDOUT:
        say_lines(text)
        return
    with open(export, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    say(f"wrote {export}", err=True)


def name_here() -> str:
    """Return the name of the current device."""
    return devices.device_name(streams.current_stream().device)
