"""Plans that the real cuDNN compiles for a GPU that is only described, and that another process reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cli import compile_child
from cudnn_ct.cli.compile_child import compile_request
from cudnn_ct.errors import CudnnWarning, NotSupportedError
from cudnn_ct.graph.attributes import graph_from_json, graph_text, graph_to_json
from cudnn_ct.graph.candidates import engine_candidates, engine_plan, first_engine
from cudnn_ct.graph.gpus import DERIVED_NOTE, description_of, is_derived
from cudnn_ct.graph.offline import Planner, compute_capability
from cudnn_ct.graph.operations import Graph, Tensor, node
from cudnn_ct.graph.plan_store import StoredPlan, decode, encode
from cudnn_ct.graph.recording import PlanRequest, RecordedPlans
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.graph.stored import read_back
from cudnn_ct.ops.conv import candidates
from cudnn_doctor.read.gpus import capabilities
from tests.graph_kinds import KINDS, SINCE, UNSUPPORTED
from tests.graph_kinds.convolutions import CONVOLUTIONS
from tests.nightly import NIGHTLY
from tests.processes import Done, output_of, run_command

from .test_graph import DEVICE, IMAGES, load_stub, parameter, problem

pytestmark = pytest.mark.usefixtures("can_plan")

PROGRAM = """
import numpy as np
import cudnn_ct as ct

x = ct.zeros((64, 256, 32, 32), "float16", layout="nhwc")
y = ct.activation(x, mode="relu")
w = ct.asarray(np.ones((64, 256, 3, 3), np.float16), layout="nhwc")
z = ct.conv_bias_activation(y, w, ct.zeros((1, 64, 1, 1), "float16"), padding=1)
assert z.shape == (64, 64, 32, 32) and z.numpy().sum() == 0
s = ct.reduce(ct.zeros((4096, 8192), "float16"), op="norm2", axis=1)
p = ct.pool(z[:, :, 1:], window=2)
print("a program may print")
"""
# Graphs with tensors that cuDNN omits from the JSON of a plan: ragged offsets and those of sub-graphs.
INCOMPLETE = ("sdpa ragged", "sdpa causal", "sdpa bias")
MODES = ["a", "fallback"]
CALLS = {
    "calls": [
        {
            "function": "activation",
            "arguments": {"x": {"shape": [64, 256, 32, 32], "dtype": "float16"}, "mode": "relu"},
        }
    ]
}

EVERY = 6 if NIGHTLY else 24  # kind of graph is compiled, in about a second


def run(function: str, *arguments: object) -> str:
    """Call a function of this module in a child process that may load the stub of the driver."""
    code = f"import sys; from tests.lib.test_plans import {function} as f; f(*sys.argv[1:])"
    return output_of("-W", "error", "-c", code, *arguments, timeout=500)


def compile_cli(*arguments: object, rejects: bool = False) -> Done:
    done = run_command("compile", *arguments, timeout=500)
    assert bool(done.returncode) == rejects, done.stderr
    return done


def graphs_of(done: Done) -> list[list[dict[str, Any]]]:
    """Return the rows of ``supports --json`` for each GPU."""
    return [report["graphs"] for report in json.loads(done.stdout)["gpus"]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The path of a program that a test writes."""
    return tmp_path / "program.py"


# --- in child processes ------------------------------------------------------------------------------------


def compile_kinds(file: str) -> None:
    """Compile a share of the kinds of graph into a file, and all kinds whose JSON is incomplete."""
    load_stub()
    planner = Planner(DEVICE)
    with open(file, "wb") as output:
        for number, (name, make) in enumerate(KINDS.items()):
            if SINCE.get(name, 0) > planner.library.version or (number % EVERY and name not in INCOMPLETE):
                continue
            graph = make()
            assert graph_text(graph_from_json(json.loads(graph_text(graph)))) == graph_text(graph)
            try:
                plan = compile_request(PlanRequest(graph, choice=name), planner)
            except NotSupportedError as error:
                if "must be compiled on the GPU" in str(error):
                    continue
                assert name in INCOMPLETE, error
                assert "it has no tensor" in str(error), error
                continue
            assert name not in INCOMPLETE, name
            assert not plan.from_device
            output.write(encode(plan._replace(facts={**plan.facts, "kind": name})))
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


