"""The command ``cudnn-ct doctor``, with the standard library alone: it works where nothing else does."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from . import process, report
from .diagnosis import Diagnosis, diagnose
from .finding import finding
from .requirements import Demands, parse_arch, parse_version

__all__ = ["USAGE", "main"]

USAGE = 64  # EX_USAGE of sysexits.h: argparse's own 2 means «warnings» here

_EPILOG = """\
exit codes: 0 sound, 1 errors, 2 warnings under --strict, 3 nothing found or not able to look, 64 wrong usage
"""

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; whatever is wrong with a cuDNN, nothing is raised.

    Raises
    ------
    SystemExit
        With 64 for arguments that cannot be understood, with 0 after ``--help``.
    """
    options = _parse(arguments)
    try:
        diagnosis = _examine(options)
        words = _written(diagnosis, options)
    except KeyboardInterrupt:
        print("cudnn-ct doctor: interrupted", file=sys.stderr)
        return 130  # as shells have it
    except Exception as error:  # a bug of ours must not look like an answer about the cuDNN
        bug = finding("internal-error", f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        diagnosis = Diagnosis(options.path or "this machine", (), (bug,))
        words = _written(diagnosis, options)
    return _print(words, diagnosis.exit_code(options.strict))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="cudnn-ct doctor",
        description="Is the cuDNN that is here sound? Needs no GPU, no driver and no compiler.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="a library, its folder, a site-packages, or an image's root"
    )
    parser.add_argument(
        "--pid", type=_number, metavar="N", help="what a running process has loaded, in place of PATH"
    )
    for name, words in (
        ("expect", "it is of this version"),
        ("min", "it is not older"),
        ("max", "it is not newer"),
    ):
        parser.add_argument(
            f"--{name}", type=_typed(parse_version), default=(), metavar="VERSION", help=words
        )
    parser.add_argument(
        "--cuda-major", type=_number, default=0, metavar="N", help="it was built for this CUDA, such as 12"
    )
    parser.add_argument(
        "--arch",
        type=_typed(parse_arch),
        default=(),
        metavar="LIST",
        help="it has code for these GPUs, such as 75,90,120",
    )
    parser.add_argument("--require-driver", action="store_true", help="no driver is an error")
    parser.add_argument("--require-gpu", action="store_true", help="no GPU is an error")
    parser.add_argument("--static", action="store_true", help="only read files: start no child process")
    parser.add_argument("--deep", action="store_true", help="hash every file of a wheel")
    parser.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="for all child processes together"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 2 when there are warnings")
    parser.add_argument(
        "--format", choices=report.FORMATS, help="text, json or github (annotations of a workflow)"
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    options = parser.parse_args(arguments)
    if contradiction := _contradiction(options):
        parser.error(contradiction)
    options.format = options.format or ("json" if options.json else "text")
    return options


def _contradiction(options: argparse.Namespace) -> str:
    if options.path is not None and options.pid is not None:
        return "PATH and --pid exclude each other"
    if options.json and options.format not in (None, "json"):
        return f"--json and --format {options.format} exclude each other"
    if options.static and (options.require_driver or options.require_gpu):
        return "--static starts no child process, and --require-driver and --require-gpu need one"
    if options.pid is not None and (options.require_driver or options.require_gpu or options.deep):
        return "--pid only reads the process: --require-driver, --require-gpu and --deep do not go with it"
    return _demands(options).contradiction()


def _demands(options: argparse.Namespace) -> Demands:
    return Demands(
        options.expect,
        options.min,
        options.max,
        options.cuda_major,
        options.arch,
        options.require_driver,
        options.require_gpu,
    )


def _examine(options: argparse.Namespace) -> Diagnosis:
    if options.pid is not None:
        return process.diagnose_process(options.pid, _demands(options))
    return diagnose(
        options.path, _demands(options), deep=options.deep, timeout=options.timeout, run=not options.static
    )


def _written(diagnosis: Diagnosis, options: argparse.Namespace) -> str:
    if options.format == "json":
        return report.json_text(diagnosis, options.strict)
    if options.format == "github":
        return report.github(diagnosis)
    return report.text(diagnosis, sys.stdout is not None and report.wants_colour(sys.stdout))


def _print(words: str, code: int) -> int:
    if sys.stdout is None:  # it was closed by one who wants the exit code alone
        return code
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk: the answer did not arrive, and that is no success
        print(f"cudnn-ct doctor: {error}", file=sys.stderr)
        return code or 3
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def _typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


@_typed
def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise ValueError(f"{text!r} is not a positive number")
    return int(text)


@_typed
def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 86_400:
        raise ValueError(f"{text!r} is not between 0 and a day's seconds")
    return seconds
