"""Plan and explain graphs in child processes, for a GPU that exists only as a description.

The libraries of cuDNN need ``libcuda.so.1``. In the child the doctor's stub replaces it, even if there is a
driver, so that the results are the same on all machines. Such a process must not use a GPU.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cudnn_doctor import libraryset, sandbox
from cudnn_doctor.probe import end_with
from cudnn_doctor.read.files import contents
from cudnn_doctor.read.gpus import capabilities, one_described, read_description

from .. import _lib, errors
from .._config import config
from .._dlopen import open_library
from ..errors import BadParamError, CudnnError, Explanation, NotSupportedError
from ..graph.explain import explain_graph
from ..graph.gpus import description_of
from ..graph.offline import Planner
from ..graph.operations import Graph
from ..ops.conv.candidates import with_even_padding
from ..ops.conv.graph import candidates
from ..plans.base import Candidate
from ..shapes.conv import ConvProblem
from .options import Convolution
from .output import first_line, note, verdict_of

GPU_HELP = (
    f"A GPU: {', '.join(capabilities())}, a compute capability such as 9.0, or a file that "
    "`cudnn-ct device --export` wrote."
)
SECONDS = 300.0
FILE_SECONDS = 3600.0  # for the graphs of one file and one GPU
NO_GRAPHS = "no graphs: the file has no call that is computed by a graph"
MAX_FILE = 64 << 20  # bytes of a program, of calls, or of recorded graphs

# The child imports the same package as this process: its own search path may lead to another cudnn_ct.
CHILD = "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; from {} import answer; answer()"
SINCE = 90800  # older versions fail with an error about the description


class PlanningError(CudnnError):
    """The child process did not return a result."""


gpus_option = click.option("--gpu", "gpus", required=True, multiple=True, help=f"{GPU_HELP} May be repeated.")


def gpu_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--gpu``, and ``--device``, its former name, to a command."""

    @click.option("--gpu", metavar="GPU", help=f"Plan without a GPU, for one that is described. {GPU_HELP}")
    @click.option("--device", hidden=True)
    @functools.wraps(command)
    def renamed(gpu: str | None, device: str | None, **options: Any) -> Any:
        if device is not None:
            if gpu is not None:
                raise click.UsageError("--gpu and --device are one option: pass --gpu alone")
            note("--device was renamed: use --gpu")
        return command(gpu=gpu if device is None else device, **options)

    return renamed