def read_kinds(file: str) -> None:
    """Read the plans, and compare them with the graphs of other kinds."""
    load_stub()
    planner = Planner(DEVICE)
    found = {entry.facts["kind"]: entry for entry in entries(Path(file))}
    assert len(found) > len(KINDS) // (2 * EVERY)
    wrong = {}
    for name, entry in found.items():
        graph, engine = KINDS[name](), entry.facts["candidate"]["algorithm"]
        back = read_back(entry, PlanRequest(graph, engine=engine), planner)
        if isinstance(back, str):
            wrong[name] = back
            continue
        assert back[0].one("workspace_size") <= back[1].workspace
        first = graph.operands[0]
        shorter = first._replace(
            spec=first.spec._replace(strides=tuple(2 * stride for stride in first.spec.strides))
        )
        other = json.dumps(graph_to_json(graph)).replace(
            json.dumps(list(first.spec.strides)), json.dumps(list(shorter.spec.strides))
        )
        request = PlanRequest(graph_from_json(json.loads(other)), engine=engine)
        assert "strides" in str(read_back(entry, request, planner)), name
        assert "expected engine 99999" in str(
            read_back(entry, PlanRequest(graph, engine="engine 99999"), planner)
        )
    assert wrong == {}
    os._exit(0)


def read_wrong(file: str) -> None:
    """Read a plan of another version, another GPU, another engine, and one that is cut off."""
    load_stub()
    planner = Planner(DEVICE)
    entry = entries(Path(file))[0]
    request = PlanRequest(KINDS[entry.facts["kind"]]())
    text = json.loads(entry.text)

    def reason(**changes: Any) -> str:
        changed = entry._replace(text=json.dumps({**text, **changes}).encode())
        return str(read_back(changed, request, planner))

    assert "compiled by cuDNN 9.1.0" in reason(cudnnVersion=90100)
    assert "compiled for NVIDIA T4, 132 SMs" in reason(
        GPUProfile={**text["GPUProfile"], "deviceName": "NVIDIA T4"}
    )
    assert "it has engine 7777" in reason(engine={**text["engine"], "engineId": 7777})
    assert "it is malformed" in reason(operationGraph={})
    assert "it is malformed" in str(read_back(entry._replace(text=entry.text[:-9]), request, planner))
    os._exit(0)


def select_of_stored() -> None:
    """Select engines with a stored plan of the first one, and of another one."""
    load_stub()
    planner = Planner(DEVICE)
    request = PlanRequest(KINDS["relu"]() if "relu" in KINDS else next(iter(KINDS.values()))())
    made = first_engine(request, planner)
    assert first_engine(request, planner, made) is made
    other = made[0], made[1]._replace(algorithm="engine 99999")
    assert first_engine(request, planner, other)[1].algorithm == made[1].algorithm
    os._exit(0)


def entries(file: Path) -> list[StoredPlan]:
    found = list(decode(file.read_bytes()))
    assert all(isinstance(entry, StoredPlan) for entry in found)
    return [entry for entry in found if isinstance(entry, StoredPlan)]


# --- tests -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_another_process_reads_the_compiled_plans_of_all_kinds_of_graphs(tmp_path: Path) -> None:
    file = tmp_path / "plans"
    for function in ("compile_kinds", "read_kinds", "read_wrong"):
        run(function, file)


def test_a_stored_plan_is_used_only_if_the_heuristics_name_its_engine() -> None:
    run("select_of_stored")


GPUS = {str(DEVICE): "NVIDIA H200, 132 SMs, 9.0", "a100": "NVIDIA A100-SXM4-80GB, 108 SMs, 8.0"}


