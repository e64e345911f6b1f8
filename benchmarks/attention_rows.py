"""Shapes of attention in public models. Rows that are ``held_out`` were not used while developing."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One call: the model, what it does, the sizes, and whether the mask is causal.

    ``use`` is "training" (forward and backward), "prefill" or "decode".
    """

    model: str
    use: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value_head: int
    causal: bool
    dtype: str
    held_out: bool = False

    @property
    def id(self) -> str:
        """Its name in results."""
        sizes = f"b{self.batch} h{self.heads}/{self.kv_heads} {self.queries}x{self.keys} d{self.head}"
        wide = f"/{self.value_head}" if self.value_head != self.head else ""
        return f"{self.model} {self.use} {sizes}{wide} {'causal ' if self.causal else ''}{self.dtype}"

    @property
    def passes(self) -> tuple[str, ...]:
        """The calls that are timed."""
        return ("forward", "backward") if self.use == "training" else ("forward",)


# Model, heads, heads of keys, D, D of values.
MODELS = {
    "Llama 2 7B": (32, 32, 128, 128),
    "Llama 3 8B": (32, 8, 128, 128),
    "Llama 3 70B": (64, 8, 128, 128),
    "Llama 3.2 1B": (32, 8, 64, 64),
    "Mistral 7B": (32, 8, 128, 128),
    "Qwen2.5 0.5B": (14, 2, 64, 64),
    "Qwen2.5 7B": (28, 4, 128, 128),
    "Gemma 7B": (16, 16, 256, 256),
    "Gemma 2 9B": (16, 8, 256, 256),
    "Phi-3 mini": (32, 32, 96, 96),
    "GPT-2": (12, 12, 64, 64),
    "DeepSeek V2 Lite": (16, 16, 192, 128),
    "DeepSeek V3": (128, 128, 192, 128),
    "ViT-B/16": (12, 12, 64, 64),
    "ViT-L/14": (16, 16, 64, 64),
    "ViT-H/14": (16, 16, 80, 80),
    "SigLIP So400m": (16, 16, 72, 72),
    "DINOv2 g/14": (24, 24, 64, 64),
    "SD 1.5 level 1": (8, 8, 40, 40),
    "SD 1.5 level 2": (8, 8, 80, 80),
    "SD 1.5 level 3": (8, 8, 160, 160),
    "SDXL level 2": (10, 10, 64, 64),
    "SDXL level 3": (20, 20, 64, 64),
    "SD 3 medium": (24, 24, 64, 64),
    "FLUX.1": (24, 24, 128, 128),
    "DiT-XL/2": (16, 16, 72, 72),
    "PixArt": (16, 16, 72, 72),
}

