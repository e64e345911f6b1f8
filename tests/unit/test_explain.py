"""Lines of cuDNN and their plain words: no library needed."""

from __future__ import annotations

import ctypes
import re
import threading
from string import Formatter
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct._bindings.types import cudnnCallback_t, cudnnDebug_t
from cudnn_ct.errors import Explanation, NotSupportedError, Reason, _ranges
from cudnn_ct.graph.changes import name_of, names_of
from cudnn_ct.graph.explain import KINDS, TRANSLATIONS, Line, facts_of, parse, recorded, translated
from cudnn_ct.plans.base import unsupported
from tests.rejected_graphs import attention, convolution, matmul, norm

STATUS = "CUDNN_STATUS_NOT_SUPPORTED"


def test_parse_reads_failed_checks_only() -> None:
    line = f"        Warning: {STATUS}_SHAPE; Reason: d  is odd at: d % 2"
    assert parse(line) == Line(f"{STATUS}_SHAPE", "d is odd at: d % 2")
    assert parse(line.replace("Warning", "Error")) == parse(line)
    for other in ("", "CuDNN (v92800 42) function cudnnBackendFinalize() called:", "Time: 2026-11-23"):
        assert parse(other) is None


class Talking:
    """A cuDNN that logs a message when it is asked to, and keeps the callback."""

    def __init__(self) -> None:
        self.mask, self.callback = 0, cudnnCallback_t()

    def cudnnGetCallback(self, mask: Any, data: Any, callback: Any) -> None:
        mask._obj.value = self.mask

    def cudnnSetCallback(self, mask: int, data: Any, callback: Any) -> None:
        self.mask, self.callback = mask, callback

    def log(self, *lines: str) -> None:
        text = ctypes.create_string_buffer(b"".join(line.encode() + b"\0" for line in lines) + b"\0")
        self.callback(2, None, cudnnDebug_t(), ctypes.addressof(text))


def test_recorded_takes_every_line_of_a_message_of_this_thread() -> None:
    library = Talking()
    lines = [f"Warning: {STATUS}; Reason: {cause}" for cause in ("first", "second")]
    with recorded(library) as seen:
        assert library.mask == 0b110
        library.log("CuDNN called:", *lines)
        other = threading.Thread(target=library.log, args=lines)
        other.start()
        other.join()
    assert seen == [Line(STATUS, "first"), Line(STATUS, "second")]
    assert library.mask == 0


def test_recorded_callback_may_be_called_after_the_recording() -> None:
    """Another thread may have read its address before, and calls it later: a freed one ended the process."""
    library, line = Talking(), f"Warning: {STATUS}; Reason: late"
    with recorded(library) as seen:
        callback = library.callback
    library.callback = callback
    library.log(line)
    with recorded(library) as outer:
        assert library.callback is callback
        with recorded(library) as inner:
            library.log(line)
        library.callback = callback  # the double does not restore it
        library.log(line)
    assert (seen, len(outer), len(inner)) == ([], 1, 1)


# A line for each kind of words, with the graph and what the words must have.
PRODUCT = matmul("bfloat16", "bfloat16", "bfloat16", "float16")
LINES = [
    (
        PRODUCT,
        "GEMM input/compute type mismatch: A type = 4, B type = 4, compute type = 2. at: !is_input",
        "a is bfloat16, b is bfloat16, the compute type is float16: the compute type must be float32",
    ),
    (
        attention(width=100),
        "Embedding dim per head for q and k is not a multiple of 8 at: d_qk % 8 != 0",
        "head widths are 100 (q, k) and 100 (v): the head width of q and k must be a multiple of 8",
    ),
    (
        norm("batch_norm", (2, 35, 4, 4)),
        "tunable_params.c % tunable_params.elements_per_ldg != 0",
        "x has 35 channels: the number of channels must be a multiple of 8",
    ),
    (
        convolution((1, 8, 9, 9), (8, 8, 3, 3), layout="nchw", direction="backward_filter"),
        "FORT conv fprop: all tensors (x, w, y) must be in NHWC layout. at: !all_io_nhwc",
        "layouts are x nchw, dw nchw, dy nchw: the layout of all tensors must be NHWC",
    ),
    (
        PRODUCT,
        "only Ampere or above is supported for this engine at: !(800 <= deviceVer)",
        "the GPU has compute capability 7.5: it must be 8.0 or newer",
    ),
    # The graph has no q: the facts are left out.
    (PRODUCT, "SDPA only supports FP16/BF16/FP8 I/O at: !x", "q, k, v and o must be float16 or bfloat16"),
    (PRODUCT, "a new sentence at: x > 1", "a new sentence"),
]