@parameter("gpu", *GPUS)
def test_compile_makes_plans_of_a_program(tmp_path: Path, program: Path, gpu: str) -> None:
    output, derived = tmp_path / "plans.file", gpu == "a100"
    program.write_text(PROGRAM)
    done = compile_cli(program, "--gpu", gpu, "-o", output)
    assert f"{GPUS[gpu].partition(',')[0]}: 3 plans compiled" in done.stdout
    assert (DERIVED_NOTE in done.stdout) == derived
    assert "no graph: pool at program.py:11: pooling: x float16[64, 64, 31, 32] " in done.stdout
    plans = entries(output)
    assert len(plans) == 3
    assert not any(plan.from_device or plan.key.startswith("choice") for plan in plans)
    assert any("runtime_compilation" in plan.facts["candidate"]["notes"] for plan in plans)
    if derived or any(plan.text for plan in plans):
        assert all(plan.key.split(" | ")[2] == GPUS[gpu] for plan in plans)


def test_calls_on_shapes_are_recorded_skipped_or_rejected_as_on_a_gpu() -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        ct.softmax(ct.zeros((2, 3)))
        ct.matmul(ct.zeros((2, 3)), ct.zeros((3, 4)))
        with pytest.raises(NotSupportedError, match="need multiples of 16: got M 3, N 4, K 5"):
            ct.scaled_matmul(ct.zeros((3, 5), "float8_e4m3"), ct.zeros((5, 4), "float8_e4m3"))
        with pytest.raises(ValueError, match="algo is unknown"):
            ct.conv(ct.zeros((1, 1, 3, 3)), ct.zeros((1, 1, 2, 2)), algo="legacy")
    assert len(recorded) == 1
    ((call, reason),) = recorded.skipped.items()
    assert re.match(r"softmax at test_plans.py:\d+: softmax over axes \[1\]: x float32\[2, 3\]", call)
    assert reason == "cuDNN computes it by a function that needs no plan"


@pytest.mark.nightly
def test_compile_makes_plans_of_recorded_graphs_and_of_calls(tmp_path: Path, program: Path) -> None:
    graphs, calls = tmp_path / "graphs.json", tmp_path / "calls.json"
    program.write_text(PROGRAM)
    with ct.record_plans(shapes_only=True) as recorded:
        exec(compile(PROGRAM, "program", "exec"), {})
    assert recorded.save(graphs) == len(recorded) == 3
    assert recorded.plans == {}
    calls.write_text(json.dumps(CALLS))
    found = {}
    for name, file, count in (("program", program, 3), ("graphs", graphs, 3), ("calls", calls, 1)):
        output = tmp_path / f"{name}.plans"
        report = json.loads(compile_cli(file, "--gpu", DEVICE, "-o", output, "--json").stdout)
        assert report["gpus"][0]["compiled"] == count
        found[name] = {plan.key for plan in entries(output)}
    assert found["program"] == found["graphs"]
    assert found["calls"] <= found["program"]


