"""``cudnn-ct preload``: list the libraries that `ct.preload` opens, or open them when Python starts."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import click

from ..preloading import preload
from .table import say, say_lines

# Python runs each line of such a file that begins with "import" when it starts, before any program.
LINE = "import cudnn_ct; cudnn_ct.preload(raises=False)\n"


@click.command(name="preload")
@click.option("--install", is_flag=True, help="Preload whenever this Python starts.")
@click.option("--uninstall", is_flag=True, help="Undo --install.")
def command(install: bool, uninstall: bool) -> None:
    """Open the libraries that other programs look for by name, and list their paths.

    `--install` writes a .pth file to the site-packages of this Python, so that it opens them when it starts.
    """
    if install and uninstall:
        raise click.UsageError("--install and --uninstall exclude each other")
    file = Path(sysconfig.get_path("purelib"), "cudnn_ct_preload.pth")
    if uninstall:
        say(f"{file} {'is removed' if file.exists() else 'did not exist'}")
        file.unlink(missing_ok=True)
        return
    say_lines("\n".join(preload()))
    if install:
        file.write_text(LINE, encoding="utf-8")
        say(f"{file} makes this Python open them when it starts")
