"""The mutation run: its patterns, the copies in which mutants are planted, and its verdict."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from . import __main__ as command
from .patterns import KINDS, Mutant, file_of, mutants_of, mutants_of_package
from .reach import Reach, files_of, measure
from .run import PACKAGE, ROOT, Outcome, copied, diff, run_all


@cache  # seconds of work, for the tests that need them and not while collecting
def package_mutants() -> list[Mutant]:
    return mutants_of_package(PACKAGE)


# Mutants that survived an evaluation from outside. Each has a test now, or a reason in explained.toml.
SURVIVED = {
    "cache key without coefficient, alpha1 and alpha2": r"^keys ops/_call.py .*: calls.parameters.* -> None",
    "cache key without the spec of out": r"^keys ops/_call.py .*: out\.key -> None",
    "states of a projection LSTM without steps": r"^strides .*rnn.*: spec\.output_size -> spec\.hidden_size",
    "cells of a projection LSTM without steps": r"^strides .*rnn.*: spec\.hidden_size -> spec\.output_size",
    "restored dropout state not noted": r"^orderings .*dropout.*restore: .*after_write.* -> pass",
    "dropout state not among the results": r"^orderings .*dropout.*: state\._memory -> None",
    "memory not retained": r"^lifetimes .*__del__: _?retain\(.* -> pass",
    "beta for each of several outputs": r"^factors .*Program\.run: beta if .* else b -> beta",
    "CTC without copies of misaligned operands": r"^strides ops/ctc/ctc.py .*: True -> False",
    "doctor prints in vain": r"^exit codes cudnn_doctor.*: code or 1 -> code",
    "limit of tables": r"^limits cudnn_doctor/read/elf.*MAX_READ -> False",
    "native objects destroyed in a forked child": r"^lifetimes .*destroy_native: os\.getpid.* -> False",
    "cache key without alignment": r"^keys cuda/typed_memory.py .*: not pointer & UNALIGNED -> None",
    "cache key without factors": r"^keys ops/_call.py .*: scaled -> None",
}


@pytest.mark.parametrize("pattern", SURVIVED.values(), ids=SURVIVED)
def test_mutants_include_those_that_survived_an_evaluation(pattern: str) -> None:
    assert [mutant for mutant in package_mutants() if re.search(pattern, mutant.name)]


def test_mutants_are_many_of_each_kind_in_a_fixed_order() -> None:
    mutants = package_mutants()
    assert len(mutants) >= len(SURVIVED) + 100
    assert {mutant.kind for mutant in mutants} == set(KINDS)
    places = [(mutant.path, mutant.start, mutant.end, mutant.new) for mutant in mutants]
    assert places == sorted(set(places))


@pytest.mark.nightly
def test_mutants_are_python_that_differs_from_the_source() -> None:
    sources = {mutant.path: file_of(PACKAGE, mutant.path).read_bytes() for mutant in package_mutants()}
    for mutant in package_mutants():
        changed = mutant.applied(sources[mutant.path])
        assert changed != sources[mutant.path]
        ast.parse(changed)


@pytest.mark.parametrize(
    ("kind", "source", "wanted"),
    [
        ("keys", "key = ('conv', x.spec, out)", ["x.spec -> None", "out -> None"]),
        ("keys", "key = [x.spec]\nkey.append(out.key)", ["x.spec -> None", "out.key -> None"]),
        ("keys", "calls.get((name, library))", ["name -> None", "library -> None"]),
        (
            "keys",
            "def store_key(a, b):\n    return f'{a}|{b}'",
            ["f'{a}|{b}' -> f'{a}|'", "f'{a}|{b}' -> f'|{b}'"],
        ),
        (
            "keys",
            "class Factors(NamedTuple):\n    one: float\ndef f(factors: Factors):\n    key = (factors, 1)",
            ["factors -> None", "factors -> factors._replace(one=None)"],
        ),
        ("strides", "settled(two_axes(x))", ["settled(two_axes(x)) -> two_axes(x)", "two_axes(x) -> x"]),
        (
            "strides",
            "y = TensorSpec.packed(x.shape, x.dtype, layout)",
            ["TensorSpec.packed(x.shape, x.dtype, layout) -> x"],
        ),
        ("strides", "write(x.shape, x.strides)", ["x.strides -> x.strides[::-1]"]),
        ("strides", "raise ValueError(x.strides)", []),
        ("strides", "at = start * x.itemsize", ["start * x.itemsize -> (start)"]),
        ("factors", "run(alpha, beta)", ["alpha -> 1", "alpha, beta -> beta, alpha", "beta -> 0"]),
        ("factors", "run(beta=2 * b, alpha=1)", ["2 * b -> 0"]),
        ("factors", "c = beta if a else 0.0", ["beta if a else 0.0 -> 0.0", "beta if a else 0.0 -> beta"]),
        ("orderings", "x.before_read(stream)", ["x.before_read(stream) -> pass"]),
        ("orderings", "event = record(stream)", []),
        ("orderings", "in_order(stream, read, written, work)", ["read -> ()", "written -> ()"]),
        ("orderings", "outs, n = (y, None if a is None else a.b, s.memory), 1", ["s.memory -> None"]),
        ("lifetimes", "if os.getpid() != self.process:\n    pass", ["os.getpid() != self.process -> False"]),
        ("lifetimes", "_retain(event, memory)", ["_retain(event, memory) -> pass"]),
        ("lifetimes", "class A:\n    def __del__(self): ...\nx = A(memory, 1)", ["A(memory, 1) -> memory"]),
        ("exit codes", "sys.exit(3)", ["3 -> 0"]),
        ("limits", "if size > MAX_NAMES:\n    raise error", ["size > MAX_NAMES -> False"]),
    ],
)  # fmt: skip
def test_pattern_finds(kind: str, source: str, wanted: list[str]) -> None:
    found = [mutant for mutant in mutants_of({"module.py": source.encode()}) if mutant.kind == kind]
    assert [f"{mutant.old} -> {mutant.new}" for mutant in found] == wanted


def test_pattern_of_exit_codes_is_for_commands() -> None:
    source = b"def _print(code) -> int:\n    return code or 3\n"
    names = [mutant.name for mutant in mutants_of({"cudnn_doctor/main.py": source, "array.py": source})]
    assert names == [f"exit codes cudnn_doctor/main.py _print: code or 3 -> {new}" for new in ("3", "code")]


def test_mutant_is_planted_at_bytes_and_not_at_characters() -> None:
    source = "text = '×÷'; key = (a, b)".encode()
    first, second = mutants_of({"module.py": source})
    assert first.applied(source).decode() == "text = '×÷'; key = (None, b)"
    assert second.applied(source).decode() == "text = '×÷'; key = (a, None)"


# --- the choice of tests ---


def test_reach_gives_the_fastest_tests_of_a_line_within_a_time() -> None:
    seconds = {"slow": 9.0, "fast": 1.0, "other": 2.0}
    reach = Reach(seconds, {"a.py": {0: [*seconds], 7: ["slow", "fast"]}})
    assert reach.tests_of("a.py", 7, 60) == ["fast", "slow", "other"]  # the last reaches the file alone
    assert reach.tests_of("a.py", 7, 5) == ["fast"]
    assert reach.tests_of("a.py", 7, 0.5) == ["fast"]  # at least one
    assert reach.tests_of("a.py", 9, 10) == ["fast", "slow"]  # a later line of the statement
    assert reach.tests_of("a.py", 99, 60) == ["fast", "other", "slow"]  # no test reaches it: all of the file
    assert reach.tests_of("b.py", 1, 60) == []
    assert Reach.read(reach.text()) == reach
    reach.add(Reach({"more": 0.5}, {"a.py": {7: ["more"]}, "b.py": {1: ["more"]}}))
    assert reach.tests_of("a.py", 7, 11) == ["more", "fast", "slow"]
    assert reach.tests_of("b.py", 1, 60) == ["more"]


def test_reach_takes_tests_of_different_files_in_turns() -> None:
    seconds = {"a::1": 1.0, "a::2": 2.0, "a::3": 3.0, "b::1": 8.0, "b::2": 9.0}
    reach = Reach(seconds, {"x.py": {5: [*seconds]}})
    assert reach.tests_of("x.py", 5, 60) == ["a::1", "b::1", "a::2", "b::2", "a::3"]
    assert reach.tests_of("x.py", 5, 10) == ["a::1", "b::1"]


def test_files_of_tiers_leave_out_those_that_judge_the_sources() -> None:
    files = files_of(ROOT, ["tests/mutants", "tests/unit", "tests/fake/test_conv.py"])
    assert "tests/unit/test_values.py" in files
    assert "tests/mutants/test_mutants.py" not in files
    assert files[-1] == "tests/fake/test_conv.py"


# --- the run ---

TEST = "tests/unit/test_values.py::test_error_has_the_builtin_class_of_its_kind"


@pytest.mark.nightly
def test_run_tells_killed_mutants_from_survivors_and_leaves_the_checkout_alone() -> None:
    source = (PACKAGE / "errors.py").read_bytes()
    ends = {
        "": "",
        "VersionMismatchError = None": TEST,
        "raise RuntimeError": "the tests could not be collected",
        "import os; os.kill(os.getpid(), 9)": "the process ended by SIGKILL",
    }
    mutants = [
        Mutant("errors.py", 1, len(source), len(source), "keys", "", "", f"\n{code}\n") for code in ends
    ]
    reach = Reach({TEST: 1.0}, {"errors.py": {0: [TEST]}})
    outcomes = list(run_all([*mutants, mutants[0]], reach, 1, 60))
    assert [outcome.killer for outcome in outcomes] == [*ends.values(), ""]
    assert [outcome.mutant for outcome in outcomes] == [*mutants, mutants[0]]
    assert {outcome.tests for outcome in outcomes} == {1}
    assert (PACKAGE / "errors.py").read_bytes() == source


@pytest.mark.nightly
def test_run_reports_a_mutant_that_no_test_reaches_as_a_survivor() -> None:
    (outcome,) = run_all(package_mutants()[:1], Reach({}, {}), 1, 60)
    assert (outcome.killer, outcome.tests) == ("", 0)


@pytest.mark.nightly
def test_measure_records_the_lines_that_a_test_and_its_children_reach() -> None:
    with copied() as root:
        reach = measure(root, ["tests/unit/test_values.py", "tests/unit/test_fork.py"], 300)
    assert TEST in reach.seconds
    child = "tests/unit/test_fork.py::test_child_raises_without_calling_the_driver_when_its_parent_used_cuda"
    assert reach.lines["errors.py"][0]
    assert [path for path, lines in reach.lines.items() if child in lines[0]]


# --- the verdict ---


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the search for mutants and the record of what tests reach."""
    monkeypatch.setattr(command, "mutants_of_package", lambda _: package_mutants())
    monkeypatch.setattr(command, "_part", lambda _: Reach({}, {}))