def test_compile_names_the_calls_of_a_file_by_their_problems(tmp_path: Path) -> None:
    (tmp_path / "calls.json").write_text(
        '{"calls": [{"function": "softmax", "arguments": {"x": {"shape": [4, 8], "dtype": "float16"}}}]}'
    )
    done = compile_cli(tmp_path / "calls.json", "--gpu", DEVICE, "-o", tmp_path / "plans", rejects=True)
    assert "\n  no graph: softmax over axes [1]: x float16[4, 8] " in done.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise RuntimeError('here')", "RuntimeError: here"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import argparse; argparse.ArgumentParser().error('no input')", "error: no input\ncudnn-ct: "),
        ("import cudnn_ct as ct; ct.conv(ct.zeros((1, 3, 4, 4)), ct.zeros((5, 4, 1, 1)))", "ValueError"),
    ],
)
def test_compile_names_the_error_of_a_program(
    tmp_path: Path, program: Path, content: str, words: str
) -> None:
    program.write_text(content)
    done = compile_cli(program, "--gpu", DEVICE, "-o", tmp_path / "plans", rejects=True)
    assert words in done.stderr
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", 'expected a JSON object with "calls", or the "graphs" that a recording saved'),
        ("nothing", "neither a Python program, with a name that ends in .py, nor JSON"),
        ('{"calls": [{"function": "exit"}]}', "calls[0]: unknown operation: got 'exit'"),
        ('{"calls": {"activation": {}}}', 'calls[0]: expected an object with "function" and "arguments"'),
    ],
)
def test_compile_rejects_other_json(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "calls.json"
    file.write_text(content)
    done = compile_cli(file, "--gpu", DEVICE, "-o", tmp_path / "plans", rejects=True)
    assert f"calls.json cannot be planned: ValueError: {words}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            {"function": "activation", "arguments": [1]},
            'expected an object with "function" and "arguments": got',
        ),
        ({"function": "convs"}, r"unknown operation: got 'convs'; did you mean 'conv'\?$"),
        ({"function": "zeross"}, "unknown operation: got 'zeross'$"),  # `zeros` is not an operation
        ({"x": {"shape": [2, 3]}, "mode": "rel"}, "mode must be one of .*: got 'rel'"),
        ({"x": {"shape": [2, 3], "strides": [3]}}, r"strides of x must be 2 integers: got \(3,\)"),
        ({"x": {"shape": [2, 3], "strides": [3, "a"]}}, "strides of x must be a sequence of integers: got"),
        ({"x": {"shape": 6}}, "shape of x must be a sequence of integers: got 6"),
        ({"x": {"shape": [2, 3], "stride": [3, 1]}}, r"unknown key of x: got \['stride'\]"),
    ],
)
def test_a_wrong_call_in_json_is_named_by_its_place(call: dict[str, Any], message: str) -> None:
    wrong = call if "function" in call else {"function": "activation", "arguments": call}
    with pytest.raises(ValueError, match=rf"^calls\[1\]: {message}"):
        compile_child._of_calls([*CALLS["calls"], wrong])


def test_calls_in_json_write_no_files(tmp_path: Path) -> None:
    """`ct.export_plans` would replace the file by an empty one."""
    file, other = tmp_path / "calls.json", tmp_path / "other"
    other.write_text("content")
    call = {"function": "export_plans", "arguments": {"path": str(other)}}
    file.write_text(json.dumps({"calls": [call]}))
    done = compile_cli(file, "--gpu", DEVICE, "-o", tmp_path / "plans", rejects=True)
    assert "unknown operation: got 'export_plans'" in done.stderr
    assert other.read_text() == "content"


@pytest.mark.nightly
def test_compile_names_what_must_change_for_an_engine(unsupported: Path, tmp_path: Path) -> None:
    done = compile_cli(unsupported, "--gpu", "h200", "-o", tmp_path / "plans", "--json", rejects=True)
    rows = json.loads(done.stdout)["gpus"][0]["rejected"]
    assert f"cannot compile {len(rows)} graph" in done.stderr
    (row,) = [row for row in rows if "must be compiled on the GPU" not in row["reason"]]
    ((listed, _),) = graphs_of(run_command("supports", unsupported, "--gpu", "h200", "--json"))
    assert row["reason"] == listed["reason"]


def test_reasons_end_with_the_changes_that_are_enough(tmp_path: Path) -> None:
    spec = ct.TensorSpec.packed((1, 64, 64), "bfloat16")
    a, b, c = (Tensor(uid, spec) for uid in (1, 2, 3))
    product = node("matmul", comp_type="float16", adesc=a, bdesc=b, cdesc=c)
    recorded = RecordedPlans()
    recorded.requests["",] = PlanRequest(Graph((product,), (a, b, c)))
    recorded.save(tmp_path / "graphs.json")
    with pytest.raises(AssertionError, match=r"enough: .*the compute type must be float32 \(is float16\)"):
        testing.assert_supported(tmp_path / "graphs.json", "h200")


