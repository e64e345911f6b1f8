"""Run ``python -m pip`` of an environment without its start: half of the time of small wheels is imports.

A server imports pip once and forks for each command. The fork takes the prefix and the search path of the
environment's Python. Tests that pass with it run with real pip every night.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import shlex
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

MODULES = (
    "cli.main", "commands.install", "commands.uninstall", "resolution.resolvelib.resolver",
    "operations.prepare",
)  # fmt: skip


def run(script: str, cwd: Path, environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Run a script of pip commands up to the first failure; return its exit code and output.

    None if a line of the script is another command, or another interpreter than that of an environment.
    """
    lines = [shlex.split(line) for line in script.splitlines()]
    if not all(line[1:3] == ["-m", "pip"] and _is_of_environment(line[0]) for line in lines):
        return None
    output = ""
    for python, _, _, *arguments in lines:
        server = _server()
        request = {"python": python, "arguments": arguments, "cwd": str(cwd), "environ": dict(environ)}
        print(json.dumps(request), file=server.stdin, flush=True)
        code, printed = json.loads(server.stdout.readline())
        output += printed
        if code:
            return code, output
    return 0, output


def _is_of_environment(python: str) -> bool:
    return Path(python).parent.with_name("pyvenv.cfg").is_file()


@cache
def _server() -> subprocess.Popen[str]:
    """Return the server of this process, which ends with it."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # closes its input, and waits
    return server


def _serve() -> None:
    for name in MODULES:
        importlib.import_module(f"pip._internal.{name}")
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            for stream in (1, 2):
                os.dup2(writing, stream)
            os._exit(_run(**json.loads(line)))
        os.close(writing)
        with os.fdopen(reading, errors="replace") as output:
            printed = output.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed]), flush=True)


def _run(python: str, arguments: list[str], cwd: str, environ: dict[str, str]) -> int:
    """Become the Python of an environment, and run pip; return its exit code."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    root = str(Path(python).parents[1])
    stdlib = [entry for entry in sys.path if entry.startswith(sys.base_prefix) and "-packages" not in entry]
    sys.executable, sys.prefix, sys.exec_prefix = python, root, root
    importlib.reload(sysconfig)
    packages = sysconfig.get_path("purelib")
    sys.path[:] = [cwd, *stdlib, packages]
    site.PREFIXES[:] = [root]
    for module in list(sys.modules.values()):
        held: Any = vars(module)
        if module.__name__.startswith("pip._internal.") and "site_packages" in held:
            held["site_packages"] = packages
    code: Any = 1
    with contextlib.suppress(SystemExit):
        code = sys.modules["pip._internal.cli.main"].main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


if __name__ == "__main__":
    _serve()