def outcomes(*killers: str) -> list[Outcome]:
    return [
        Outcome(mutant, killer, 1, 1.0)
        for mutant, killer in zip(package_mutants()[20:], killers, strict=False)
    ]


@pytest.mark.nightly
@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(("survivors", "code"), [(0, 0), (1, 0), (2, 1)])
def test_main_ends_with_1_when_more_than_a_twentieth_survives(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    survivors: int,
    code: int,
) -> None:
    told = outcomes(*["a test"] * (20 - survivors), *[""] * survivors)
    monkeypatch.setattr(command, "explanation", lambda mutant: "")
    monkeypatch.setattr(command, "run_all", lambda *_: iter(told))
    record = tmp_path / "mutants.json"
    assert command.main(["--json", str(record)]) == code
    written = json.loads(record.read_text())
    assert (written["mutants"], written["killed"]) == (20, 20 - survivors)
    assert [row["planted"] for row in written["survivors"]] == [
        one.mutant.name for one in told if not one.killer
    ]
    said = capsys.readouterr().out
    assert said.count("SURVIVED") == survivors
    for outcome in told[20 - survivors :]:
        assert all(line in said for line in diff(outcome.mutant).splitlines())


@pytest.mark.nightly
@pytest.mark.usefixtures("found")
def test_main_accepts_survivors_that_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "explanation", lambda mutant: "equivalent")
    monkeypatch.setattr(command, "run_all", lambda *_: iter(outcomes("", "")))
    assert command.main([]) == 0


@pytest.mark.usefixtures("found")
def test_main_lists_a_sample_that_a_seed_draws(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for seed in ("1", "1", "2"):
        assert command.main(["--list", "--sample", "5", "--seed", seed, "--only", "^keys"]) == 0
        drawn.append(capsys.readouterr().out.splitlines())
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 6
    assert drawn[0][-1] == "5 mutants: 5 keys"


def test_explanations_are_of_mutants_that_exist_and_give_a_reason() -> None:
    for row in tomllib.loads(command.EXPLAINED.read_text(encoding="utf-8"))["mutant"]:
        assert any(re.search(row["pattern"], mutant.name) for mutant in package_mutants()), row
        assert len(row["reason"]) > 20
