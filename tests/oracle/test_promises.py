"""The promises of the documentation on the fakes, and what their comparison must find."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from . import promise as promise_module
from .children import judged
from .determinism import on_fakes
from .promise import PROMISES, BrokenError, Draw, Promise, promise, stands
from .promises import main, promises_of, table

pytestmark = pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
DRAWS = 3


@pytest.fixture
def fakes() -> Iterator[None]:
    with on_fakes():
        yield


def _ids(promises: list[Promise]) -> list[str]:
    seen: Counter[str] = Counter()
    names = []
    for one in promises:
        seen[one.name] += 1
        names.append(f"{one.name} {seen[one.name]}")
    return names


@pytest.mark.parametrize("one", PROMISES, ids=_ids(PROMISES))
def test_promise_stands_on_its_page(one: Promise) -> None:
    assert stands(one), f"{one.page} does not say: {one.quote}"


CHECKS = {one.check: one for one in promises_of("fakes")}


@pytest.mark.parametrize("one", CHECKS.values(), ids=_ids(list(CHECKS.values())))
def test_promise_holds_on_the_fakes(one: Promise, fakes: None) -> None:
    for number in range(DRAWS):
        with suppress(ct.NotSupportedError):
            one.check(Draw(f"test {number}", "fakes"))


def test_promises_are_many() -> None:
    assert len({one.quote for one in PROMISES}) >= 100
    assert all(len(one.quote) > 15 or one.gpu for one in PROMISES)


def test_stands_ignores_line_breaks_only() -> None:
    page, quote = (
        "docs/rnn.md",
        "Past the end of a sequence it is `padding_value`, and the gradient of x is 0.",
    )
    one = Promise(page, quote, lambda d: None, False)
    assert stands(one)
    assert not stands(one._replace(quote=quote.replace("0", "1")))
    assert stands(one._replace(page="ct.reduce", quote="sums are 0 and\n    products 1"))


def test_comparisons_find_differences() -> None:
    d = Draw(1)
    values = np.array([1.0, np.nan, np.inf, 0.0])
    d.near(values, values, dtype="float32")
    d.equal(values, values)
    for place, wrong in ((0, 1.001), (1, 0.0), (2, 3.0), (2, -np.inf), (2, np.nan), (3, np.inf), (3, 1e-3)):
        other = values.copy()
        other[place] = wrong
        for compare in (d.equal, lambda got, want: d.near(got, want, dtype="float32", terms=values)):
            with pytest.raises(BrokenError):
                compare(other, values)
    with pytest.raises(BrokenError):
        d.near(values[:2], values, dtype="float32")
    with pytest.raises(BrokenError, match="did not raise"):
        d.raises(ValueError, lambda: None)


def test_draws_of_promises_have_any_layout(fakes: None) -> None:
    d, values = Draw(2, "fakes"), np.arange(24.0).reshape(2, 3, 4)
    kinds = set()
    for _ in range(60):
        x = d.array(values, "float32")
        assert np.array_equal(x.numpy(), values)
        dense = sorted(x.spec.strides) == [1, 4, 12] or x.size == x.nbytes // 4
        kinds.add((dense, x.spec.strides == (12, 4, 1), x.pointer % 16 == 0))
    assert {aligned for _, _, aligned in kinds} == {True, False}
    assert {plain for _, plain, _ in kinds} == {True, False}


def test_table_lists_findings_with_their_command() -> None:
    def broken(d: Draw) -> None:
        raise BrokenError("got 1, expected 2")

    one = promise("docs/rnn.md", "a sentence")(broken)
    PROMISES.pop()
    report = judged(lambda: one(Draw(1)))
    assert report["outcome"] == "finding"
    call = {"number": 7, "call": "docs/rnn.md: a sentence"}
    text, findings = table(3, [{**call, **report}], "fakes")
    assert findings == 1
    assert "python -m tests.oracle.promises --seed 3 --number 7 --fakes" in text
    assert "got 1, expected 2" in text


def test_table_lists_sentences_that_cudnn_always_rejects() -> None:
    call = {"call": "docs/rnn.md: a sentence", "outcome": "not supported", "reason": "no engine"}
    reports = [{"number": number, **call} for number in range(3)]
    text, findings = table(3, reports, "fakes")
    assert findings == 1
    assert "not supported in any of 3 cases: no engine" in text
    assert table(3, [*reports, {**reports[0], "outcome": "holds"}], "fakes")[1] == 0
    assert table(3, reports[:2], "fakes")[1] == 0


def test_promises_run_in_child_processes(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--fakes", "--calls", "6", "--seed", "1", "--jobs", "2"]) == 0, capfd.readouterr().out
    assert "6 sentences" in capfd.readouterr().out.splitlines()[-1]


# Checks of errors, of layouts and of integers, or of two results of this package that have to be equal.
WITHOUT_NUMBERS = {
    *("overlapping_results_are_rejected", "negative_strides_are_not_written", "closed_arrays_are_errors"),
    *("indices_are_checked", "strides_have_two_units", "results_have_the_layout_of_the_operand"),
    *("host_arrays_are_rejected", "replays_have_the_same_bits", "errors_leave_no_trace"),
    *("wrong_arguments_are_named", "settings_are_checked", "out_is_only_written", "dropout_repeats"),
    *("layer_norm_rejects_float64", "networks_pad_their_results", "products_of_integers_are_exact"),
    *("attention_rejects_what_it_lists", "graphs_are_checked", "arrays_are_not_compared"),
}
WITH_NUMBERS = [one for one in CHECKS.values() if one.check.__name__ not in WITHOUT_NUMBERS]


def _checked(one: Promise, draw: Draw) -> dict[str, Any]:
    one.check(draw)
    return {"outcome": "holds"}


@pytest.mark.nightly
@pytest.mark.parametrize("one", WITH_NUMBERS, ids=_ids(WITH_NUMBERS))
def test_promise_finds_a_wrong_element(one: Promise, fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(array: Any) -> np.ndarray:
        values = np.array(promises_of_host(array))
        if values.dtype.kind == "f" and values.size:
            middle = values.flat[values.size // 2]
            values.flat[values.size // 2] = 1.2 * middle + 0.2 if np.isfinite(middle) else 1.0
        return values

    promises_of_host = promise_module.host
    for module in {promise_module, sys.modules[one.check.__module__]}:
        monkeypatch.setattr(module, "host", wrong)
    draws = (Draw(f"wrong {number}", "fakes") for number in range(8))
    outcomes = {judged(partial(_checked, one, draw))["outcome"] for draw in draws}
    assert "finding" in outcomes