# Model, use, batch, queries, keys, causal, dtype; "*" marks a row that is held out.
_TABLE = """
Llama 2 7B       | training | 4   | 2048 2048   | causal | bfloat16
Llama 2 7B       | training | 2   | 4096 4096   | causal | float16  *
Llama 3 8B       | training | 2   | 4096 4096   | causal | bfloat16
Llama 3 8B       | training | 1   | 8192 8192   | causal | bfloat16
Llama 3 8B       | prefill  | 1   | 2048 2048   | causal | bfloat16
Llama 3 8B       | prefill  | 8   | 512 512     | causal | bfloat16 *
Llama 3 70B      | training | 1   | 4096 4096   | causal | bfloat16 *
Llama 3 70B      | prefill  | 1   | 8192 8192   | causal | bfloat16
Llama 3.2 1B     | training | 4   | 2048 2048   | causal | bfloat16
Llama 3.2 1B     | prefill  | 1   | 4096 4096   | causal | float16  *
Mistral 7B       | training | 1   | 8192 8192   | causal | bfloat16 *
Mistral 7B       | prefill  | 2   | 2048 2048   | causal | float16
Qwen2.5 0.5B     | training | 8   | 2048 2048   | causal | bfloat16
Qwen2.5 0.5B     | prefill  | 4   | 1024 1024   | causal | bfloat16 *
Qwen2.5 7B       | training | 2   | 4096 4096   | causal | bfloat16
Qwen2.5 7B       | prefill  | 1   | 4096 4096   | causal | bfloat16
Gemma 7B         | training | 1   | 4096 4096   | causal | bfloat16
Gemma 2 9B       | prefill  | 1   | 4096 4096   | causal | bfloat16 *
Phi-3 mini       | training | 2   | 2048 2048   | causal | bfloat16
Phi-3 mini       | prefill  | 1   | 4096 4096   | causal | float16  *
GPT-2            | training | 16  | 1024 1024   | causal | float16
GPT-2            | training | 8   | 512 512     | causal | bfloat16 *
DeepSeek V2 Lite | training | 2   | 4096 4096   | causal | bfloat16
DeepSeek V2 Lite | prefill  | 1   | 2048 2048   | causal | bfloat16 *
DeepSeek V3      | prefill  | 1   | 4096 4096   | causal | bfloat16
DeepSeek V3      | prefill  | 1   | 1024 1024   | causal | float16  *
ViT-B/16         | training | 64  | 197 197     |        | float16
ViT-B/16         | training | 256 | 197 197     |        | bfloat16 *
ViT-L/14         | training | 32  | 257 257     |        | bfloat16
ViT-H/14         | training | 32  | 257 257     |        | bfloat16
SigLIP So400m    | training | 16  | 729 729     |        | bfloat16
SigLIP So400m    | prefill  | 8   | 729 729     |        | float16  *
DINOv2 g/14      | training | 8   | 1370 1370   |        | bfloat16
SD 1.5 level 1   | prefill  | 2   | 4096 4096   |        | float16
SD 1.5 level 1   | prefill  | 2   | 4096 77     |        | float16
SD 1.5 level 2   | prefill  | 2   | 1024 1024   |        | float16  *
SD 1.5 level 3   | prefill  | 4   | 256 256     |        | float16  *
SDXL level 2     | training | 4   | 4096 4096   |        | bfloat16
SDXL level 2     | prefill  | 2   | 4096 77     |        | float16
SDXL level 3     | training | 8   | 1024 1024   |        | bfloat16 *
SD 3 medium      | prefill  | 2   | 4250 4250   |        | float16
FLUX.1           | prefill  | 1   | 4608 4608   |        | bfloat16
FLUX.1           | training | 1   | 4608 4608   |        | bfloat16 *
DiT-XL/2         | training | 32  | 256 256     |        | bfloat16
DiT-XL/2         | training | 8   | 1024 1024   |        | float16  *
PixArt           | prefill  | 2   | 4096 4096   |        | bfloat16
Llama 2 7B       | decode   | 8   | 1 2048      |        | float16
Llama 2 7B       | decode   | 1   | 1 4096      |        | bfloat16 *
Llama 3 8B       | decode   | 16  | 1 4096      |        | bfloat16
Llama 3 8B       | decode   | 64  | 1 1024      |        | bfloat16
Llama 3 8B       | decode   | 1   | 1 8192      |        | bfloat16
Llama 3 70B      | decode   | 8   | 1 8192      |        | bfloat16 *
Llama 3 70B      | decode   | 32  | 1 2048      |        | bfloat16
Llama 3.2 1B     | decode   | 32  | 1 2048      |        | float16
Mistral 7B       | decode   | 4   | 1 8192      |        | bfloat16 *
Qwen2.5 0.5B     | decode   | 64  | 1 1024      |        | bfloat16
Qwen2.5 7B       | decode   | 16  | 1 4096      |        | bfloat16
Gemma 2 9B       | decode   | 8   | 1 4096      |        | bfloat16
Phi-3 mini       | decode   | 8   | 1 4096      |        | float16  *
DeepSeek V2 Lite | decode   | 16  | 1 4096      |        | bfloat16
"""


def rows() -> list[Row]:
    """Return all rows."""
    found = []
    for line in _TABLE.strip().splitlines():
        model, use, batch, sizes, mask, kind = (part.strip() for part in line.split("|"))
        queries, keys = map(int, sizes.split())
        heads, kv_heads, head, value_head = MODELS[model]
        dtype, held_out = kind.removesuffix("*").strip(), kind.endswith("*")
        shape = (int(batch), heads, kv_heads, queries, keys, head, value_head)
        found.append(Row(model, use, *shape, mask == "causal", dtype, held_out))
    return found