def test_import_ignores_plans_of_another_version_and_reports_their_number(tmp_path: Path) -> None:
    file = tmp_path / "plans"
    file.write_bytes(encode(StoredPlan("plan | cuDNN 1.2.3 | a GPU | engine 1 | {}", {}, b"{}")))
    with pytest.warns(CudnnWarning, match="1 of 1 entries .* are ignored: made for cuDNN 1.2.3, this is"):
        assert ct.import_plans(file) == 0


# --- support -----------------------------------------------------------------------------------------------


def model() -> None:
    x = ct.zeros((8, 64, 28, 28), "float16", layout="nhwc")
    ct.conv(x, ct.zeros((64, 64, 3, 3), "float16", layout="nhwc"), padding=1)


@pytest.fixture
def unsupported(tmp_path: Path, cudnn: int) -> Path:
    """A file with one graph that has no engines, and one that has some."""
    recorded = RecordedPlans()
    makers = [make for since, make in UNSUPPORTED.values() if since <= cudnn]
    for graph in (makers[0](), next(iter(CONVOLUTIONS.values()))()):
        request = PlanRequest(graph)
        recorded.requests[request.identity] = request
    recorded.save(tmp_path / "graphs.json")
    return tmp_path / "graphs.json"


def test_assert_supported_passes_for_a_model_that_has_engines() -> None:
    testing.assert_supported(model, "h200", DEVICE)


def test_assert_supported_names_the_graphs_without_engines(unsupported: Path) -> None:
    with pytest.raises(AssertionError, match=r"^cuDNN has no engine for these graphs:\nh200: .*: .+$"):
        testing.assert_supported(unsupported, "h200")
    with pytest.raises(ValueError, match="unknown GPU: got 'h900', expected one of h200, t4, a100"):
        testing.assert_supported(model, "h900")
    with pytest.raises(ValueError, match="no GPU is given"):
        testing.assert_supported(model)
    wrong: Any = ["h200"]
    with pytest.raises(TypeError, match=r"got \['h200'\]; write assert_supported\(calls, 'h200', 't4'\)"):
        testing.assert_supported(model, wrong)
    with pytest.raises(TypeError, match="calls is not a function or a path: got list"):
        testing.assert_supported(wrong, "h200")


ORDINARY_PROGRAM = r"""
import os, sys
import shapes_of_the_model  # a module beside the program
import cudnn_ct as ct

assert sys.argv[1:] == [], sys.argv
os.write(2, b"\xff")
print("printed")
os.system("echo by another process")
ct.activation(ct.zeros(shapes_of_the_model.SHAPE, "float16"))
sys.exit({status})
"""


@pytest.mark.parametrize(("status", "closed"), [("0", ""), ("None", "1>&-"), ("0", "2>&-"), ("3", "")])
def test_programs_run_as_by_python(tmp_path: Path, program: Path, status: str, closed: str) -> None:
    (tmp_path / "shapes_of_the_model.py").write_text("SHAPE = (64, 256, 32, 32)\n")
    program.write_text(ORDINARY_PROGRAM.replace("{status}", status))
    command = f"exec {sys.executable} -m cudnn_ct supports {program} --gpu h200 {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == (status == "3"), done.stderr
    assert ("\ufffdprinted\nby another process\n" in done.stderr) == (not closed.startswith("2"))
    assert ("SystemExit: 3" in done.stderr) == (status == "3")
    assert ("yes   activation" in done.stdout) == (status != "3" and not closed.startswith("1"))