def read_gpu(gpu: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the description of a GPU: one that is shipped, or a file; raise ValueError with the reason."""
    known = one_described(gpu)
    return description_of(known) if known in capabilities() else read_description(known)


@contextmanager
def naming(gpu: object) -> Iterator[None]:
    """Raise ValueError with the name or the file of a GPU if cuDNN rejects its description in the block."""
    try:
        yield
    except BadParamError as error:
        raise ValueError(f"cuDNN rejected {gpu} as a description of a device: {error}") from None


def plan(description: dict[str, Any], wanted: Sequence[Convolution]) -> list[list[Candidate]]:
    """List the engines that cuDNN has for convolutions on a device, the best first, rejected ones last.

    Raises BadParamError if cuDNN rejects the description, NotSupportedError for a cuDNN older than 9.8, the
    first version that plans without a device, and CudnnError if the child process fails.
    """
    problems = [convolution.problem(config.allow_tf32) for convolution in wanted]
    rows: list[list[Candidate]] = _by_child(_candidates, description, problems)
    return rows


def explain(
    description: dict[str, Any], graph: Graph, problem: str = "", names: dict[int, str] | None = None
) -> Explanation:
    """Return why cuDNN supports a graph on a described device or not; errors are those of :func:`plan`."""
    found: Explanation = _by_child(_explanation, description, graph, problem, names)
    return found


def each_graph(file: str | Path, description: dict[str, Any], output: str = "") -> dict[str, Any]:
    """Return a row for each graph of a file, and its calls without a graph.

    With ``output``, graphs are compiled and their plans appended to that file; else cuDNN's heuristics are
    queried. If cuDNN ends the process at a graph, another process continues with the next graph. The row of
    the lost graph has the reason.

    Raises PlanningError for a program that fails, and ValueError for another file that cannot be planned.
    """
    user_file(file)
    request: dict[str, Any] = {
        "file": str(Path(file).absolute()),
        "device": description,
        "output": output,
        "settings": {"allow_tf32": config.allow_tf32, "deterministic": config.deterministic},
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while True:
            progress.write_text("")
            written = os.path.getsize(output) if output else 0
            request = {**request, "start": len(rows), "progress": str(progress)}
            try:
                answer = run_child("cudnn_ct.cli.compile_child", request, FILE_SECONDS)
            except PlanningError as error:
                lines = _lines(progress)
                if len(lines) % 2 == 0:  # not while a graph was planned
                    raise
                lost = {**lines.pop(), "engines": 0, "first": None, "compiled": None, "seconds": 0.0}
                lost["unknown"] = False
                done = lines[1::2]
                rows += [*done, {**lost, "reason": str(error)}]
                if output:  # the process may have ended while it wrote a plan
                    os.truncate(output, max([written, *(row["size"] for row in done)]))
                continue
            if "wrong_file" in answer:
                wrong = f"{file} cannot be planned: {answer['wrong_file']}"
                raise PlanningError(wrong) if answer["is_program"] else ValueError(wrong)
            return {"graphs": rows + _lines(progress)[1::2], **answer}


def called(row: dict[str, Any]) -> str:
    """Return the operation of a graph and its line in the program, such as ``conv at train.py:12``."""
    return str(errors.Caller(row["operation"], row["line"]))


def _lines(progress: Path) -> list[Any]:
    return [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]


def run_child(module: str, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, Any]:
    """Return the answer of a module in a child process without a driver; raise the errors of :func:`plan`."""
    library = _lib.load()
    if library.version < SINCE:
        have = errors.format_version(library.version)
        raise NotSupportedError(f"planning for a described GPU needs cuDNN >= 9.8, have {have}")
    # The descriptor of a file in memory with all functions that the libraries need.
    found = libraryset.read(os.path.dirname(library.path))
    stub = sandbox.in_memory(found.driver_functions if found else (), planning=True)
    environ = {
        **os.environ,
        "CUDNN_CT_LIBRARY": library.path,
        "LD_PRELOAD": ":".join(filter(None, [f"/proc/self/fd/{stub}", os.environ.get("LD_PRELOAD")])),
    }
    terminal = _copy_of_stderr()
    request = {**request, "nvrtc": library.find_nvrtc(), "terminal": terminal}
    files = [stub] if terminal is None else [stub, terminal]
    try:
        done = start(module, request, environ, files, seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlanningError(f"the planning process did not run: {error}") from None
    finally:
        for file in files:
            os.close(file)
    _warn_of_missing(done.stderr)
    try:
        return _result(done)
    except PlanningError as error:
        library.with_diagnosis(error)
        raise


def _copy_of_stderr() -> int | None:
    """Return a copy of the descriptor of stderr for a child process; None if it is closed or not a file."""
    try:
        # The child has streams of its own in the places of closed ones.
        return fcntl.fcntl(sys.stderr.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    except (AttributeError, OSError, ValueError):
        return None


def _warn_of_missing(printed: str) -> None:
    """Warn if cuDNN looked up functions that the stub of the driver lacks: it then has fewer engines."""
    missing = sorted(set(re.findall(r"Could not load symbol (cu\w+)", printed)))
    if missing:
        errors.warn_caller(
            f"engines that are compiled at run time may be missing: cuDNN looks up {', '.join(missing)}, "
            "which the stub of the CUDA driver lacks; use a newer cudnn_ct"
        )


def _result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        result = answer_of(done)
    except NoAnswerError as reason:
        raise PlanningError(f"the planning process {reason}") from None
    if "error" in result:
        error = (BadParamError if result["rejected"] else CudnnError)(result["error"])
        for note in result["notes"]:
            error.add_note(note)
        raise error
    return result


def _by_child(work: Callable[..., Any], description: dict[str, Any], *arguments: Any) -> Any:
    """Return what a function of a planner computes in a child process; values are pickled, both ways."""
    call = base64.b64encode(pickle.dumps((work, description, arguments))).decode()
    return _unpickled(run_child("cudnn_ct.cli.offline", {"call": call})["result"])


def answer() -> None:
    """Run as the child process: read the request from stdin, and write the answer to stdout."""
    answer_with(_computed)


def _computed(request: dict[str, Any]) -> dict[str, Any]:
    work, description, arguments = _unpickled(request["call"])
    return {"result": base64.b64encode(pickle.dumps(work(Planner(description), *arguments))).decode()}


def _unpickled(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301  # this package has pickled it


def _candidates(planner: Planner, problems: Sequence[ConvProblem]) -> list[list[Candidate]]:
    return [candidates(with_even_padding(each), planner) for each in problems]


def _explanation(planner: Planner, graph: Graph, problem: str, names: dict[int, str] | None) -> Explanation:
    return explain_graph(graph, planner, problem, names=names)


def answer_with(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read the request from stdin, and write the result of ``work`` or its error to stdout; exit."""
    try:
        request = read_request()
        if request["nvrtc"]:
            open_library(request["nvrtc"])
        result = work(request)
    except CudnnError as error:
        rejected = isinstance(error, BadParamError)
        result = {"error": first_line(error), "rejected": rejected, "notes": verdict_of(error)}
    print(f"\n{json.dumps(result)}", flush=True)
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


# --- child processes: a request in JSON to stdin, and an answer in JSON, in the last line of stdout ---------


class NoAnswerError(Exception):
    """A process has given no answer; the message says what it did instead."""


def user_file(path: str | os.PathLike[str]) -> bytes:
    """Read a program or another file to plan; raise ValueError if it cannot be read, or is not a file."""
    try:
        return contents(path, MAX_FILE)
    except OSError as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None


def start(
    module: str, request: dict[str, Any], environ: Mapping[str, str], files: Sequence[int], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run ``answer`` of a module in a child with these open files; raise OSError or TimeoutExpired."""
    return subprocess.run(
        [sys.executable or "python3", "-c", CHILD.format(module), *sys.path],
        input=json.dumps({**request, "parent": os.getpid()}),
        env=environ,
        pass_fds=files,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
    )


def read_request() -> dict[str, Any]:
    """Return the request of this child process, which from now on is killed when its parent ends."""
    request: dict[str, Any] = json.load(sys.stdin)
    end_with(request["parent"])
    return request


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the answer of a process, its last line; raise NoAnswerError with how it ended instead."""
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        died = -done.returncode in set(signal.Signals)
        how = signal.Signals(-done.returncode).name if died else f"exit code {done.returncode}"
        words = (done.stderr.strip().splitlines() or [""])[-1]
        raise NoAnswerError(f"ended with {how}{f': {words}' if words else ''}")
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise NoAnswerError(f"returned {lines[-1][:99]!r}, expected JSON") from None
    return answer
