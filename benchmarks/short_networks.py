"""Whole networks against PyTorch: eager, as CUDA graphs, and compiled, for `all.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from short_pairs import Pair, Row, drawn_tensor, rows_of

WIDTH, HEADS, LAYERS, LENGTH = 768, 12, 12, 1024

Call = Callable[..., Any]
Weights = dict[str, Any]


def networks(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield inference of a GPT and of ResNet-50 and a training step of the GPT, eager and captured."""
    yield from rows_of(pairs_of("eager", "captured / graph"), min(rounds, 5))


def compiled(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the captured ones against `torch.compile` with CUDA graphs, which compiles for a minute or so."""
    yield from rows_of(pairs_of("captured / compiled"), min(rounds, 5))


def pairs_of(*ways: str) -> dict[str, Callable[[], Pair]]:
    """Return functions that make the networks, by their names."""
    return {
        f"{name}, {how}": partial(make, how)
        for name, make in (
            ("ResNet-50, batch 8", partial(resnet, 8)),
            ("ResNet-50, batch 64", partial(resnet, 64)),
            ("GPT inference, batch 1", partial(gpt_inference, 1)),
            ("GPT inference, batch 8", partial(gpt_inference, 8)),
            ("GPT training, batch 8", gpt_training),
        )
        for how in ways
    }


def pair_of(
    ours: Call,
    theirs: Call,
    how: str,
    x: Any,
    near: float,
    step: Call | None = None,
    floor: Call | None = None,
) -> Pair:
    """Return two functions of x: as they are, or ours captured and theirs as a CUDA graph or compiled.

    ``step`` makes a training step of the compiled function of PyTorch, and ``floor`` computes a part of the
    network that all need.
    """
    import torch

    import cudnn_ct as ct

    step = step or (lambda function, x: function(x))
    if how == "eager":
        least = floor and as_graph(floor)
        return Pair(lambda: ours(x), lambda: step(theirs, x), near, floor=least)
    captured = ct.capture(ours, operands="pointer")
    if how == "captured / compiled":
        fast = torch.compile(theirs, mode="reduce-overhead")

        def run() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return step(fast, x)

        # Without the floor: graphs of torch.compile free memory that another graph uses.
        return Pair(lambda: captured(x), run, near)
    least = floor and as_graph(floor)
    return Pair(lambda: captured(x), as_graph(lambda: step(theirs, x)), near, floor=least)


def as_graph(call: Call) -> Call:
    """Return a function that launches what a call of PyTorch enqueues, and returns its result."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replayed() -> Any:
        graph.replay()
        return result

    return replayed


# --- GPT ---------------------------------------------------------------------------------------------------


def gpt_weights() -> Weights:
    """Return the weights of the layers in half precision, by PyTorch."""
    import torch

    found: Weights = {}
    for i in range(LAYERS):
        shapes = {"qkv": (WIDTH, 3 * WIDTH), "mix": (WIDTH, WIDTH)}
        shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
        for name, shape in shapes.items():
            found[f"{name}{i}"] = drawn_tensor(shape, "float16") * (0.5 * shape[0] ** -0.5)
            found[f"{name}{i} bias"] = drawn_tensor(shape[1:], "float16") * 0.1
        for norm in ("before", "between"):
            found[f"{norm}{i}"] = torch.ones(WIDTH, device="cuda", dtype=torch.float16)
            found[f"{norm}{i} bias"] = torch.zeros(WIDTH, device="cuda", dtype=torch.float16)
    return found


def heads_of(qkv: Any, batch: int) -> list[Any]:
    """Return q, k and v, (B, H, S, D), as views of their product."""
    split = qkv.reshape(batch, -1, 3, HEADS, WIDTH // HEADS)
    return [split[:, :, j].swapaxes(1, 2) for j in range(3)]


def our_gpt(w: Weights, batch: int, x: Any, kept: list[Any] | None = None) -> Any:
    """Return the layers of x, (tokens, width); ``kept`` receives what gradients need."""
    import cudnn_ct as ct

    training = kept is not None
    for i in range(LAYERS):
        norm = ct.layer_norm(x, w[f"before{i}"], w[f"before{i} bias"], training=training)
        qkv = ct.matmul(norm.y, w[f"qkv{i}"], bias=w[f"qkv{i} bias"])
        q, k, v = our_heads(qkv, batch)
        y, stats = ct.attention(q, k, v, causal=True, return_stats=training)
        joined = y.transpose((0, 2, 1, 3)).reshape(-1, WIDTH)
        x1 = ct.matmul(joined, w[f"mix{i}"], bias=w[f"mix{i} bias"], residual=x)
        norm1 = ct.layer_norm(x1, w[f"between{i}"], w[f"between{i} bias"], training=training)
        up = ct.matmul(
            norm1.y, w[f"up{i}"], bias=w[f"up{i} bias"], activation=None if training else "gelu_tanh"
        )
        active = ct.activation(up, mode="relu") if training else up
        if kept is not None:
            kept.append((x, norm, q, k, v, y, stats, joined, x1, norm1, up, active))
        x = ct.matmul(active, w[f"down{i}"], bias=w[f"down{i} bias"], residual=x1)
    return x


def our_heads(qkv: Any, batch: int) -> list[Any]:
    split = qkv.reshape(batch, -1, 3, HEADS, WIDTH // HEADS)
    return [split[:, :, j].transpose((0, 2, 1, 3)) for j in range(3)]


def their_gpt(w: Weights, batch: int, x: Any, *, gelu: bool = True) -> Any:
    import torch.nn.functional as F  # noqa: N812

    for i in range(LAYERS):
        n = F.layer_norm(x, (WIDTH,), w[f"before{i}"], w[f"before{i} bias"])
        q, k, v = heads_of(F.linear(n, w[f"qkv{i}"].T, w[f"qkv{i} bias"]), batch)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined = y.transpose(1, 2).reshape(-1, WIDTH)
        x = x + F.linear(joined, w[f"mix{i}"].T, w[f"mix{i} bias"])
        n = F.layer_norm(x, (WIDTH,), w[f"between{i}"], w[f"between{i} bias"])
        up = F.linear(n, w[f"up{i}"].T, w[f"up{i} bias"])
        x = x + F.linear(
            F.gelu(up, approximate="tanh") if gelu else F.relu(up), w[f"down{i}"].T, w[f"down{i} bias"]
        )
    return x


def products_alone(w: Weights, batch: int, *, training: bool) -> Call:
    """Return the products of the layers and the attention forward, without what is computed between them."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    tokens = batch * LENGTH
    weights = [w[f"{name}{i}"].detach() for i in range(LAYERS) for name in ("qkv", "mix", "up", "down")]
    inputs = {k: drawn_tensor((tokens, k), "float16") for k in {k for one in weights for k in one.shape}}
    q, k, v = drawn_tensor((3, batch, HEADS, LENGTH, WIDTH // HEADS), "float16")

    def run() -> None:
        for one in weights:
            x, dy = inputs[one.shape[0]], inputs[one.shape[1]]
            torch.mm(x, one)
            if training:
                torch.mm(dy, one.T)
                torch.mm(x.T, dy)
        for _ in range(LAYERS):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


def gpt_inference(batch: int, how: str) -> Pair:
    import cudnn_ct as ct

    theirs = gpt_weights()
    w = {name: ct.asarray(one) for name, one in theirs.items()}
    x = drawn_tensor((batch * LENGTH, WIDTH), "float16")
    floor = products_alone(theirs, batch, training=False)
    return pair_of(partial(our_gpt, w, batch), partial(their_gpt, theirs, batch), how, x, 5e-2, floor=floor)


def gpt_training(how: str, batch: int = 8) -> Pair:
    """Return steps that compute the gradients of all weights for a gradient of ones; relu for gelu."""
    import torch

    import cudnn_ct as ct

    theirs = {name: one.requires_grad_() for name, one in gpt_weights().items()}
    w = {name: ct.asarray(one.detach()) for name, one in theirs.items()}
    x = drawn_tensor((batch * LENGTH, WIDTH), "float16")
    ones = torch.ones_like(x)
    given = ct.asarray(ones)

    def ours(x: Any) -> Any:
        kept: list[Any] = []
        our_gpt(w, batch, x, kept)
        return our_gradients(w, given, kept, batch)["qkv0"]

    def step(layers: Call, x: Any) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            found = torch.autograd.grad(layers(x.clone()), list(theirs.values()), ones.clone())
        return dict(zip(theirs, found, strict=True))["qkv0"]

    floor = products_alone(theirs, batch, training=True)
    return pair_of(ours, partial(their_gpt, theirs, batch, gelu=False), how, x, 1e-1, step, floor)


def our_gradients(w: Weights, dy: Any, kept: list[Any], batch: int) -> Weights:
    """Return the gradients of the weights, from the last layer to the first."""
    import cudnn_ct as ct

    found: Weights = {}

    def dense(name: str, dy: Any, x: Any) -> Any:
        dx, found[name], found[f"{name} bias"] = ct.matmul_backward(dy, x, w[name], bias_gradient=True)
        return dx

    def norm(name: str, dy: Any, x: Any, saved: Any) -> Any:
        dx, found[name], found[f"{name} bias"] = ct.layer_norm_backward(
            dy, x, w[name], saved.mean, saved.invstd
        )
        return dx

    for i in reversed(range(LAYERS)):
        x, before, q, k, v, y, stats, joined, x1, between, up, active = kept[i]
        dactive = dense(f"down{i}", dy, active)
        dup = ct.activation_backward(dactive, up, active, mode="relu")
        dx1 = ct.op_tensor(norm(f"between{i}", dense(f"up{i}", dup, between.y), x1, between), dy, op="add")
        djoined = dense(f"mix{i}", dx1, joined)
        dheads = djoined.reshape(batch, -1, HEADS, WIDTH // HEADS).transpose((0, 2, 1, 3))
        dqkv = ct.empty((batch, LENGTH, 3, HEADS, WIDTH // HEADS), "float16")
        into = tuple(dqkv[:, :, j].transpose((0, 2, 1, 3)) for j in range(3))
        ct.attention_backward(dheads, q, k, v, y, stats, causal=True, out=into)
        dn = dense(f"qkv{i}", dqkv.reshape(-1, 3 * WIDTH), before.y)
        dy = ct.op_tensor(dx1, norm(f"before{i}", dn, x, before), op="add")
    return found


# --- ResNet ------------------------------------------------------------------------------------------------


def resnet(batch: int, how: str) -> Pair:
    """Return inference of torchvision's ResNet-50 in half precision; ours has batch norms in its weights."""
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().eval().cuda().half().to(memory_format=torch.channels_last)
    x = drawn_tensor((batch, 3, 224, 224), "float16", channels_last=True)
    floor = convolutions_alone(model, x)
    return pair_of(OurResNet(model), model, how, x, near=5e-2, floor=floor)


def convolutions_alone(model: Any, x: Any) -> Call:
    """Return a function that computes the convolutions of a model by PyTorch, and nothing else."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    calls, handles = [], []

    def kept(module: Any, operands: tuple[Any, ...]) -> None:
        given = (module.weight.detach(), None, module.stride, module.padding)
        calls.append(partial(F.conv2d, operands[0], *given))

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            handles.append(module.register_forward_pre_hook(kept))
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return lambda: [call() for call in calls]


class OurResNet:
    """The network with folded batch norms, autotuned."""

    def __init__(self, model: Any) -> None:
        from torch.nn.utils.fusion import fuse_conv_bn_eval

        def folded(conv: Any, norm: Any) -> tuple[Any, Any, dict[str, int]]:
            import torch

            import cudnn_ct as ct

            one = fuse_conv_bn_eval(conv.float(), norm.float())
            w = one.weight.detach().half().to(memory_format=torch.channels_last)
            given = {"padding": conv.padding[0], "stride": conv.stride[0]}
            return ct.asarray(w), ct.asarray(one.bias.detach().half()), given

        import copy

        import cudnn_ct as ct

        model = copy.deepcopy(model)
        self.stem = folded(model.conv1, model.bn1)
        self.blocks = [
            (
                folded(b.conv1, b.bn1), folded(b.conv2, b.bn2), folded(b.conv3, b.bn3),
                folded(*b.downsample) if b.downsample is not None else None,
            )
            for layer in (model.layer1, model.layer2, model.layer3, model.layer4)
            for b in layer
        ]  # fmt: skip
        self.head = ct.asarray(model.fc.weight.detach().half()).T, ct.asarray(model.fc.bias.detach().half())

    def __call__(self, x: Any) -> Any:
        import cudnn_ct as ct

        def conv(x: Any, part: Any, **more: Any) -> Any:
            w, bias, given = part
            return ct.conv_bias_activation(x, w, bias, **given, **more, algo="autotune")

        x = ct.pool(conv(x, self.stem), window=3, stride=2, padding=1)
        for first, second, third, shortcut in self.blocks:
            left = x if shortcut is None else conv(x, shortcut, activation="identity")
            x = conv(conv(conv(x, first), second), third, residual=left)
        mean = ct.reduce(x, op="average", axis=(2, 3)).reshape(x.shape[0], -1)
        return ct.matmul(mean, self.head[0], bias=self.head[1])


# --- recurrent networks ------------------------------------------------------------------------------------


def recurrent(*, seed: int, **_: Any) -> Iterator[Row]:
    """Yield training steps of 14 drawn recurrent networks."""
    import rnn_workload
    from rnn_rows import row_record, warm_up

    warm_up()
    source = random.Random(seed)
    kinds = list(rnn_workload.KINDS.values())
    for _ in range(14):
        sizes = source.choice((192, 320, 512, 768, 1280)), source.choice((1, 2, 3)), source.choice((1, 1, 2))
        batch, steps = source.choice((4, 16, 48, 96)), source.choice((20, 60, 120))
        mode, kind = source.choice(rnn_workload.MODES), source.choice(kinds)
        row = rnn_workload.Row(mode, *sizes, batch, steps, kind, "training", packed=source.random() < 0.2)
        record = row_record(row, ("torch", "guess"))
        times = record["times"]
        if set(times) == {"torch", "guess"}:
            figures = {"ours_us": times["guess"], "theirs_us": times["torch"]}
            yield {"row": row.id, "ratio": times["guess"] / times["torch"], **figures}
        else:
            yield {"row": row.id, "error": str(record.get("skipped") or record["errors"])[:200]}
