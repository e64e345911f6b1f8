"""Operations of libcudnn_ext in sets of libraries: an older cuDNN, a JIT set, and libcudnn_ext alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.causal_cases import fft_operands
from tests.strategies import own

from . import cudnn
from .cudnn import FakeLibrary
from .host import Host
from .installed import cudnn_installed, forget, lacking
from .test_causal_conv import HALF, adjacent, check, gated, plain, spectral
from .test_gnn import HEADS, aggregated, attended, graph, same


class Row(NamedTuple):
    """An operation: a part of the names of its C functions, the version of the first, and calls that fail."""

    functions: str
    since: str
    calls: tuple[Callable[[], Any], ...]


def zeros(*shapes: tuple[int, ...]) -> list[ct.DeviceArray]:
    return [*map(ct.zeros, shapes)]


def edges() -> list[ct.DeviceArray]:
    return [own(one) for one in graph().values()]


ROWS = {
    "causal_conv1d": Row(
        *("CausalConv1d", "9.22.0"),
        (
            lambda: ct.causal_conv1d(*zeros((2, 3, 7), (3, 4))),
            lambda: ct.causal_conv1d_backward(*zeros((2, 3, 7), (2, 3, 7), (3, 4))),
        ),
    ),
    "fft_causal_conv1d": Row(
        *("FFT", "9.26.0"),
        (
            lambda: ct.fft_causal_conv1d(*zeros((1, 1, 128), (1, 128))),
            lambda: ct.fft_causal_conv1d(*zeros((1, 1, 2**15), (1, 2**15))),
        ),
    ),
    "b2b_causal_conv1d": Row(
        *("B2B", "9.24.0"),
        (lambda: ct.b2b_causal_conv1d(*zeros((2, 3, 3, 9), (3, 3, 4), (3, 7), (3,))),),
    ),
    "graph_aggregate": Row(
        *("cudnnGnnAggSimpleForward", "9.26.0"),
        (lambda: ct.graph_aggregate(*edges()[:2], *zeros((5, 4))),),
    ),
    "graph_attention": Row(
        *("cudnnGnnMhaGatV2Forward", "9.28.0"),
        (lambda: ct.graph_attention(*edges()[:2], *zeros((5, 4), (3, 4), (4,))),),
    ),
}


def check_rejected(operation: str, reason: str) -> None:
    for call in ROWS[operation].calls:
        with pytest.raises(NotSupportedError, match=f"rejected: {operation} needs {reason}"):
            call()


@pytest.mark.parametrize("operation", ROWS)
def test_older_cudnn_names_the_version_that_is_needed(host: Host, operation: str) -> None:
    with cudnn_installed(host, lacking(ROWS[operation].functions)):
        check_rejected(operation, f"cuDNN >= {ROWS[operation].since}, have 9.19.0")


@pytest.mark.parametrize("operation", ROWS)
def test_jit_set_names_the_library_that_it_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "jit")
    monkeypatch.setattr(cudnn, "VERSION", 92800)
    with cudnn_installed(host):
        check_rejected(operation, r"libcudnn_ext, which the JIT wheel lacks \(3009\)")


def check_plain() -> None:
    check("causal_conv1d", plain())
    check("causal_conv1d", plain(), adjacent(plain()), activation="silu")
    with pytest.raises(NotSupportedError, match=r"needs libcudnn_ops, which a set of libcudnn_ext alone"):
        ct.softmax(ct.zeros((2, 3)))


def check_spectral() -> None:
    check("fft_causal_conv1d", spectral())
    check("fft_causal_conv1d", fft_operands(1, 1, 2**15, 2**15, HALF))


def check_graphs() -> None:
    arrays = aggregated(graph())
    found = ct.graph_aggregate(**{name: own(one) for name, one in arrays.items()})
    same(found, ct.reference.graph_aggregate(**arrays))
    placed = {name: own(one) for name, one in attended(graph()).items()}
    y, scores, activated = ct.graph_attention(**placed, heads=HEADS)
    ct.graph_attention_backward(y, **placed, scores=scores, activated=activated, heads=HEADS)


@pytest.mark.parametrize(
    ("computes", "functions"),
    [
        (check_plain, "Conv1d"),
        (check_spectral, "FFT"),
        (lambda: check("b2b_causal_conv1d", gated()), "B2B"),
        (check_graphs, "Gnn"),
    ],
    ids=["plain", "spectral", "gated", "graphs"],
)
def test_set_of_one_library_computes_without_a_handle(
    host: Host, monkeypatch: pytest.MonkeyPatch, computes: Callable[[], None], functions: str
) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "ext")
    with cudnn_installed(host) as alone:
        computes()
        assert {name for name in alone.names() if functions not in name} == set()
        forget()
