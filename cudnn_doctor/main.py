"""The command ``cudnn-ct doctor``; needs only the standard library, because packages may be broken."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import formats, report, search
from .diagnosis import Diagnosis, diagnose, sort
from .finding import finding
from .options import parse, requirements_of
from .terminal import is_styled


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
    return formats.FORMATS[options.format](diagnosis, options.fail_on)


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