def test_supports_prints_a_table_and_json(unsupported: Path) -> None:
    command = ("supports", unsupported, "--gpu", "h200")
    done = run_command(*command, "--gpu", DEVICE)
    assert done.returncode == 1
    heading, first, second, *reasons = done.stdout.splitlines()
    assert heading.split() == ["h200", str(DEVICE), "operation", "operands"]
    assert first.split()[:2] == ["no", "no"]
    assert second.split()[0] == "yes"
    assert [line.partition(":")[0] for line in reasons][:2] == ["h200", str(DEVICE)]
    done = run_command(*command, "--json")
    (rows,) = graphs_of(done)
    assert [bool(row["engines"]) for row in rows] == [False, True]
    assert "no engine for 1 graph" in done.stderr


FLOAT8 = """
import cudnn_ct as ct

q = ct.empty((1, 2, 64, 64), "float8_e4m3")
for dtype in (None, "bfloat16", "float16"):
    ct.scaled_attention(q, q, q, out_dtype=dtype)
"""


@pytest.mark.nightly
def test_supports_names_no_change_that_does_not_compile(program: Path) -> None:
    """The heuristics offer engines for these graphs in half precision on Ampere and Ada."""
    program.write_text(FLOAT8)
    done = run_command("supports", program, "--json", "--gpu", "a100,l4,rtx4090,h100,b200")
    *before_hopper, h100, b200 = graphs_of(done)
    assert done.returncode == 1
    for rows in before_hopper:
        assert not any(row["engines"] or row["unknown"] for row in rows)
        assert not any(
            "change" in row["reason"] and "float" in row["reason"].partition("change")[2] for row in rows
        )
    assert [bool(row["engines"]) for row in h100] == [True, False, False]
    if ct.version() >= 92800:
        assert [bool(row["engines"]) for row in b200] == [True, True, True]


PRODUCTS = """
import cudnn_ct as ct

for dtype in ("float16", "float32", "bfloat16"):
    a = ct.empty((64, 64), dtype)
    ct.matmul(a, a)
"""


@pytest.mark.nightly
def test_supports_does_not_know_what_cublaslt_supports(program: Path) -> None:
    """One engine for products of matrices uses cuBLASLt, which needs a GPU."""
    program.write_text(PRODUCTS)
    done = run_command("supports", program, "--json", "--gpu", "t4,a100")
    t4, a100 = graphs_of(done)
    assert [(bool(row["engines"]), row["unknown"]) for row in t4] == [(True, False), *[(False, True)] * 2]
    assert all("cuBLASLt could not be asked" in row["reason"] for row in t4[1:])
    assert [(bool(row["engines"]), row["unknown"]) for row in a100] == [(True, False)] * 3
    assert done.returncode == 0
    done = run_command("supports", program, "--gpu", "t4")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["yes", "unknown", "unknown"]
    assert "no engine" not in done.stderr


NAMED = """
import cudnn_ct as ct

x, w = ct.empty((8, 16, 32, 32), "float16"), ct.empty((32, 16, 3, 3), "float16")
for number in (0, 12345):
    for strict in (False, True):
        ct.conv(x, w, algo=f"engine {number}", strict=strict)
"""


@pytest.mark.nightly
def test_supports_follows_a_call_that_names_an_engine(program: Path) -> None:
    """An engine that does not exist is replaced unless the call is strict."""
    program.write_text(NAMED)
    command = ("supports", program, "--gpu", "h200")
    ((*named, replaced, strict),) = graphs_of(run_command(*command, "--json"))
    assert [(row["engines"], row["first"], row["reason"]) for row in named] == [(1, "engine 0", "")] * 2
    reason = "engine 12345: cuDNN does not support this engine for the problem"
    assert replaced["engines"] > 1
    assert replaced["reason"] == (
        f"{reason}; another algorithm takes its place, because the call is not strict"
    )
    assert (strict["engines"], strict["reason"]) == (0, reason)
    assert f": {replaced['reason']}\n" in run_command(*command).stdout


@pytest.mark.parametrize("algo", ["fft", "winograd", "none"])
def test_calls_that_name_a_legacy_algorithm_are_planned_by_heuristics(program: Path, algo: str) -> None:
    program.write_text(NAMED.replace('f"engine {number}"', repr(algo)))
    (rows,) = graphs_of(run_command("supports", program, "--gpu", "h200", "--json"))
    assert all(row["engines"] for row in rows)


