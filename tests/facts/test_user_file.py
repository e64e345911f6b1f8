"""The file that CUDNN_CT_FACTS names: rows of a user, and what is wrong with a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import facts, testing
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.facts import FactsError, Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.recording import read_requests
from cudnn_ct.legal.conditions import check_user_facts
from cudnn_ct.legal.rules import engine_rules, rules_of_subjects
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.versions import table
from tests.fake.conftest import fake, host, jit
from tests.fake.cudnn import FakeCudnn

from .pool import pool

__all__ = ["fake", "host", "jit"]  # fixtures, known here by their import

ROW = {
    "name": "mine",
    "kind": "engine",
    "operations": ["conv"],
    "when": ["float32"],
    "engines": [4],
    "effect": "wrong",
    "message": "wrong here",
}
NONE = object()  # the value of a field that a row lacks
REJECT = {"kind": "reject", "engines": NONE}
MODES = REJECT | {"kind": "modes", "operations": ["convolution"], "when": []}
FIRST = REJECT | {"kind": "first", "order": ["engine 4"]}
COST = FIRST | {"kind": "cost", "costs": {"engine 4": {"call": 2.5}}}
OF_RNN = {"operations": ["rnn"], "when": [], "engines": NONE, "algorithms": ["standard"]}
STORED = REJECT | {"kind": "stored", "operations": ["all"], "when": [], "kernels": "sm90"}
CONV = conv_problem("forward", *(TensorSpec.packed((2, 4, 8, 8)), TensorSpec.packed((4, 4, 3, 3))))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    def written(text: str) -> Path:
        path = tmp_path / "facts.json"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(ct.config, "facts", str(path))
        facts.forget()
        testing.reset()
        return path

    yield written
    monkeypatch.undo()
    facts.forget()
    testing.reset()


def test_a_row_of_a_user_rejects_an_engine_without_a_release(plant: Callable[..., None]) -> None:
    before = facts.digest()
    plant(**ROW)
    rules = engine_rules(CONV, Target(92801))
    assert rules.why_wrong(Engine(4), ()) == "wrong here (fact mine)"
    assert rules.why_wrong(Engine(5), ()) == ""
    assert facts.digest() != before, "older choices must expire"


@pytest.mark.parametrize("effect", ["wrong", "inaccurate", "crash"])
@pytest.mark.parametrize("operation", ["conv", "matmul", "attention", "layer_norm", "graph"])
def test_a_user_blocks_an_engine_of_any_operation(
    plant: Callable[..., None], operation: str, effect: str
) -> None:
    plant(operations=[operation], engines=[4], effect=effect, message="wrong here")
    rules = (rules_of_subjects(((operation, one),), Target(92801)) for one in pool()[operation])
    reasons = [one.why_wrong(Engine(4), ()) for one in rules if not one.refusal((9, 0))]
    assert reasons[0].endswith("wrong here (fact planted)")


def test_without_legacy_calls_an_engine_runs_on_copies_in_another_layout(
    jit: FakeCudnn, plant: Callable[..., None]
) -> None:
    plant(operations=["conv"], when=["x that is not in NHWC"], engines=[0], message="wrong here")
    x, w = (
        np.arange(size, dtype=np.float32).reshape(shape)
        for size, shape in ((18, (1, 2, 3, 3)), (24, (3, 2, 2, 2)))
    )
    y = ct.conv(ct.asarray(x), ct.asarray(w))
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x, w))
    described = ct.last_plan()
    assert described is not None
    assert "3 operands copied into a packed layout" in described.describe()


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        ({"engine 5": 12.5, "engine 6": 10}, "engine 6"),
        ({"engine 5": 11.5, "engine 6": 10}, "engine 5"),
        ({"engine 6": 10}, "engine 5"),
    ],
)
def test_the_heuristic_choice_is_an_engine_that_should_take_less_time(
    fake: FakeCudnn, plant: Callable[..., None], known: dict[str, float], chosen: str
) -> None:
    """Estimates err by a fifth, and an engine without costs is not compared."""
    fake.engines, fake.engine_number, fake.second_engine = True, 5, 6  # in the order of the heuristics
    plant(
        **{"kind": "cost", "operations": ["conv"], "effect": "slow", "message": "slow here"},
        order=["engine 6"],
        costs={name: {"call": microseconds} for name, microseconds in known.items()},
    )
    x, w = ct.zeros((2, 4, 8, 8)), ct.zeros((4, 4, 3, 3))
    assert ct.conv_plan(x, w).candidate.algorithm == chosen


def test_a_rejected_operation_has_no_legacy_call_either(fake: FakeCudnn, plant: Callable[..., None]) -> None:
    plant(kind="reject", operations=["conv"], message="never here", advice="compute it elsewhere")
    with pytest.raises(NotSupportedError, match=r"never here; compute it elsewhere \(fact planted\)"):
        ct.conv(ct.zeros((1, 1, 3, 3)), ct.zeros((1, 1, 2, 2)))


def test_recorded_graphs_carry_the_rules(plant: Callable[..., None], tmp_path: Path) -> None:
    """`compile` and `supports` read the file, and must not use engines that every run rejects."""
    plant(operations=["conv"], engines=[4], knobs={"24": [2]}, arch={"from": "9.0"}, message="wrong here")
    with ct.record_plans(shapes_only=True) as recorded:
        ct.conv_bias_activation(*(ct.zeros(s, "float16") for s in ((1, 8, 6, 6), (8, 8, 3, 3), (1, 8, 1, 1))))
    recorded.save(tmp_path / "graphs.json")
    (request,) = read_requests(json.loads((tmp_path / "graphs.json").read_text()))
    assert request.rules.rejections == next(iter(recorded.requests.values())).rules.rejections
    rules = request.rules
    engine = Engine(4, ((24, 2),))
    assert rules.why_wrong(engine, (), (9, 0)) == "wrong here (fact planted)"
    assert not rules.why_wrong(engine, (), (8, 0))
    assert not rules.why_wrong(Engine(4), (), (9, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"when": ["float31"]}, "got 'float31', expected one of conv, such as 'float32', 'float16'"),
        ({"operations": ["conv", "rnn"]}, "got 'float32', expected one of rnn, such as '"),
        ({"operations": ["all"]}, "got 'float32', expected one of all, such as []"),
        ({"kind": "engin"}, 'kind has a wrong value: got "engin", expected one of reject, engine'),
        ({"effect": "bad"}, 'effect has a wrong value: got "bad", expected one of wrong'),
        ({"operations": ["convolve"]}, "operations are unknown to the kind engine: got ['convolve']"),
        ({"operations": []}, "operations has a wrong value: got []"),
        ({"engine": 4}, "a fact has no field 'engine'"),
        ({"engines": 4}, "engines has a wrong value: got 4, expected numbers such as [4]"),
        ({"engines": []}, "got [], expected numbers such as [4], or no such field"),
        ({"engines": [-1]}, "engines has a wrong value: got [-1], expected numbers"),
        ({"engines": ["4"]}, 'engines has a wrong value: got ["4"], expected numbers'),
        ({"engines": [True]}, "engines has a wrong value: got [true], expected numbers"),
        ({"message": None}, "message has a wrong value: got null, expected a text"),
        ({"message": ""}, 'message has a wrong value: got ""'),
        ({"when": [1]}, "when has a wrong value: got [1], expected names"),
        ({"cudnn": {"to": "9.28"}}, 'cudnn has a wrong value: got {"to"'),
        ({"cudnn": {"from": "92800"}}, 'got {"from": "92800"}, expected a range of versions such as'),
        ({"cudnn": {}}, "cudnn has a wrong value: got {}"),
        ({"cudnn": {"from": "9.9", "before": "9.9.0"}}, "cudnn is an empty range: got from 9.9 before 9.9.0"),
        ({"cudnn": {"before": "9.0"}}, "cudnn is an empty range: got from 9 before 9.0"),
        ({"arch": {"from": 9.0}}, 'arch has a wrong value: got {"from": 9.0}'),
        (
            {"arch": {"from": "90"}},
            'got {"from": "90"}, expected a range of compute capabilities such as {"from": "9.0"}',
        ),
        ({"arch": {"from": "9.0", "before": "8.0"}}, "arch is an empty range: got from 9.0 before 8.0"),
        ({"knobs": {"24": ["2"]}}, 'knobs has a wrong value: got {"24"'),
        ({"knobs": {"24": []}}, 'knobs has a wrong value: got {"24": []}'),
        ({"min_slices": 1}, "min_slices has a wrong value: got 1, expected a number of at least 2"),
        ({"libraries": "JIT"}, 'libraries has a wrong value: got "JIT", expected one of full, jit'),
        (
            {"operations": ["matmul"], "when": [], "sizes": {"axes": 2}},
            "sizes are conditions of convolutions",
        ),
        ({"sizes": {"min_tile": 2}}, "sizes are wrong: got 'min_tile': 2, expected one like those in {'prec"),
        ({"sizes": {"min_max_groups": 2}}, "sizes are wrong: got 'min_max_groups'"),
        ({"sizes": {"min_strided": True}}, "sizes are wrong: got 'min_strided'"),
        ({"sizes": {"min_groups": "2"}}, "got 'min_groups': '2', expected one like"),
        ({"sizes": {"strided": 1}}, "got 'strided': 1, expected one like"),
        ({"sizes": {"min_precision": 3}}, "sizes are wrong: got 'min_precision'"),
        ({"sizes": {"precision": "half"}}, "got 'precision': 'half', expected one like"),
        # Names of algorithms and notes.
        ({"algorithms": ["gem"]}, "algorithms has a name that conv does not know: got 'gem', expected"),
        (
            {"with_notes": ["tensor_cores"]},
            "with_notes has a name that conv does not know: got 'tensor_cores'",
        ),
        ({"without_notes": ["gemm"]}, "without_notes has a name that conv does not know: got 'gemm'"),
        ({"algorithms": ["standard"]}, "algorithms has a name that conv does not know: got 'standard'"),
        ({"algorithms": ["algo_3"]}, "algorithms has a name that conv does not know: got 'algo_3'"),
        *(
            (
                {"operations": [name], "when": [], "algorithms": ["gemm"]},
                f"that {name} does not know: got 'gemm'",
            )
            for name in ("matmul", "resample")
        ),
        (
            OF_RNN | {"algorithms": ["gemm"]},
            "algorithms has a name that rnn does not know: got 'gemm', expec",
        ),
        (OF_RNN | {"engines": [4]}, "networks have no engines: got engines, expected algorithms alone"),
        (OF_RNN | {"algorithms": NONE}, "the fact lacks algorithms, which the operation rnn needs"),
        # The fields and the operations of kinds.
        (REJECT | {"engines": [4]}, "engines is not a field of the kind reject: got [4], expected the kind"),
        ({"kernels": "sm90"}, "got 'sm90', expected the kind stored"),
        ({"order": ["engine 4"]}, "expected the kind first or last or also or cost"),
        (COST | {"costs": NONE}, "the fact lacks costs, which the kind cost needs"),
        (COST | {"costs": {"engine 4": {"calls": 2.5}}}, "costs have an unknown term: got 'calls', expected"),
        (COST | {"costs": {"engine 4": {"call": -1}}}, "costs has a wrong value: got"),
        (COST | {"costs": {"engine 5": {"call": 1}}}, "costs lack 'engine 4', which order names"),
        (COST | {"operations": ["matmul"], "when": []}, "got ['matmul'], expected some of conv, "),
        (REJECT | {"kind": "first"}, "the fact lacks order, which the kind first needs"),
        (REJECT | {"kind": "first_choice"}, "got ['conv'], expected some of attention"),
        (REJECT | {"kind": "modes", "modes": ["b"]}, "got ['conv'], expected some of convolution"),
        (MODES | {"modes": ["c"]}, "modes are wrong: got ['c'], expected some but not all of b, a, fallback"),
        (MODES | {"modes": ["a", "b", "fallback"]}, "expected some but not all of"),
        *(
            (FIRST | {"operations": [name], "when": []}, f"got ['{name}'], expected some of conv, ")
            for name in ("layer_norm", "attention", "graph")
        ),
        (FIRST | {"order": ["bogus"]}, "got 'bogus', expected one like 'engine 38'"),
        (FIRST | {"order": ["cublaslt 0"]}, "got 'cublaslt 0', expected one like 'engine 38'"),
        (FIRST | {"order": ["engine 4", "engine 5"]}, "got ['engine 4', 'engine 5'], expected one name"),
        (
            FIRST | {"kind": "last", "order": ["engine 4 knobs 2=0"]},
            "order has knobs, which the kind last",
        ),
        *(
            (REJECT | {"operations": ["native graph"], "when": when}, "when is wrong for native graph: got [")
            for when in ([], ["a reduction to a tensor with gaps", "sums of channels that are not float32"])
        ),
        (
            FIRST | {"kind": "last", "order": ["product"]},
            "order has an unknown name: invalid engine: got 'prod",
        ),
        (
            STORED | {"operations": ["matmul"]},
            "operations are unknown to the kind stored: got ['matmul'], expected some of all",
        ),
        (STORED | {"when": ["float32"]}, "got 'float32', expected one of all, such as []"),
        (STORED | {"kernels": NONE}, "the fact lacks kernels, which the kind stored needs"),
        (STORED | {"kernels": ["sm90"]}, 'kernels has a wrong value: got ["sm90"]'),
        (STORED | {"kernels": "\ud800"}, "kernels has a wrong value"),
    ],
)
def test_a_malformed_row_is_an_error_with_its_line(
    write: Callable[[str], Path], change: dict[str, Any], message: str
) -> None:
    good = json.dumps(ROW | {"name": "good", "message": "mine {"}, indent=1)
    row = {key: value for key, value in (ROW | change).items() if value is not NONE}
    path = write(f'{{"facts": [\n{good},\n{json.dumps(row, indent=1)}\n]}}')
    line = path.read_text().splitlines().index(' "name": "mine",')
    with pytest.raises(FactsError) as caught:
        engine_rules(CONV, Target(92801))
    assert f"{path}: line {line}: fact 'mine': " in str(caught.value)
    assert message in str(caught.value)


GOOD = json.dumps(ROW)
NAMELESS = {key: value for key, value in ROW.items() if key != "name"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (json.dumps(NAMELESS), "the fact lacks name"),
        (json.dumps(ROW | {"name": "wrong", "effect": ""}), "fact 'wrong': effect has a wrong value"),
        (
            json.dumps(ROW | {"name": "Größe", "kind": 1}, ensure_ascii=False),
            "fact 'Größe': kind has a wrong value",
        ),
        (GOOD, "fact 'mine': name is not unique: got that of an earlier fact"),
        (GOOD.replace("[4]", '[4], "engines": [5]'), "fact 'mine': keys are not unique: got 'engines' twice"),
        (
            GOOD.replace("[4]", '[4], "knobs": {"1": [2], "1": [3]}'),
            "fact 'mine': keys are not unique: got '1' twice",
        ),
        ("[]", "a fact is not an object: got list"),
    ],
)
def test_line_is_that_where_the_row_begins(write: Callable[[str], Path], second: str, message: str) -> None:
    first = json.dumps(ROW | {"knobs": {"24": [2]}, "advice": '[{"wrong"}, "Größe"'}, ensure_ascii=False)
    path = write(f'\n{{"facts":\n[{first}\n, {second}\n]}}')
    with pytest.raises(FactsError, match=f"^{re.escape(f'{path}: line 4: {message}')}"):
        facts.user_facts()


def test_another_file_after_the_facts_were_read_warns_once(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = write(json.dumps({"facts": [ROW]}))
    engine_rules(CONV, Target(92801))
    monkeypatch.setattr(ct.config, "facts", "/another.json")
    with pytest.warns(ct.CudnnWarning, match=f"facts was set too late: {read} was read for this process"):
        rules = engine_rules(CONV, Target(92800))
    assert rules.why_wrong(Engine(4), ()), "the facts that were read hold"
    engine_rules(CONV, Target(92799))  # a second warning would be an error
    assert facts.summary().endswith(f", 1 of {read}, hash {facts.digest()}")
    monkeypatch.setattr(ct.config, "facts", read)  # a path in place of a text, and right again
    engine_rules(CONV, Target(92798))


def test_a_file_that_could_not_be_read_may_be_replaced(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("{")
    with pytest.raises(FactsError):
        engine_rules(CONV, Target(92801))
    monkeypatch.setattr(ct.config, "facts", "/does/not/exist.json")
    with pytest.raises(FileNotFoundError):
        engine_rules(CONV, Target(92801))
    write(json.dumps({"facts": [ROW]}))
    assert engine_rules(CONV, Target(92801)).why_wrong(Engine(4), ())


def test_every_order_and_range_of_the_package_may_be_a_users(write: Callable[[str], Path]) -> None:
    rows = [row for row in table() if row["kind"] in facts.KINDS]
    write(json.dumps({"facts": rows}))
    check_user_facts()
    assert len(facts.user_facts()) == len(rows)


@pytest.mark.parametrize("text", [json.dumps({"facts": [ROW | {"when": ["float31"]}]}), "[" * 100_000, "{}"])
def test_information_has_what_is_wrong_with_a_file(write: Callable[[str], Path], text: str) -> None:
    path = write(text)
    info = ct.library_info()
    assert info.facts.startswith(f"unusable: {path}")
    assert info.problem
    with pytest.raises(FactsError, match=str(path)):
        check_user_facts()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("\n[]", 'line 2: got no list "facts"'),
        ('{"facts": 1}', 'line 1: got no list "facts"'),
        ('{"facts": [],\n"version": 1}', 'line 2: got "version"; expected {"facts": [...]} alone'),
        ('{"facts": [],\n"facts": []}', 'line 2: got "facts"'),
        ("[" * 100_000, "is nested too deeply"),
        ('{"facts": [\n1]}', "a fact is not an object: got int"),
        (json.dumps({"facts": [{"name": "x"}]}), "the fact lacks kind, operations, when, effect, message"),
    ],
)
def test_a_file_without_facts_is_an_error(write: Callable[[str], Path], text: str, message: str) -> None:
    write(text)
    for read in (facts.digest, facts.summary):
        with pytest.raises(FactsError, match=re.escape(message)):
            read()


def test_a_file_that_everybody_may_write_is_an_error(write: Callable[[str], Path]) -> None:
    path = write(json.dumps({"facts": [ROW]}))
    path.chmod(0o666)
    facts.forget()
    with pytest.raises(FactsError, match="world-writable and was not read; run chmod o-w"):
        engine_rules(CONV, Target(92801))


def test_a_missing_file_is_an_error(write: Callable[[str], Path]) -> None:
    write("{}").unlink()
    facts.forget()
    with pytest.raises(
        FileNotFoundError, match=r"^CUDNN_CT_FACTS: .*facts\.json cannot be read: No such file or directory$"
    ):
        facts.digest()


@pytest.mark.parametrize("path", ["/dev/null", "/tmp"])
def test_a_device_or_folder_is_an_error_that_advises_no_change_of_it(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    write("{}")
    monkeypatch.setattr(ct.config, "facts", path)
    facts.forget()
    with pytest.raises(OSError, match=rf"^CUDNN_CT_FACTS: {path} cannot be read: [iI]s ") as caught:
        facts.digest()
    assert "chmod" not in str(caught.value)


def test_a_file_of_another_user_is_not_to_be_changed(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("{}")
    path.chmod(0o666)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    facts.forget()
    with pytest.raises(FactsError, match="world-writable and was not read; choose one that only you can"):
        facts.digest()


def test_facts_can_be_ignored_in_a_block() -> None:
    target = Target(91900)

    def names() -> set[str]:
        known = facts.facts("engine", "conv", target)
        return {fact.name for fact in known if not facts.ignores(fact.name)}

    assert "conv-select" in names()
    with pytest.raises(ValueError, match="not those of facts: got conv-selects"):
        facts.ignore(["conv-selects"])
    with testing.without_facts("conv-select"):
        assert "conv-select" not in names()
        assert facts.ignored_that_held() == {"conv-select"}
        assert facts.ignored_that_held() == set()
    assert "conv-select" in names()


def test_pooling_by_a_graph_obeys_facts_about_its_node(jit: FakeCudnn, plant: Callable[..., None]) -> None:
    """It has no candidates: its plan is that of the first engine that may be used."""
    x = ct.asarray(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    plant(operations=["resample"], when=["maxima"], engines=[0], message="wrong here")
    with pytest.raises(NotSupportedError, match=r"engine 0.*: wrong here"):
        ct.pool(x, window=2)
    assert ct.pool(x, window=2, mode="average_inc_pad").shape == (1, 1, 2, 2)
