"""The command ``cudnn-ct``, and those of its commands that are short."""

from __future__ import annotations

import os
import sys
from errno import ENOEXEC
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import click

from cudnn_doctor.finding import printable

from .. import __version__
from .output import fail, first_line, plain_warnings, plainly, say, say_json, say_lines

LABELS = 26  # columns
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of shells
# Python runs each line of such a file that begins with "import" when it starts, before any program.
LINE = "import cudnn_ct; cudnn_ct.preload(raises=False)\n"

# The commands, each with its module, which is imported when the command runs.
COMMANDS = {
    **{name: name for name in ("algorithms", "cache", "selftest")},
    **{"compile": "program", "supports": "program", "device": "algorithms"},
    **{"report": "cache"},
}


class Commands(click.Group):
    """A group that imports most of its commands late, so that `info` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if necessary; None if it does not exist."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f".{COMMANDS[cmd_name]}", __name__)
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; print an error in one line, and escape control characters in a message of click."""
        try:
            with plainly():
                return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable(error.message, keep="\n")  # it is final for type checkers
            raise

    def main(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the command; print one line if its output cannot be written."""
        try:
            with plain_warnings():
                import_module("._config", __package__.partition(".")[0])  # warns of unknown variables
                return super().main(*arguments, **keywords)
        except (OSError, Warning) as error:  # a warning under `python -W error`
            sys.stdout = StringIO()  # Python flushes it at exit, which would fail again
            fail(first_line(error))


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="cudnn-ct")
@click.pass_context
def main(context: click.Context) -> None:
    """Inspect and test NVIDIA cuDNN 9 from Python."""
    if context.invoked_subcommand is None:
        say_lines(context.get_help())


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def info(as_json: bool) -> None:
    """Show the cuDNN that this Python would use, and the libraries that belong to it.

    Needs neither a GPU nor a driver. Prints the problem in one line and exits with 1 if no cuDNN can be
    loaded, if its header has another version, or if the file that CUDNN_CT_FACTS names is unusable.
    """
    from .._info import library_info

    found = library_info()
    if as_json:
        say_json(found.as_dict())
    else:
        for label, text in found.rows():
            say(text, label=f"{label:{LABELS}}")
    if found.problem:
        fail(found.problem)


@main.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(arguments: tuple[str, ...]) -> None:
    """Check a cuDNN installation, and report each defect with its cause and fix."""
    from cudnn_doctor.main import main as doctor_main

    sys.exit(doctor_main(arguments))


@main.command(name="preload")
@click.option("--install", is_flag=True, help="Preload whenever this Python starts.")
@click.option("--uninstall", is_flag=True, help="Undo --install.")
def preload_(install: bool, uninstall: bool) -> None:
    """Open the libraries that other programs look for by name, and list their paths.

    `--install` writes a .pth file to the site-packages of this Python, so that it opens them when it starts.
    """
    import sysconfig

    from .._info import preload

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


@main.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exec_(program: str, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM so that it finds cuDNN, cuBLAS and NVRTC of this Python.

    The libraries are opened and checked first. The program then replaces this process, with their folders at
    the front of LD_LIBRARY_PATH, so that its exit code and signals are its own.
    """
    import shutil  # takes 3 ms

    from .._info import preload

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
