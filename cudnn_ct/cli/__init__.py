"""The command ``cudnn-ct``."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from typing import Any

import click

from cudnn_doctor.finding import printable

from .. import __version__
from .output import fail, first_line, plain_warnings, plainly, say, say_json, say_lines

LABELS = 26  # columns

# The commands, each with its module, which is imported when the command runs.
COMMANDS = {
    **{name: name for name in ("algorithms", "cache", "preload", "selftest")},
    **{"compile": "program", "supports": "program", "device": "algorithms"},
    **{"exec": "preload", "report": "cache"},
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
    loaded, or if its header has another version.
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