@pytest.mark.parametrize(("graph", "line", "words"), LINES)
def test_translated_names_the_property_with_the_facts_of_the_graph(graph: Any, line: str, words: str) -> None:
    kind, found, own = translated((Line(f"{STATUS}_SHAPE", line),), facts_of(graph, (7, 5)))
    assert found.startswith(words)
    assert kind in KINDS
    assert own == line


def test_translated_takes_the_line_that_names_a_property_of_the_graph() -> None:
    gpu = Line(STATUS, "only Hopper is supported for this engine at: x")
    data = Line(f"{STATUS}_DATA_TYPE", "T is odd at: x")
    call = Line(f"{STATUS}_DATA_TYPE", "check_for_support()")
    facts = facts_of(PRODUCT, (9, 0))
    assert translated((call, gpu, data), facts)[:2] == ("graph", "T is odd")
    assert translated((call, gpu), facts)[0] == "gpu"
    assert translated((call,), facts) == ("other", call.text, call.text)


def test_rows_of_translations_are_valid() -> None:
    known = {
        *("gpu", "operations", "compute", "dtypes", "layouts", "mode", "phase"),
        *("a", "b", "q", "k", "v", "x", "w", "y", "scale", "sink"),
    }
    for row in TRANSLATIONS:
        groups = set(re.compile(row.pattern).groupindex)
        fields = {name for text in (row.have, row.must) for _, name, _, _ in Formatter().parse(text) if name}
        assert {re.split(r"[.\[]", name)[0] for name in fields} <= known | groups, row
        assert not {name for _, name, _, _ in Formatter().parse(row.must) if name} - groups, row
        assert row.must_change in KINDS
        assert row.must
        assert row.seen
        assert all(re.fullmatch(r"9\.\d+\.\d+", version) for version in row.seen)


def test_explanation_prints_changes_then_reasons() -> None:
    reasons = (
        Reason((1, 2, 3, 7), "graph", "x is odd: it must be even", "x % 2 at: x"),
        Reason((4, 5), "other", "line", "line at: x"),
        Reason((), "graph", "no", "no"),
    )
    text = str(Explanation("it", (), ("one", "two"), reasons))
    assert text.splitlines() == [
        "it is not supported",
        "one of these changes is enough:",
        "  one",
        "  two",
        "reasons:",
        "  engines 1 to 3, 7: x is odd: it must be even (cuDNN: x % 2)",
        "  engines 4, 5: line",
        "  no",
    ]
    assert str(Explanation("it", (4,))) == "it is supported by engine 4"
    assert _ranges((9, 8, 1)) == "1, 8, 9"


def test_unsupported_has_the_first_reasons_and_the_explanation() -> None:
    reasons = tuple(Reason((n,), "graph", f"reason {n}", "line") for n in range(5))
    error = unsupported("thing", ["legacy: no"], Explanation("it", reasons=reasons))
    assert error.reasons == reasons
    assert str(error).splitlines() == [
        "cuDNN does not support this thing",
        "  rejected: legacy: no",
        *(f"  reason: engine {n}: reason {n} (cuDNN: line)" for n in range(3)),
        "  (2 more: print the error's explanation)",
    ]
    assert unsupported("thing", ["no"]).reasons == ()


def test_names_of_tensors_come_from_attributes() -> None:
    assert [name_of(one) for one in ("adesc", "scale_desc", "doddesc", "dw")] == ["a", "scale", "do", "dw"]
    assert names_of(PRODUCT) == {1: "a", 2: "b", 3: "c"}


def test_explain_rejects_other_arguments() -> None:
    with pytest.raises(TypeError, match="got 3, expected an operation, a NotSupportedError or a Graph"):
        ct.explain(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"device= is for graphs.*; run cudnn-ct algorithms .*supports"):
        ct.explain(len, (), device={})
    with pytest.raises(ValueError, match="has no explanation by engines: no"):
        ct.explain(NotSupportedError("no"))
