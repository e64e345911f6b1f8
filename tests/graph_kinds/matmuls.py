"""Products of matrices with what precedes and follows them, block scales, grouped products, reductions."""

from __future__ import annotations

from collections.abc import Callable

from cudnn_ct.graph.operations import Graph, Tensor
from cudnn_ct.shapes.specs import Shape

from .draft import Draft

__all__ = ["MATMULS"]

BATCH, M, N, K = 4, 256, 512, 128


def columns(batch: int, k: int, n: int) -> Shape:
    """Strides of a matrix (K, N) in column order, which products of bytes need."""
    return (k * n, 1, k)


def matmul(
    dtype: str = "bfloat16",
    *epilogue: str,
    bias: bool = False,
    residual: bool = False,
    result: str = "",
    batch: int = BATCH,
    b_batch: int = 0,
) -> Graph:
    """a @ b, then the bias of a row, a residual of the result's shape, and activations."""
    draft = Draft()
    a, b = draft.input((batch, M, K), dtype), draft.input((b_batch or batch, K, N), dtype)
    steps = [*epilogue]
    added: list[Tensor] = []
    if bias:
        added.append(draft.input((1, 1, N), dtype))
    if residual:
        added.append(draft.input((batch, M, N), dtype))
    c = draft.result((batch, M, N), result or dtype)
    count = len(steps) + len(added)
    value = draft.matmul(a, b, draft.virtual((batch, M, N)) if count else c)
    for other in added:
        count -= 1
        value = draft.pointwise("add", value, other, y=None if count else c)
    for mode in steps:
        count -= 1
        value = draft.pointwise(mode, value, y=None if count else c)
    return draft.graph()


def float8_matmul(dtype: str = "float8_e4m3", result: str = "float8_e4m3") -> Graph:
    """An 8-bit product with scales of a, b and c, and the largest magnitude of the result."""
    draft = Draft()
    a = draft.input((BATCH, M, K), dtype)
    b = draft.input((BATCH, K, N), dtype, columns(BATCH, K, N))
    scales = [draft.input((1, 1, 1), "float32") for _ in range(3)]
    c = draft.result((BATCH, M, N), result)
    largest = draft.result((1, 1, 1), "float32")
    value = draft.matmul(a, b, draft.virtual((BATCH, M, N)))
    value = draft.pointwise("mul", draft.pointwise("mul", value, scales[0]), scales[1])
    draft.reduce("amax", value, (1, 1, 1), largest)
    draft.pointwise("mul", value, scales[2], y=c)
    return draft.graph()


def int8_matmul() -> Graph:
    """int8 times int8, summed in int32, with a float32 bias."""
    draft = Draft()
    a, b = draft.input((BATCH, M, K), "int8"), draft.input((BATCH, K, N), "int8", columns(BATCH, K, N))
    bias = draft.input((BATCH, M, N), "float32")
    value = draft.matmul(a, b, draft.virtual((BATCH, M, N)), "int32")
    draft.pointwise("add", value, bias, y=draft.result((BATCH, M, N), "float32"))
    return draft.graph()


def mixed_matmul() -> Graph:
    """int8 a, converted to bfloat16, times bfloat16 b."""
    draft = Draft()
    a, b = draft.input((BATCH, M, K), "int8"), draft.input((BATCH, K, N))
    converted = draft.pointwise("identity", a, dtype="bfloat16")
    draft.matmul(converted, b, draft.result((BATCH, M, N)))
    return draft.graph()


def weight_only_matmul(dtype: str = "int8") -> Graph:
    """float16 a times the weights of ``dtype`` that blocks of 128 rows scale."""
    draft = Draft()
    a = draft.input((1, M, 512), "float16")
    w = draft.input((1, 512, N), dtype, columns(1, 512, N))
    scale = draft.input((1, 4, N), "float16", (4 * N, 1, 4))
    weight = draft.virtual((1, 512, N), "float16", columns(1, 512, N))
    draft.add(
        "block_scale_dequantize",
        xdesc=w,
        scale_desc=scale,
        ydesc=weight,
        math_prec="float16",
        block_size=(128, 1),
    )
    draft.matmul(a, weight, draft.result((1, M, N), "float16"), "float32")
    return draft.graph()


