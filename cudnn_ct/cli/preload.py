"""``cudnn-ct preload``: list the libraries that `ct.preload` opens, or open them when Python starts."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import click

from ..preloading import preload
from .errors import plainly
from .table import say, say_lines

# Python runs each line of such a file that begins with "import" when it starts, before any program.
LINE = "import cudnn_ct; cudnn_ct.preload(raises=False)\n"


@click.command(name="preload")
@click.option("--install", "change", flag_value="install", help="Preload whenever this Python starts.")
@click.option("--uninstall", "change", flag_value="uninstall", help="Undo --install.")
@plainly
def command(change: str | None) -> None:
    """Open the libraries that other programs look for by name, and list their paths.

    `--install` writes a .pth file to the site-packages of this Python, so that it opens them when it starts.
    """
    file = Path(sysconfig.get_path("purelib"), "cudnn_ct_preload.pth")
    if change == "uninstall":
        file.unlink(missing_ok=True)
        say(f"{file} does not exist any more")
        return
    say_lines("\n".join(preload()))
    if change == "install":
        file.write_text(LINE, encoding="utf-8")
        say(f"{file} makes this Python open them when it starts")