def test_compile_rejects_kernels_that_hold_a_number_of_their_gpu(
    tmp_path: Path, program: Path, cudnn: int
) -> None:
    program.write_text("import cudnn_ct as ct\na = ct.zeros((4096, 4096), 'float16')\nct.matmul(a, a)\n")
    for gpu, bound in (("h200", cudnn >= 92400), ("b200", False)):
        done = compile_cli(program, "--gpu", gpu, "-o", tmp_path / gpu, rejects=bound)
        assert ("its kernels must be compiled on the GPU that runs them" in done.stdout) == bound
        assert (tmp_path / gpu).exists() != bound


@pytest.mark.parametrize(("output", "message"), [("program.py", "is an input"), ("none/x", "does not exist")])
def test_compile_looks_at_its_output_before_it_runs_the_program(
    tmp_path: Path, program: Path, output: str, message: str
) -> None:
    program.write_text("raise SystemExit(7)\n")
    done = run_command("compile", program, "--gpu", "h200", "-o", tmp_path / output)
    assert done.returncode == 2
    assert message in done.stderr
    assert program.read_text() == "raise SystemExit(7)\n"


@pytest.mark.nightly
def test_supports_marks_derived_descriptions(unsupported: Path) -> None:
    command = ("supports", unsupported, "--gpu", "h200,a100,t4")
    done = run_command(*command)
    assert done.stdout.splitlines()[0].split() == ["h200", "a100*", "t4*", "operation", "operands"]
    assert f"\n* {DERIVED_NOTE}\n" in done.stdout
    done = run_command(*command, "--json")
    assert [report["derived"] for report in json.loads(done.stdout)["gpus"]] == [False, True, True]


def test_supports_rejects_a_gpu_that_this_version_does_not_run_on(
    unsupported: Path, tmp_path: Path, cudnn: int
) -> None:
    """The heuristics of 9.28 offer engines for Volta, on which it does not run."""
    device = tmp_path / "v100.json"
    device.write_text(json.dumps({**description_of("h200"), "deviceName": "V100", "deviceVer": 700}))
    done = run_command("supports", unsupported, "--gpu", device, "--json")
    (rows,) = graphs_of(done)
    dropped = ["older than Turing" in row["reason"] for row in rows]
    assert dropped == [cudnn >= 91100] * 2
    assert done.returncode == 1


def test_the_recorded_description_is_as_cudnn_wrote_it() -> None:
    assert description_of("h200") == json.loads(DEVICE.read_text())
    assert [name for name in capabilities() if not is_derived(name)] == ["h200"]


def plan_a_convolution(gpu: str) -> None:
    """Plan a convolution for a GPU, build its first engine, and print the number of engines."""
    load_stub()
    planner = Planner(description_of(gpu))
    graph = candidates.CONVOLUTIONS.graph_of(problem(**IMAGES))
    rows = [row for row in engine_candidates(graph, EngineRules(), planner, MODES) if not row.rejected]
    engine_plan(graph, EngineRules(), rows[0], planner, "a convolution")
    print(compute_capability(planner), len(rows), flush=True)
    os._exit(0)


@pytest.mark.parametrize("gpu", [name for name in capabilities() if is_derived(name)])
def test_cudnn_plans_a_convolution_for_each_derived_description(gpu: str, cudnn: int) -> None:
    major, minor = divmod(description_of(gpu)["deviceVer"] // 10, 10)
    if major == 10 and cudnn < 91900:
        pytest.skip("9.10.2 crashes if it plans for capability 10.0, also on the H200's description with it")
    capability, _, engines = run("plan_a_convolution", gpu).strip().rpartition(" ")
    assert capability.splitlines()[-1] == f"({major}, {minor})"
    assert int(engines) > 1
