"""The generated bindings compared with the headers of cuDNN and the symbols of its library."""

import os
import re
import shutil
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from cudnn_ct import _bindings
from cudnn_ct._bindings.functions import FUNCTIONS
from tests.nightly import some
from tests.processes import ROOT, Done, answer_of, output_of, run_python

pytest.importorskip("pycparser", reason="the generator reads headers with pycparser")

BINDINGS = Path(_bindings.__file__).parent
EXTRA_HEADERS = [Path(path) for path in os.environ.get("CUDNN_CT_TEST_HEADERS", "").split(os.pathsep) if path]


@pytest.fixture(scope="module")
def headers() -> Path:
    found = find_nvidia_header_directory("cudnn")
    if not found:
        pytest.skip("no cuDNN with headers is installed")
    return Path(found)


def generator(checkout: Path, *arguments: object) -> Done:
    return run_python(checkout / "tools" / "gen_bindings.py", *arguments)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the generator and the bindings, so that tests may change them."""
    for source, copy in ((ROOT / "tools", "tools"), (BINDINGS, "cudnn_ct/_bindings")):
        shutil.copytree(source, tmp_path / copy, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def check(checkout: Path) -> Done:
    result = generator(checkout, "--check")
    if result.returncode == 2 and "made from" in result.stderr:
        pytest.skip(result.stderr.strip())
    return result


# The headers --------------------------------------------------------------------------------------------


def test_generator_writes_the_same_modules_again(headers: Path, checkout: Path) -> None:
    result = check(checkout)
    assert result.returncode == 0, result.stdout + result.stderr
    for path in (checkout / "cudnn_ct" / "_bindings").glob("*.py"):
        path.unlink()
    assert generator(checkout).returncode == 0
    for path in BINDINGS.glob("*.py"):
        assert (checkout / "cudnn_ct" / "_bindings" / path.name).read_bytes() == path.read_bytes()


def test_check_shows_an_edit(headers: Path, checkout: Path) -> None:
    enums = checkout / "cudnn_ct" / "_bindings" / "enums.py"
    enums.write_text(enums.read_text().replace("    NHWC = 1\n", "    NHWC = 2\n"))
    result = check(checkout)
    assert result.returncode == 1
    assert "-    NHWC = 2\n+    NHWC = 1\n" in result.stdout


@pytest.mark.parametrize(
    ("table", "entry"),
    [
        ("since", 'CUDNN_NO_SUCH_THING = "9.0.0"'),
        ("members", 'CUDNN_NO_SUCH_THING = "NAME"'),
        ("device", 'cudnnRNNForwardd = ["devSeqLengths"]'),
        ("device", 'cudnnSetStream = ["noSuchArgument"]'),
        ("since", '"cudnnFraction_t.noSuchMember" = "9.1.0"'),
    ],
)
def test_generator_rejects_an_annotation_that_matches_nothing(
    headers: Path, checkout: Path, table: str, entry: str
) -> None:
    notes = checkout / "tools" / "bindings.toml"
    notes.write_text(notes.read_text().replace(f"[{table}]\n", f"[{table}]\n{entry}\n"))
    result = check(checkout)
    assert result.returncode == 2
    assert re.split(r"[\s\"]+", entry.lstrip('"'))[0] in result.stderr


def test_check_rejects_headers_of_another_version(headers: Path, checkout: Path) -> None:
    init = checkout / "cudnn_ct" / "_bindings" / "__init__.py"
    init.write_text(init.read_text().replace("GENERATED_FROM = 9", "GENERATED_FROM = 8"))
    result = generator(checkout, "--check")
    assert result.returncode == 2
    assert re.search(r"made from 8\d{4}, but 9\d{4} is installed", result.stderr)


@pytest.mark.parametrize(
    "include", [None, *EXTRA_HEADERS], ids=lambda path: path.name if path else "installed"
)
def test_bindings_agree_with_headers(headers: Path, checkout: Path, include: Path | None) -> None:
    result = generator(checkout, "--include", include or headers)
    assert result.returncode == 0, result.stdout


def compare_headers(checkout: Path, headers: Path, *changes: tuple[str, str, str]) -> Done:
    """Run the generator on headers with changes: the name of a header, a pattern, and its replacement."""
    folder = checkout / "headers"
    folder.mkdir()
    for path in headers.glob("cudnn*.h"):
        shutil.copyfile(path, folder / path.name)
    for name, old, new in changes:
        path = folder / f"cudnn_{name}.h"
        text, count = re.subn(old, new, path.read_text())
        assert count == 1, "the change was not planted"
        path.write_text(text)
    return generator(checkout, "--include", folder)


# A change in the headers of another cuDNN, and the difference that is reported.
DIFFERENCES = {
    "value": ("ops", r"(CUDNN_POOLING_MAX\s*=\s*)0", r"\g<1>7", r"CUDNN_POOLING_MAX: \d+ has 7, expected 0"),
    "type of an argument": (
        *("ops", r"(cudnnGetTensorSizeInBytes\(const cudnnTensorDescriptor_t tensorDesc,) size_t", r"\1 int"),
        r"cudnnGetTensorSizeInBytes: \d+ has c_int \(LP_cudnnTensorStruct, LP_c_int\), expected",
    ),
    "result": (
        *("graph", r"size_t (CUDNNWINAPI\s+cudnnGetVersion\()", r"int \1"),
        r"cudnnGetVersion: .* has c_int \(\)",
    ),
    "function": (
        *("ops", r"cudnnStatus_t CUDNNWINAPI\s+cudnnDestroyTensorDescriptor\([^;]*;", ""),
        r"cudnnDestroyTensorDescriptor: \d+ lacks it, expected since 90000",
    ),
    "member": (
        *("graph", r"CUDNN_TENSOR_NHWC\s*=\s*1,", ""),
        r"CUDNN_TENSOR_NHWC: \d+ lacks it, expected since 90000",
    ),
    "struct": (
        *("graph", r"int64_t (numerator;)", r"int32_t \1"),
        r"cudnnFraction_t: \d+ has \{c_int numerator, c_long denominator\}",
    ),
    # The library would read past the memory of the struct that the package allocates.
    "struct that grew": (
        *("graph", r"(int64_t denominator;)", r"\1 int64_t more;"),
        "cudnnFraction_t: .* c_long more",
    ),
    # ctypes would call the function with arguments of other sizes.
    "callback": (
        *("graph", r"(typedef void \(\*cudnnCallback_t\)\(cudnnSeverity_t \w+, )", r"\1 int64_t more, "),
        "cudnnCallback_t: .* has void \\(c_int, c_long, c_void_p",
    ),
    # Programs allocate arrays of this length for cuDNN to fill.
    "constant": (
        *("graph", r"(#define CUDNN_DIM_MAX) 8", r"\1 12"),
        r"CUDNN_DIM_MAX: \d+ has 12, expected 8",
    ),
    "new member": (
        *("ops", r"(CUDNN_BATCHNORM_PER_ACTIVATION\s*=\s*0,)", r"\1 CUDNN_BATCHNORM_NEW = 1,"),
        "note: CUDNN_BATCHNORM_NEW is only in",
    ),
    "date": (
        *("version", r"(#define CUDNN_MINOR) \d+", r"\1 0"),
        r"CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP: 90\d+ has it, expected since 90100",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "reported"), some(DIFFERENCES.values(), 3), ids=DIFFERENCES)
def test_generator_reports_a_planted_difference(
    headers: Path, checkout: Path, file: str, old: str, new: str, reported: str
) -> None:
    result = compare_headers(checkout, headers, (file, old, new))
    noted = reported.startswith("note")  # symbols that only the headers have
    assert result.returncode == int(not noted)
    expected = reported if noted else f"difference: {reported}"
    assert re.search(f"^{expected}", result.stdout, re.MULTILINE), result.stdout


@pytest.mark.parametrize(("minor", "differs"), [(27, False), (28, True)])
def test_generator_expects_a_member_only_since_the_version_that_is_listed(
    headers: Path, checkout: Path, minor: int, differs: bool
) -> None:
    header = headers / "cudnn_gnn_ops.h"
    if not (header.is_file() and "cscRevOffsets" in header.read_text()):
        pytest.skip("cudnnGnnCscGraph_t of this cuDNN has no cscRevOffsets")
    changes = (
        ("gnn_ops", r"\n[^\n]*\bcscRevOffsets;[^\n]*", ""),
        ("version", r"(#define CUDNN_MINOR) \d+", rf"\g<1> {minor}"),
    )
    result = compare_headers(checkout, headers, *changes)
    assert ("difference: cudnnGnnCscGraph_t" in result.stdout) == differs, result.stdout


# The libraries ------------------------------------------------------------------------------------------

EXPORTED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.cudnnGetVersion(), *(name for name in sys.argv[2:] if not hasattr(library, name)))
"""


def test_library_exports_every_function(headers: Path) -> None:
    """In a child process, so that this one has no library loaded."""
    libraries = sorted(headers.parent.glob("lib*/libcudnn.so.9"))
    if not libraries:
        pytest.skip(f"no libcudnn.so.9 next to {headers}")
    version, *missing = output_of("-c", EXPORTED, libraries[0], *FUNCTIONS).split()
    assert missing == [name for name, function in FUNCTIONS.items() if function.since > int(version)]


CALLBACK = """
import json, sys
import cudnn_ct as ct
from cudnn_ct._bindings import types
seen = []
callback = types.cudnnCallback_t(lambda level, udata, debug, text: seen.append(text.lines()))
ct.raw.cudnnSetCallback(8, None, callback)
with ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5), "float16")):
    ct.raw.cudnnSetCallback(0, None, types.cudnnCallback_t())
print(json.dumps([[line.decode() for line in lines] for lines in seen]))
"""


def test_callback_gets_every_line_of_a_message(headers: Path) -> None:
    (lines,) = (lines for lines in answer_of(CALLBACK) if "cudnnSetTensorNdDescriptor" in lines[0])
    assert any("CUDNN_DATA_HALF" in line for line in lines)
    assert any("[2,3,4,5]" in line for line in lines)