def grouped_matmul(mode: str = "none") -> Graph:
    """Tokens times the weights of their experts; the tokens of an expert are adjacent."""
    draft = Draft()
    experts, tokens = 8, 1024
    token = draft.input((1, tokens, K))
    weight = draft.input((experts, K, N), "bfloat16", columns(experts, K, N))
    first = draft.input((experts, 1, 1), "int32")
    index = draft.input((1, tokens, 1), "int32") if mode != "none" else None
    draft.add(
        "moe_grouped_matmul",
        mode=mode,
        math_prec="float32",
        token_desc=token,
        weight_desc=weight,
        first_token_offset_desc=first,
        token_index_desc=index,
        top_k=1 if index else None,
        output_desc=draft.result((1, tokens, N)),
    )
    return draft.graph()


def reduction(operator: str, before: str = "") -> Graph:
    draft = Draft()
    shape, strides = (512, 1024, 1, 1), (1024, 1, 1024, 1024)
    x = draft.input(shape, "float16", strides)
    each = draft.pointwise(before, x) if before else x
    draft.reduce(operator, each, (512, 1, 1, 1), draft.result((512, 1, 1, 1), "float32", (1, 1, 1, 1)))
    return draft.graph()


def elementwise(*modes: str) -> Graph:
    """A chain of operations of one array; those of two take a second array."""
    draft = Draft()
    shape, strides = (512, 1024, 1, 1), (1024, 1, 1024, 1024)
    value = draft.input(shape, "float16", strides)
    for place, mode in enumerate(modes, 1):
        other = draft.input(shape, "float16", strides) if mode in ("add", "mul", "sub") else None
        y = draft.result(shape, "float16", strides) if place == len(modes) else None
        value = draft.pointwise(mode, value, other, y=y)
    return draft.graph()


MATMULS: dict[str, Callable[[], Graph]] = {
    "matmul": matmul,
    "matmul float16": lambda: matmul("float16"),
    "matmul float32": lambda: matmul("float32"),
    "matmul float32 result": lambda: matmul(result="float32"),
    "matmul one b for all": lambda: matmul(b_batch=1),
    "matmul bias": lambda: matmul(bias=True),
    "matmul bias relu": lambda: matmul("bfloat16", "relu_fwd", bias=True),
    "matmul bias gelu": lambda: matmul("bfloat16", "gelu_fwd", bias=True),
    "matmul bias gelu tanh": lambda: matmul("bfloat16", "gelu_approx_tanh_fwd", bias=True),
    "matmul bias swish": lambda: matmul("bfloat16", "swish_fwd", bias=True),
    "matmul bias residual relu": lambda: matmul("bfloat16", "relu_fwd", bias=True, residual=True),
    "matmul float8 amax": float8_matmul,
    "matmul float8 e5m2": lambda: float8_matmul("float8_e5m2", "bfloat16"),
    "matmul int8": int8_matmul,
    "matmul int8 and bfloat16": mixed_matmul,
    "matmul int8 weights of blocks": weight_only_matmul,
    "matmul int4 weights of blocks": lambda: weight_only_matmul("int4"),
    "grouped matmul": grouped_matmul,
    "grouped matmul gather": lambda: grouped_matmul("gather"),
    "reduction": lambda: reduction("add"),
    "reduction of squares": lambda: reduction("add", "abs"),
    "reduction max": lambda: reduction("max"),
    "elementwise": lambda: elementwise("add", "relu_fwd"),
    "elementwise chain": lambda: elementwise("mul", "sub", "exp", "sqrt"),
}
