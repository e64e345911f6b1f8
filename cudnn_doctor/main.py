"""The command ``cudnn-ct doctor``, its arguments, and the table ``[tool.cudnn-doctor]`` of a pyproject.toml.

Needs only the standard library, because packages may be broken.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from . import __version__, report, search
from .checks import Requirements
from .diagnosis import Diagnosis, diagnose, sort
from .finding import Severity, codes, finding, is_styled
from .read import files as _files
from .read import gpus as _gpus


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Raises SystemExit for invalid arguments and after --help."""
    options = parse(arguments)
    if options.explain:
        return _print(report.explanation(options.explain), 0)
    try:
        diagnosis = _examine(options).without(options.ignore)
        words = _written(diagnosis, options)
    except KeyboardInterrupt:
        print("cudnn-ct doctor: interrupted", file=sys.stderr)
        return 130  # the convention of shells
    except Exception as error:  # a bug of the doctor must not look like a defect of the cuDNN
        import traceback  # takes 2 ms

        bug = finding("internal-error", f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        diagnosis = Diagnosis(options.path or "this machine", (), (bug,))
        words = _written(diagnosis, options)
    return _print(words, diagnosis.exit_code(options.fail_on))


def _examine(options: argparse.Namespace) -> Diagnosis:
    asked = requirements_of(options)
    environ: Mapping[str, str]
    if options.pid is not None:
        from . import process

        diagnosis, environ = process.diagnose_process(options.pid, asked), process.environ_of(options.pid)
    else:
        how = {"deep": options.deep, "timeout": options.timeout, "run": not options.static}
        diagnosis, environ = diagnose(options.path, asked, **how), os.environ
    findings = sort([*diagnosis.findings, *search.check_settings(environ)])
    details = {**diagnosis.details, "settings": options.settings} if options.settings else diagnosis.details
    return replace(diagnosis, findings=findings, details=details)


def _written(diagnosis: Diagnosis, options: argparse.Namespace) -> str:
    if options.format == "text":
        return report.text(diagnosis, is_styled(sys.stdout), options.verbose)
    return report.FORMATS[options.format](diagnosis, options.fail_on)


def _print(words: str, code: int) -> int:
    if sys.stdout is None:  # closed by a caller that needs only the exit code
        return code
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        # Python writes what is left when it ends, and would return 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # of `| head`; a full disk must not look like success
            print(f"cudnn-ct doctor: {error}", file=sys.stderr)
            return code or 1
    return code


# --- the arguments -----------------------------------------------------------------------------------------

USAGE = 2  # as in all commands
TABLE = "cudnn-doctor"
# A table or a key: lines may have the name of this package in a value or in the key of a file.
_NAMED = re.compile(
    r"^(?:[^#=\n\"']|\.[ \t]*[\"'])*NAME|^[ \t]*[\"']NAME[^\n\"'/]*[\"'][ \t]*[.=]".replace(
        "NAME", r"cudnn[-_. ]?(?:ct[-_. ]?)?doctor"
    ),
    re.MULTILINE | re.IGNORECASE,
)
_VERSIONS = ("expect", "min", "max")
SEVERITIES = {severity.word: severity for severity in Severity}

_EPILOG = (
    "exit codes: 0 sound, 1 errors, or warnings with --strict, 2 wrong usage, 3 nothing could be examined. "
    f"Defaults are read from [tool.{TABLE}] of pyproject.toml."
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments; they replace those of the nearest pyproject.toml."""
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options: argparse.Namespace = parser.parse_args(given)
    if not options.explain:
        path, table = _settings(parser)
        if options.gpu:  # those of the command line replace the list
            table = {key: value for key, value in table.items() if key not in ("gpu", "arch")}
        options = parser.parse_args([*_as_arguments(table, path, parser), *given])
        options.settings = path if table else ""
    options.gpu = tuple(dict.fromkeys(options.gpu))
    if contradiction := _contradiction(options):
        parser.error(contradiction)
    if options.renamed:
        print(f"{parser.prog}: --arch was renamed: use --gpu", file=sys.stderr)
    options.format = options.format or ("json" if options.json else "text")
    in_ci = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    options.deep = not options.shallow and (options.deep or (options.pid is None and in_ci))
    options.fail_on = SEVERITIES[options.fail_on or ("warning" if options.strict else "error")]
    return options


def requirements_of(options: argparse.Namespace) -> Requirements:
    """Return the requirements that the flags state."""
    names = ("expect", "min", "max", "cuda_major", "gpu", "require_driver", "require_gpu")
    return Requirements(*(getattr(options, name) for name in names))


def _parser() -> _Parser:
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
    gpu_help = "require code for GPUs: compute capabilities or names, as in 75,9.0,b200; may be repeated"
    add("--gpu", type=capabilities, action="extend", default=[], metavar="LIST", help=gpu_help)
    add("--arch", type=capabilities, action=_Renamed, dest="gpu", help=argparse.SUPPRESS)
    parser.set_defaults(renamed=False)
    add("--require-driver", action="store_true", help="a missing driver is an error")
    add("--require-gpu", action="store_true", help="a missing GPU is an error")
    add("--static", action="store_true", help="only read files, start no child process")
    add("--deep", action="store_true", help="hash every file of a wheel; the default if CI is set")
    add("--shallow", action="store_true", help="hash only small files, also in CI")
    add("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="limit of all child processes")
    add("--ignore", type=_code, default=[], action="append", metavar="CODE", help="leave out such findings")
    fail_help = "exit with 1 for findings of this severity or worse: error, warning or note"
    add("--fail-on", type=partial(_one_of, tuple(SEVERITIES)), metavar="SEVERITY", help=fail_help)
    add("--strict", action="store_true", help="the same as --fail-on warning")
    names = ("text", *report.FORMATS)
    add("--format", type=partial(_one_of, names), metavar="FORMAT", help=", ".join(names))
    add("--json", action="store_true", help="the same as --format json")
    add("--verbose", "-v", action="store_true", help="list all that was checked, and causes of notes")
    add("--explain", type=_code, metavar="CODE", help="print the cause and the fix of a code")
    add("--version", action="version", version=f"cudnn-ct, version {__version__}")
    return parser


def _contradiction(options: argparse.Namespace) -> str:
    if options.path is not None and options.pid is not None:
        return "PATH and --pid cannot be combined"
    if options.json and options.format not in (None, "json"):
        return f"--json and --format {options.format} cannot be combined"
    if options.static and (options.require_driver or options.require_gpu):
        return "--static starts no child process, which --require-driver and --require-gpu need"
    if options.pid is not None and (options.require_driver or options.require_gpu or options.deep):
        return "--pid cannot be combined with --require-driver, --require-gpu and --deep"
    if options.deep and options.shallow:
        return "--deep and --shallow cannot be combined"
    return requirements_of(options).contradiction()


def _settings(parser: _Parser) -> tuple[str, Mapping[str, Any]]:
    """Read the table of the nearest pyproject.toml: its path, and the table, which may be empty."""
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        return "", {}
    while True:
        path = os.path.join(folder, "pyproject.toml")
        try:
            text = _files.text_of(path)
        except OSError:
            if folder == os.path.dirname(folder):
                return "", {}
            folder = os.path.dirname(folder)
            continue
        return path, _table(text, path, parser) if _NAMED.search(text) else {}


def _table(text: str, path: str, parser: _Parser) -> Mapping[str, Any]:
    try:
        import tomllib
    except ImportError:
        print(f"cudnn-ct doctor: {path} was not read: that needs Python 3.11 or newer", file=sys.stderr)
        return {}
    try:
        tools = tomllib.loads(text).get("tool", {})
    except ValueError as error:
        parser.error(f"{path} is not valid TOML: {error}")
    for name in filter(_NAMED.match, tools if isinstance(tools, dict) else ()):
        if name != TABLE or not isinstance(tools[name], dict):
            parser.error(f"{path}: tool.{name} is not read; the doctor reads the table [tool.{TABLE}]")
    return dict(tools.get(TABLE, {})) if isinstance(tools, dict) else {}


def _as_arguments(table: Mapping[str, Any], path: str, parser: _Parser) -> Iterator[str]:
    """Convert a table to arguments; its keys are the names of the flags."""
    known = {*parser.flags} - {"--explain", "--pid", "--help", "--version"}
    for key, value in table.items():
        flag = f"--{key}"
        if flag not in known:
            hint = _meant(key, [name.lstrip("-") for name in known])
            parser.error(f"{path}: [tool.{TABLE}] cannot have the key {key!r}{hint}")
        if isinstance(value, float) and key in _VERSIONS:  # 9.10 is the number 9.1
            parser.error(
                f'{path}: {key} = {value} is a number; write the version in quotes, such as {key} = "9.10"'
            )
        if value is True:
            yield flag
        elif key in ("gpu", "arch") and isinstance(value, list):
            yield f"{flag}={','.join(map(str, value))}"
        elif value is not False:
            yield from (f"{flag}={each}" for each in (value if isinstance(value, list) else [value]))


class _Parser(argparse.ArgumentParser):
    @property
    def flags(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hints = (_meant(word.partition("=")[0], self.flags) for word in unknown if word.startswith("--"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}")
        return options

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


class _Renamed(argparse.Action):
    """The earlier name of ``--gpu``, which is still accepted."""

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, _name: Any = None) -> None:
        namespace.gpu, namespace.renamed = [*namespace.gpu, *values], True


def version(text: str) -> tuple[int, ...]:
    """Parse ``9``, ``9.27`` or ``9.27.0``; raise ArgumentTypeError for other texts."""
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,2}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 9.27 or 9.27.0")
    return tuple(map(int, text.split(".")))


def capabilities(text: str) -> tuple[int, ...]:
    """Parse GPUs, as all commands name them, and return ten times their compute capabilities."""
    try:
        return tuple(dict.fromkeys(_gpus.parse(word).arch for word in text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _meant(word: str, known: Iterable[str]) -> str:
    """Return the question for the most similar of the known words; empty if none is similar."""
    from difflib import get_close_matches  # only for a mistake

    names = {name.lstrip("-"): name for name in known}
    close = get_close_matches(word.lstrip("-"), list(names), 1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _one_of(names: Sequence[str], text: str) -> str:
    if text in names:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}{_meant(text, names)}")


def _code(text: str) -> str:
    if text in codes():
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a code{_meant(text, codes())}")


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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to 86400")
    return seconds
