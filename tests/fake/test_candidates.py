"""Candidates that the caller wrote, or that an export or the cache file holds: on the fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import Candidate, NotSupportedError

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_algorithms import TIME, on_disk
from .test_conv import images

__all__ = ["on_disk"]  # a fixture, known here by its import


def call(
    direction: str, window: tuple[int, ...], dtype: str = "float32", layout: str = "nchw", groups: int = 1
) -> Any:
    """The two operands of a direction, and the shape of a gradient."""
    x, w = (2, 4, *(8 for _ in window)), (4, 4 // groups, *window)
    y = ct.conv_output_shape(x, w, groups=groups)
    shapes = {"forward": (x, w), "backward_data": (y, w), "backward_filter": (y, x)}[direction]
    shape = {"forward": None, "backward_data": x, "backward_filter": w}[direction]
    return *(ct.asarray(images(*one), dtype, layout=layout) for one in shapes), shape


def chosen(direction: str, window: tuple[int, ...], **how: Any) -> str:
    """The algorithm that a plan settles on."""
    make = {name: how.pop(name) for name in ("dtype", "layout", "groups") if name in how}
    first, second, shape = call(direction, window, **make)
    groups = make.get("groups", 1)
    plan = ct.conv_plan(first, second, shape, direction=direction, groups=groups, **how)
    assert plan.candidate is not None
    return plan.candidate.algorithm


def rows_of_the_store(path: Path, **changes: Any) -> None:
    """Export the stored choices, change every row of them, and import them again."""
    ct.export_algo_cache(path)
    kept = json.loads(path.read_text())
    for choice in kept["entries"].values():
        choice["rows"] = [{**row, **changes} for row in choice["rows"]]
    path.write_text(json.dumps(kept))
    forget()
    assert ct.import_algo_cache(path) == 1


@pytest.mark.parametrize(
    ("backend", "algorithm", "message"),
    [
        ("graph", f"engine {2**64 + 4}", "invalid engine"),
        ("graph", f"engine 4 knobs {2**32 + 2}=1", "invalid engine"),
        ("graph", f"engine 4 knobs 2={2**64 + 1}", "invalid engine"),
        ("graph", "engine -1", "invalid engine"),
        ("graph", "engine 04", "invalid engine"),
        ("graph", "engine 4_0", "invalid engine"),
        ("graph", "engine \N{ARABIC-INDIC DIGIT FOUR}", "invalid engine"),
        ("legacy", "GEMM", "has no legacy algorithm"),
        ("legacy", "count", "has no legacy algorithm"),
        ("legacy", "implicit_gemm ", "has no legacy algorithm"),
        ("legacy", "algo_0", "has no legacy algorithm"),
        ("unfused", "gemm", "backend 'unfused' does not exist"),
    ],
)
def test_candidate_is_rejected_when_its_name_does_not_exist(
    fake: FakeCudnn, backend: str, algorithm: str, message: str
) -> None:
    row = Candidate(backend, algorithm, "default", 0, True)
    with pytest.raises(NotSupportedError, match=message):
        chosen("forward", (3, 3), algo=row)


def unpacked(host: Host) -> tuple[Any, Any, Any]:
    """Operands of which the filter has to be copied, and the result."""
    numbers = np.random.default_rng(1).integers(-3, 4, (2, 4, 6, 6)).astype(np.float32)
    whole = np.random.default_rng(2).integers(-3, 4, (3, 8, 3, 3)).astype(np.float32)
    w = whole[:, ::2]
    return ct.asarray(numbers), ForeignArray(host, w), ct.reference.conv(numbers, w)


def test_candidates_of_two_backends_with_one_algorithm_have_different_keys() -> None:
    """A fused call and a convolution with separate calls may use the algorithm of one name."""
    rows = [Candidate(backend, "gemm", "fma", 0, True) for backend in ("legacy", "unfused")]
    assert rows[0].key != rows[1].key


def test_candidate_is_rejected_when_its_copies_are_not_offered(fake: FakeCudnn, host: Host) -> None:
    x, w, want = unpacked(host)
    row = next(row for row in ct.conv_algorithms(x, w) if not row.rejected)
    assert row.relayout == (("w", "nchw"),)
    np.testing.assert_array_equal(ct.conv(x, w, algo=row).numpy(), want)
    for packed in ((), (("w", "nchw"), ("w", "nchw")), (("b", "nchw"),), (("w", "chwn"),)):
        with pytest.raises(NotSupportedError, match="got relayout="):
            ct.conv(x, w, algo=row._replace(relayout=packed))
    row = Candidate("graph", "engine 1", "fma", 0, True, relayout=(("w", "nhwc"),))
    with pytest.raises(NotSupportedError, match="got relayout="):
        chosen("forward", (3, 3), algo=row)


@pytest.mark.parametrize("changes", [{"relayout": []}, {"relayout": [["w", "nchw"], ["x", "nhwc"]]}])
def test_imported_algorithms_are_timed_again_when_their_copies_are_not_offered(
    fake: FakeCudnn, host: Host, on_disk: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    x, w, want = unpacked(host)
    np.testing.assert_array_equal(ct.conv(x, w, algo=TIME).numpy(), want)
    rows_of_the_store(tmp_path / "algo_cache.json", **changes)
    np.testing.assert_array_equal(ct.conv(x, w, algo=TIME).numpy(), want)


def test_conv_copies_operands_when_only_copies_have_a_deterministic_algorithm(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = fake._rank

    def random_for_channels_last(
        handle: Any, image: Any, w: Any, convolution: Any, names: Any, *rest: Any
    ) -> None:
        last = fake._get(image, "tensor")["strides"][1] == 1
        fake.random = set(names.offered) if last else set()
        rank(handle, image, w, convolution, names, *rest)

    monkeypatch.setattr(fake, "_rank", random_for_channels_last)
    w, dy = images(4, 3, 2, 2), ct.asarray(images(2, 4, 5, 6).numpy(), layout="nhwc")
    expected = ct.reference.conv_backward_data(dy.numpy(), w.numpy(), (2, 3, 6, 7))
    for deterministic in (False, True):
        plan = ct.conv_plan(dy, w, (2, 3, 6, 7), direction="backward_data", deterministic=deterministic)
        assert (("y", "nchw") in plan.candidate.relayout) == deterministic, plan.describe()
        np.testing.assert_array_equal(plan(dy, w).numpy(), expected)
