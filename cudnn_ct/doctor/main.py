"""The command ``cudnn-ct doctor``; needs only the standard library, because packages may be broken."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from . import process, report
from .diagnosis import Diagnosis, diagnose
from .finding import finding
from .requirements import Requirements

__all__ = ["USAGE", "main"]

USAGE = 64  # EX_USAGE of sysexits.h: the 2 of argparse means warnings here

_EPILOG = (
    "exit codes: 0 sound, 1 errors, 2 warnings with --strict, 3 nothing could be examined, 64 wrong usage"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Raises SystemExit for invalid arguments and after --help."""
    options = _parse(arguments)
    try:
        diagnosis = _examine(options)
        words = _written(diagnosis, options)
    except KeyboardInterrupt:
        print("cudnn-ct doctor: interrupted", file=sys.stderr)
        return 130  # the convention of shells
    except Exception as error:  # a bug of the doctor must not look like a defect of the cuDNN
        bug = finding("internal-error", f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        diagnosis = Diagnosis(options.path or "this machine", (), (bug,))
        words = _written(diagnosis, options)
    return _print(words, diagnosis.exit_code(options.strict))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="cudnn-ct doctor",
        description="Check a cuDNN installation. Needs no GPU, no driver and no compiler.",
        epilog=_EPILOG,
        # A width, because shutil, which measures the terminal, imports zlib, which may be broken.
        formatter_class=partial(argparse.HelpFormatter, width=report.WIDTH),
    )
    add = parser.add_argument
    add("path", nargs="?", metavar="PATH", help="a library, its folder, a site-packages, or an image's root")
    add("--pid", type=_number, metavar="N", help="examine the libraries of a running process instead of PATH")
    add("--expect", type=version, default=(), metavar="VERSION", help="require this version")
    add("--min", type=version, default=(), metavar="VERSION", help="require this version or newer")
    add("--max", type=version, default=(), metavar="VERSION", help="require this version or older")
    add("--cuda-major", type=_number, default=0, metavar="N", help="require a build for this CUDA")
    add(
        "--arch", type=capabilities, default=(), metavar="LIST", help="require code for GPUs, as in 75,90,120"
    )
    add("--require-driver", action="store_true", help="a missing driver is an error")
    add("--require-gpu", action="store_true", help="a missing GPU is an error")
    add("--static", action="store_true", help="only read files, start no child process")
    add("--deep", action="store_true", help="hash every file of a wheel")
    add("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="limit of all child processes")
    add("--strict", action="store_true", help="exit with 2 if there are warnings")
    add("--format", choices=report.FORMATS, help="text, json or github (annotations of a workflow)")
    add("--json", action="store_true", help="the same as --format json")
    options = parser.parse_args(arguments)
    if contradiction := _contradiction(options):
        parser.error(contradiction)
    options.format = options.format or ("json" if options.json else "text")
    return options


def _contradiction(options: argparse.Namespace) -> str:
    if options.path is not None and options.pid is not None:
        return "PATH and --pid cannot be combined"
    if options.json and options.format not in (None, "json"):
        return f"--json and --format {options.format} cannot be combined"
    if options.static and (options.require_driver or options.require_gpu):
        return "--static starts no child process, which --require-driver and --require-gpu need"
    if options.pid is not None and (options.require_driver or options.require_gpu or options.deep):
        return "--pid cannot be combined with --require-driver, --require-gpu and --deep"
    return _requirements(options).contradiction()


def _requirements(options: argparse.Namespace) -> Requirements:
    names = ("expect", "min", "max", "cuda_major", "arch", "require_driver", "require_gpu")
    return Requirements(*(getattr(options, name) for name in names))


def _examine(options: argparse.Namespace) -> Diagnosis:
    asked = _requirements(options)
    if options.pid is not None:
        return process.diagnose_process(options.pid, asked)
    how = {"deep": options.deep, "timeout": options.timeout, "run": not options.static}
    return diagnose(options.path, asked, **how)


def _written(diagnosis: Diagnosis, options: argparse.Namespace) -> str:
    if options.format == "json":
        return report.json_text(diagnosis, options.strict)
    if options.format == "github":
        return report.github(diagnosis)
    return report.text(diagnosis, sys.stdout is not None and report.wants_colour(sys.stdout))


def _print(words: str, code: int) -> int:
    if sys.stdout is None:  # closed by a caller that needs only the exit code
        return code
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # for example by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk: an incomplete report must not look like success
        print(f"cudnn-ct doctor: {error}", file=sys.stderr)
        return code or 3
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def version(text: str) -> tuple[int, ...]:
    """Parse ``9``, ``9.27`` or ``9.27.0``; raise ArgumentTypeError for other texts."""
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,2}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 9.27 or 9.27.0")
    return tuple(map(int, text.split(".")))


def capabilities(text: str) -> tuple[int, ...]:
    """Parse compute capabilities such as ``75,90,12.0``, optionally with ``sm_`` or a final letter."""
    archs = []
    for word in map(str.strip, text.split(",")):
        match = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})\.?(\d)[af]?", word, re.ASCII)
        if not match:
            raise argparse.ArgumentTypeError(f"{word!r} is not a compute capability such as 90 or 9.0")
        archs.append(int(match[1]) * 10 + int(match[2]))
    return tuple(dict.fromkeys(archs))


def _number(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and 86400")
    return seconds
