"""The calls of the golden files, as literals."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.layers import LayerCase, Tensor
from tests.op_cases import CASES, OpCase

FILE = Path(__file__).with_name("calls.txt")
MANY, FEW, DRAWS = 15, 3, 200
# Operations without native graphs.
LEGACY = {
    *("activation", "activation_backward", "softmax", "softmax_backward", "pool", "pool_backward", "lrn"),
    *("lrn_backward", "affine_grid", "affine_grid_backward", "grid_sample", "grid_sample_backward", "add"),
    *("batch_norm_training", "batch_norm_inference", "batch_norm_backward", "batch_norm_inference_backward"),
    *("op_tensor", "transform", "reduce_with_indices", "instance_norm", "instance_norm_backward"),
}
LONGEST = 2000  # characters; longer ones hold arrays


def drawn(seed: int) -> list[LayerCase]:
    """Draw calls of all operations whose operands are literals, as many of each row of the table."""
    found = []
    for row in CASES:
        rows = list(_drawn_of(row, seed).values())[::-1]  # the first draws are the simplest
        for operation in row.operations:
            of_one = [case for case in rows if case.operation == operation]
            found += of_one[: FEW if operation in LEGACY else MANY]
    return found


def _drawn_of(row: OpCase, seed: int) -> dict[str, LayerCase]:
    rows: dict[str, LayerCase] = {}

    @seeded(seed)
    @settings(
        max_examples=DRAWS,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(case=row.calls)
    def draw(case: LayerCase) -> None:
        text = _text(case)
        if len(text) < LONGEST and _is_literal(text):
            rows[text] = case

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return rows


def write(cases: list[LayerCase]) -> None:
    """Write calls to the file."""
    FILE.write_text("".join(f"{_text(case)}\n" for case in cases))


def read() -> list[LayerCase]:
    """Read the calls of the file."""
    return [_case(ast.literal_eval(line)) for line in FILE.read_text().splitlines()]


def _text(case: LayerCase) -> str:
    def plain(tensor: Tensor | None) -> Any:
        return tensor and tuple(tensor)

    outs = {name: plain(tensor) for name, tensor in case.outs.items()}
    more = tuple(map(plain, case.more))
    return repr((case.operation, tuple(map(plain, case.operands)), case.keywords, outs, more))


def _is_literal(text: str) -> bool:
    try:
        return bool(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return False


def _case(literal: Any) -> LayerCase:
    operation, operands, keywords, outs, more = literal
    return LayerCase(
        operation,
        tuple(one and Tensor(*one) for one in operands),
        keywords,
        {name: Tensor(*one) for name, one in outs.items()},
        more=tuple(one and Tensor(*one) for one in more),
    )
