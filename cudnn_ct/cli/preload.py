"""``cudnn-ct preload`` and ``exec``: open the libraries of this cuDNN, or run a program that finds them."""

from __future__ import annotations

import os
import shutil
import sysconfig
from errno import ENOEXEC
from pathlib import Path

import click

from .._info import preload
from .output import fail, say, say_lines

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of shells
# Python runs each line of such a file that begins with "import" when it starts, before any program.
LINE = "import cudnn_ct; cudnn_ct.preload(raises=False)\n"


@click.command(name="preload")
@click.option("--install", is_flag=True, help="Preload whenever this Python starts.")
@click.option("--uninstall", is_flag=True, help="Undo --install.")
def preload_command(install: bool, uninstall: bool) -> None:
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


@click.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exec_command(program: str, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM so that it finds cuDNN, cuBLAS and NVRTC of this Python.

    The libraries are opened and checked first. The program then replaces this process, with their folders at
    the front of LD_LIBRARY_PATH, so that its exit code and signals are its own.
    """
    if not program:
        fail("the name of the program is empty", NOT_FOUND)
    file = shutil.which(program)
    environ = environment(preload(), dict(os.environ))
    try:
        os.execvpe(file or program, [program, *arguments], environ)
    except FileNotFoundError:
        if file:
            fail(f"{file} cannot be run: the interpreter of its first line does not exist", NOT_EXECUTABLE)
        fail(f"{program} does not exist", NOT_FOUND)
    except OSError as error:
        if file and error.errno == ENOEXEC:  # as shells do with a file that names no interpreter
            os.execve("/bin/sh", ["sh", file, *arguments], environ)
        fail(f"{program} cannot be run: {error.strerror}", NOT_EXECUTABLE)


def environment(paths: tuple[str, ...], environ: dict[str, str]) -> dict[str, str]:
    """Return an environment whose LD_LIBRARY_PATH begins with the folders of libraries."""
    folders = [os.path.dirname(path) for path in paths]
    given = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return {**environ, "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys([*folders, *given]))}
