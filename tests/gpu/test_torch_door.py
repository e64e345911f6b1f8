"""cudnn_ct.torch on a GPU: values and gradients against torch in float64, and unchanged models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import cudnn_ct as ct

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import cudnn_ct.torch as ctt  # noqa: E402
from cudnn_ct.torch import faster  # noqa: E402
from tests.torch_cases import CASES, HALF, Case, Programs  # noqa: E402
from tests.torch_cases import flat as _flat  # noqa: E402

DOUBLE, SINGLE = torch.float64, torch.float32
BOUND = {DOUBLE: 1e-8, SINGLE: 1e-4, HALF: 2e-2}  # of the largest exact value


@pytest.fixture(autouse=True)
def _torch_is_strict() -> Iterator[None]:
    """Compute float32 in IEEE arithmetic, and let warnings of torch's compiler pass."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.synchronize()


def assert_near(found: Any, exact: Any, bound: float, what: str) -> None:
    """Compare with an exact tensor in host memory; a failure has all that explains it."""
    given = found.detach().double().cpu()
    assert given.shape == exact.shape, f"{what}: shape {tuple(given.shape)}, expected {tuple(exact.shape)}"
    error = (given - exact.detach()).abs()
    limit = bound * max(float(exact.detach().abs().max()), 1.0)
    worst = float(error.max()) if error.numel() else 0.0
    if not worst <= limit:
        place = tuple(int(n) for n in torch.unravel_index(error.nan_to_num(torch.inf).argmax(), error.shape))
        raise AssertionError(
            f"{what}: error {worst:.3g} > {limit:.3g} at {place}: {float(given[place])}, exact "
            f"{float(exact[place])}; {int((error > limit).sum())} of {error.numel()} elements; dtype "
            f"{found.dtype}, strides {found.stride()}, cuDNN {ct.version()}, plan {ct.last_plan()}"
        )


# --- operators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_equal_torch_in_float64(case: Case) -> None:
    ours = case.operands("cuda")
    exact = [one.detach().double().requires_grad_() for one in case.operands("cpu")]
    y, expected = case.ours(*ours), case.theirs(*exact)
    assert y.device == ours[0].device
    assert y.dtype == case.dtype
    assert_near(y, expected, BOUND[case.dtype], "result")
    dy = torch.randn(expected.shape, dtype=DOUBLE)
    found = torch.autograd.grad(y, ours, dy.to("cuda", case.dtype))
    rounded = dy.to(case.dtype).double()
    for place, (one, two) in enumerate(
        zip(found, torch.autograd.grad(expected, exact, rounded), strict=True)
    ):
        assert_near(one, two, 4 * BOUND[case.dtype], f"gradient of operand {place}")
    with torch.no_grad():
        assert_near(case.ours(*ours), expected, BOUND[case.dtype], "result without gradients")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_repeated_calls_compute_other_values_in_the_same_and_other_memory(case: Case) -> None:
    """Later calls run what the first one did, on new memory or as a graph on memory that repeats."""
    for device in range(torch.cuda.device_count())[-2:]:  # the current device is the first one
        streams = [nullcontext(), torch.cuda.stream(torch.cuda.Stream(device))]
        kept: list[Any] = []  # so that the allocator gives other memory
        first = [one.detach() for one in case.operands("cpu")]
        given = [one.to(f"cuda:{device}").requires_grad_() for one in first]
        for turn in range(24):
            with streams[turn // 12]:
                factor = 2.0 ** -(turn % 4)  # ties of maxima stay as they are
                exact = [(factor * one).double().requires_grad_() for one in first]
                with torch.no_grad():
                    for one, value in zip(given, exact, strict=True):
                        one.copy_(value)
                ours = [one.detach().clone().requires_grad_() for one in given] if turn % 3 == 2 else given
                kept += ours if turn % 3 == 2 else []
                y, expected = case.ours(*ours), case.theirs(*exact)
                dy = torch.ones_like(expected)
                found = torch.autograd.grad(y, ours, dy.to(y))
                wanted = torch.autograd.grad(expected, exact, dy)
                torch.cuda.synchronize(device)
            assert_near(y, expected, BOUND[case.dtype], f"result {turn}")
            for place, (one, two) in enumerate(zip(found, wanted, strict=True)):
                assert_near(one, two, 4 * BOUND[case.dtype], f"gradient {turn} of operand {place}")


@pytest.mark.parametrize("case", [one for one in CASES if one.dtype == DOUBLE], ids=str)
def test_gradcheck(case: Case) -> None:
    if case.operator == "pool" and not case.variant:
        pytest.skip("a maximum is not differentiable where two elements are close")
    assert torch.autograd.gradcheck(case.ours, case.operands("cuda"), fast_mode=True, nondet_tol=1e-10)


@pytest.mark.parametrize("case", [one for one in CASES if one.twice], ids=str)
def test_gradgradcheck(case: Case) -> None:
    assert torch.autograd.gradgradcheck(case.ours, case.operands("cuda"), fast_mode=True, nondet_tol=1e-10)


def test_ctc_loss_equals_torch() -> None:
    logits = torch.randn(12, 3, 5, requires_grad=True)
    labels = torch.randint(1, 5, (3, 4), dtype=torch.int32)
    lengths, steps = torch.full((3,), 4, dtype=torch.int32), torch.tensor([12, 11, 10], dtype=torch.int32)
    exact = F.ctc_loss(logits.double().log_softmax(-1), labels, steps, lengths, reduction="none")
    (expected,) = torch.autograd.grad(exact.sum(), logits)
    x = logits.detach().cuda().requires_grad_()
    loss = ctt.ctc_loss(x, labels, lengths, steps)
    (found,) = torch.autograd.grad(loss.sum(), x)
    assert_near(loss, exact, 1e-4, "loss")
    assert_near(found, expected.double(), 1e-4, "gradient")


def test_fused_gelu_in_half_precision_has_a_gradient() -> None:
    x = torch.randn(2, 16, 8, 8, dtype=HALF, device="cuda").to(memory_format=torch.channels_last)
    w = (torch.randn(16, 16, 3, 3, dtype=HALF, device="cuda") / 8).to(memory_format=torch.channels_last)
    b = torch.randn(16, dtype=HALF, device="cuda")
    ours = [one.clone().requires_grad_() for one in (x, w, b)]
    exact = [one.double().cpu().requires_grad_() for one in (x, w, b)]
    y = ctt.conv_bias_activation(*ours, activation="gelu", padding=1)
    expected = F.gelu(F.conv2d(*exact, padding=1))
    assert_near(y, expected, 1e-2, "result")
    for one, two in zip(
        torch.autograd.grad(y.sum(), ours), torch.autograd.grad(expected.sum(), exact), strict=True
    ):
        assert_near(one, two, 2e-2, "gradient")


@pytest.mark.parametrize("call", [ctt.conv, F.conv2d], ids=["ours", "torch"])
def test_channels_last_stays_channels_last_in_both_directions(call: Callable[..., Any]) -> None:
    x = torch.randn(2, 16, 9, 9, dtype=HALF, device="cuda").to(memory_format=torch.channels_last)
    w = torch.randn(32, 16, 3, 3, dtype=HALF, device="cuda").to(memory_format=torch.channels_last)
    x.requires_grad_()
    w.requires_grad_()
    y = call(x, w, padding=1)
    dx, dw = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    for name, one in (("y", y), ("dx", dx), ("dw", dw)):
        assert one.is_contiguous(memory_format=torch.channels_last), f"{name} has strides {one.stride()}"


def test_an_expanded_gradient_is_accepted() -> None:
    x = torch.randn(2, 4, 8, 8, device="cuda", requires_grad=True)
    w = torch.randn(4, 4, 3, 3, device="cuda", requires_grad=True)
    ctt.conv(x, w).sum().backward()  # its gradient has strides of 0
    assert w.grad is not None
    expected = torch.autograd.grad(F.conv2d(x.double(), w.double()).sum(), w)[0]
    assert_near(w.grad, expected.double().cpu(), 1e-4, "gradient")


def test_autocast_casts_as_torch_does() -> None:
    x = torch.randn(2, 8, 8, 8, device="cuda", requires_grad=True)
    w = torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
    q = torch.randn(2, 4, 16, 32, device="cuda", requires_grad=True)
    scale = torch.ones(8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = {
            "conv": (ctt.conv(x, w), F.conv2d(x, w)),
            "matmul": (ctt.matmul(q, q.mT), q @ q.mT),
            "attention": (ctt.attention(q, q, q), F.scaled_dot_product_attention(q, q, q)),
            "softmax": (ctt.softmax(x.bfloat16()), x.bfloat16().softmax(-1)),
            "layer_norm": (ctt.layer_norm(x.bfloat16(), scale), F.layer_norm(x.bfloat16(), (8,), scale)),
        }
        dtypes = {name: (ours.dtype, theirs.dtype) for name, (ours, theirs) in found.items()}
    assert all(ours == theirs for ours, theirs in dtypes.values()), dtypes
    (gradient,) = torch.autograd.grad(found["conv"][0].float().sum(), w)
    assert gradient.dtype == SINGLE


def test_calls_run_on_the_current_stream_of_torch() -> None:
    x, w = torch.randn(4, 32, 64, 64, device="cuda"), torch.randn(32, 32, 3, 3, device="cuda")
    expected = F.conv2d(x.double(), w.double(), padding=1).cpu()
    ctt.conv(x, w, padding=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            late = torch.zeros_like(x)
            torch.cuda._sleep(20_000_000)
            late.copy_(x)
            y = ctt.conv(late, w, padding=1)
    stream.synchronize()
    assert_near(y, expected, 1e-4, "result on a stream")


def test_operands_on_two_devices_are_rejected() -> None:
    x, w = torch.randn(1, 2, 4, 4, device="cuda"), torch.randn(2, 2, 3, 3)
    with pytest.raises(ValueError, match="w is on cpu, but x is on cuda:0"):
        ctt.conv(x, w)


def test_deterministic_settings_give_the_same_bits() -> None:
    x = torch.randn(8, 32, 28, 28, device="cuda")
    w = torch.randn(32, 32, 3, 3, device="cuda", requires_grad=True)
    torch.backends.cudnn.deterministic = True
    try:
        found = [torch.autograd.grad(ctt.conv(x, w).square().sum(), w)[0] for _ in range(5)]
    finally:
        torch.backends.cudnn.deterministic = False
    assert all(torch.equal(one, found[0]) for one in found), [
        float((one - found[0]).abs().max()) for one in found
    ]


def test_the_precision_of_float32_is_that_of_torch() -> None:
    x, w = torch.randn(4, 64, 32, 32, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = F.conv2d(x.double(), w.double())
    errors = {}
    for allowed in (False, True):
        torch.backends.cudnn.allow_tf32 = allowed
        errors[allowed] = float((ctt.conv(x, w) - exact).abs().max() / exact.abs().max())
    assert errors[False] < 2e-6 < errors[True] < 2e-3, errors


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opcheck(case: Case) -> None:
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "cudnn_ct":
                seen.append((func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Calls():
        case.ours(*case.operands("cuda"))
    assert seen
    for operator, args, kwargs in seen:
        given = [
            one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
            for one in args
        ]
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operator, given, kwargs, test_utils=tests)


# --- recurrent networks ------------------------------------------------------------------------------------

NETWORKS = [
    ("LSTM", {"num_layers": 2, "bidirectional": True}, SINGLE),
    ("LSTM", {"proj_size": 8, "batch_first": True}, SINGLE),
    ("GRU", {"num_layers": 2, "bias": False}, SINGLE),
    ("LSTM", {}, HALF),
    ("RNN", {"nonlinearity": "relu"}, DOUBLE),
]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("kind", "keywords", "dtype"), NETWORKS, ids=str)
def test_recurrent_networks_equal_torch(kind: str, keywords: Any, dtype: Any, packed: bool) -> None:
    exact = getattr(nn, kind)(16, 32, **keywords).to(dtype).double()
    ours = getattr(ctt.nn, kind)(16, 32, **keywords)
    ours.load_state_dict(exact.state_dict())
    ours = ours.to("cuda", dtype)
    sequences = [torch.randn(steps, 16).to(dtype) for steps in ((3, 7, 5) if packed else (7, 7, 7))]
    pack = nn.utils.rnn.pack_sequence if packed else torch.stack
    given = {"enforce_sorted": False} if packed else {}
    expected = _flat(exact(pack([one.double() for one in sequences], **given)))
    found = _flat(ours(pack([one.cuda() for one in sequences], **given)))
    assert_near(found, expected, BOUND[dtype], "result")
    dy = torch.randn(expected.shape).to(dtype)
    gradients = torch.autograd.grad(found, list(ours.parameters()), dy.cuda())
    exact_gradients = torch.autograd.grad(expected, list(exact.parameters()), dy.double())
    for (name, _), one, two in zip(exact.named_parameters(), gradients, exact_gradients, strict=True):
        assert_near(one, two, 4 * BOUND[dtype], f"gradient of {name}")


def test_the_weights_of_a_module_of_torch_are_not_copied() -> None:
    from cudnn_ct.torch.recurrent import _joined

    module = nn.LSTM(16, 32, 2, bidirectional=True, device="cuda")  # torch places them as cuDNN reads them
    parts = sorted(module.parameters(), key=lambda one: one.dim() == 1)
    with torch.no_grad():
        w = _joined(parts)
    assert w.data_ptr() == module.weight_ih_l0.data_ptr()
    assert torch.equal(w, torch.cat([one.detach().flatten() for one in parts]))


def test_a_network_trains_under_reduce_overhead() -> None:
    module, x = ctt.nn.GRU(16, 32, device="cuda"), torch.randn(7, 3, 16, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: module(x)[0].square().sum(), mode="reduce-overhead")
    exact = torch.autograd.grad(module(x)[0].square().sum(), list(module.parameters()))
    for _ in range(4):
        found = torch.autograd.grad(compiled(x), list(module.parameters()))
        for one, two in zip(found, exact, strict=True):
            assert_near(one, two.double().cpu(), 1e-4, "gradient")


# --- compiled and captured programs ------------------------------------------------------------------------


def _three_convolutions(x: Any, w: Any, b: Any) -> Any:
    for _ in range(3):
        x = ctt.conv_bias_activation(x, w, b, padding=1)
    return x


def test_reduce_overhead_captures_the_operators() -> None:
    x = torch.randn(2, 32, 16, 16, dtype=HALF, device="cuda").to(memory_format=torch.channels_last)
    w = (torch.randn(32, 32, 3, 3, dtype=HALF, device="cuda") / 16).to(memory_format=torch.channels_last)
    b = torch.randn(32, dtype=HALF, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(_three_convolutions, mode="reduce-overhead", fullgraph=True)
    with torch.inference_mode():
        expected = _three_convolutions(x, w, b).double().cpu()
        for _ in range(4):
            found = compiled(x, w, b).clone()
            assert_near(found, expected, 2e-3, "compiled")
        found = compiled(x * 2, w, b).clone()
        assert_near(found, _three_convolutions(x * 2, w, b).double().cpu(), 2e-3, "other values")


def test_a_compiled_program_leaves_norms_and_pooling_to_torch() -> None:
    programs, kinds = Programs(), (nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model, x = nn.Sequential(*kinds).cuda(), torch.randn(2, 4, 9, 9, device="cuda")
    with ctt.enable():
        torch.compile(model, backend=programs, fullgraph=True)(x).sum().backward()
    names = {name for one in programs.operators for name in one if name.startswith("cudnn_ct.")}
    assert all("conv" in name for name in names)
    assert names


def test_a_compiled_training_step_has_the_gradients_of_torch() -> None:
    x, w = torch.randn(2, 8, 8, 8, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
    s = torch.ones(8, device="cuda", requires_grad=True)

    def step(x: Any, w: Any, s: Any) -> Any:
        y = ctt.batch_norm(ctt.conv(x, w, padding="same"), None, None, s, s, True)
        return (ctt.softmax(ctt.pool(y, 2), 1) ** 2).sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True)
    for one, two in zip(
        torch.autograd.grad(compiled(x, w, s), (w, s)),
        torch.autograd.grad(step(x, w, s), (w, s)),
        strict=True,
    ):
        assert_near(one, two.double().cpu(), 1e-4, "compiled gradient")


def test_calls_are_captured_into_a_cuda_graph_of_torch() -> None:
    x, w = torch.randn(2, 8, 8, 8, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            ctt.conv(x, w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ctt.conv(x, w)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert_near(y, F.conv2d(x.double(), w.double()).cpu(), 1e-4, "replayed")


def test_workspaces_are_memory_of_torch_during_a_call() -> None:
    needed = 0
    for dtype in (DOUBLE, SINGLE, HALF):
        x = torch.randn(8, 64, 56, 56, dtype=dtype, device="cuda")
        w = torch.randn(64, 64, 3, 3, dtype=dtype, device="cuda")
        for _ in range(3):
            y = ctt.conv(x, w, padding=1)
        del y
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = ctt.conv(x, w, padding=1)
        plan = ct.last_plan()
        needed = max(needed, plan.workspace)
        peak, after = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
        assert peak >= y.nbytes + plan.workspace, f"{dtype}: peak {peak}, {y.nbytes} bytes of y, {plan}"
        assert after < y.nbytes + 2**20, f"{dtype}: {after} bytes after the call, {y.nbytes} of y"
    if not needed:
        pytest.skip("no plan needed a workspace")


def test_repeated_calls_do_not_read_the_memory_of_others() -> None:
    """Torch gives the workspace of a call to other work, also when the call is replayed."""
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    expected = F.conv2d(x.double(), w.double(), padding=1).cpu()
    kept = []
    for run in range(40):
        y = ctt.conv(x, w, padding=1)
        kept.append(torch.full((1 << 18,), run, dtype=SINGLE, device="cuda"))
        if run % 3 == 0:
            assert_near(y, expected, 1e-4, f"run {run}")
        if run % 7 == 0:
            kept = kept[-2:]
        del y
    assert all(bool((one == one[0]).all()) for one in kept)


# --- unchanged models --------------------------------------------------------------------------------------

MODELS = {
    "resnet18": {},
    "vit_b_16": {"image_size": 64},
    "convnext_tiny": {},
}


def _model(name: str) -> Any:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = getattr(models, name)(**MODELS[name])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean, std=0.1)
        if isinstance(module, nn.Linear) and not module.weight.any():  # the head of a new vision transformer
            nn.init.normal_(module.weight, std=0.1)
    return model.cuda()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [SINGLE, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rebind", [False, True])
def test_an_unchanged_model_has_the_results_of_torch(name: str, dtype: Any, rebind: bool) -> None:
    model, x = _model(name).eval(), torch.randn(2, 3, 64, 64, device="cuda")
    with torch.inference_mode():
        exact = model.double()(x.double()).cpu()
        model = model.to(dtype).to(memory_format=torch.channels_last)
        x = x.to(dtype).to(memory_format=torch.channels_last)
        theirs = model(x)
        with ctt.enable(rebind=rebind) as block:
            ours = model(x)
    scale = float(exact.abs().max())
    noise = float((theirs.double().cpu() - exact).abs().max()) / scale
    error = float((ours.double().cpu() - exact).abs().max()) / scale
    assert error <= 2 * noise + 1e-6, f"error {error:.3g}, torch {noise:.3g}\n{block.report()}"
    groups = {"resnet18": "conv", "vit_b_16": "layer_norm", "convnext_tiny": "layer_norm"}
    assert block.report().served[groups[name]], str(block.report())


def test_a_served_training_step_has_the_gradients_and_memory_of_torch() -> None:
    model = _model("resnet18").train()
    x, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (8,), device="cuda")

    def step() -> tuple[Any, int]:
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        F.cross_entropy(model(x), labels).backward()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        return [one.grad.double().cpu() for one in model.parameters()], peak

    model.double()
    x = x.double()
    exact, _ = step()
    model.float()
    x = x.float()
    step()
    theirs, peak = step()
    with ctt.enable() as block:
        step()
        ours, our_peak = step()
    for place, (one, two, three) in enumerate(zip(ours, theirs, exact, strict=True)):
        scale = float(three.abs().max()) + 1e-12
        error, noise = (float((grad - three).abs().max()) / scale for grad in (one, two))
        assert error <= 10 * noise + 1e-3, (
            f"parameter {place}: {error:.3g}, torch {noise:.3g}\n{block.report()}"
        )
    assert our_peak <= 1.1 * peak, f"{our_peak} bytes, torch {peak}\n{block.report()}"


@pytest.mark.parametrize("rebind", [False, True])
def test_layers_that_a_backward_pass_computes_again_are_left_to_torch(rebind: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Softmax(1)).cuda()
    x = torch.randn(2, 3, 9, 9, device="cuda", requires_grad=True)
    with ctt.enable(rebind=rebind) as block:
        y = checkpoint(module, x, use_reentrant=False)
        y.square().sum().backward()
    reason = "torch.utils.checkpoint computes it again"
    assert {why for _, why in block.report().left} == {reason}, str(block.report())
    assert not block.report().served


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)], ids=str)
def test_results_of_pooling_may_be_changed_in_place(kind: Any, channels_last: bool) -> None:
    """The gradient of an average takes memory of any values as its operand: here torch fills it with NaN."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = nn.Sequential(nn.Conv2d(8, 8, 3), kind, nn.ReLU(inplace=True)).cuda().to(memory_format=order)
    x = torch.randn(4, 8, 18, 18, device="cuda").to(memory_format=order)
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), weights)
    with ctt.enable() as block:
        found = torch.autograd.grad(model(x).square().sum(), weights)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            filled = torch.autograd.grad(model(x).square().sum(), weights)
        finally:
            torch.use_deterministic_algorithms(False)
    assert block.report().served["pool"] == 2, str(block.report())
    for place, exact in enumerate(expected):
        for one in (found[place], filled[place]):
            assert_near(one, exact.double().cpu(), 4 * BOUND[SINGLE], f"gradient of parameter {place}")


def test_settled_calls_are_repeated_for_the_same_arguments_only() -> None:
    q, k, v = (torch.randn(2, 4, 64, 32, device="cuda", dtype=HALF) for _ in range(3))
    calls: list[Any] = [
        lambda: F.scaled_dot_product_attention(q, q, q),
        lambda: F.scaled_dot_product_attention(q, k, v),
        lambda: F.scaled_dot_product_attention(q, k, v, scale=torch.tensor(0.5)),
        lambda: F.scaled_dot_product_attention(q, k, v, scale=torch.tensor(0.01)),
    ]
    with torch.no_grad():
        expected = [call().double().cpu() for call in calls]
        with ctt.enable() as block:
            for _ in range(3):
                for place, call in enumerate(calls):
                    assert_near(call(), expected[place], BOUND[HALF], f"call {place}")
    assert block.report().served == {"attention": 6}, str(block.report())


@pytest.mark.parametrize("rebind", [False, True])
def test_calls_that_are_timed_keep_their_results(monkeypatch: pytest.MonkeyPatch, rebind: bool) -> None:
    """Torch computes some of them then, whichever is faster."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    scale, bias = torch.randn(2, 256, device="cuda", dtype=torch.float16)
    count, sizes = 6 * faster.TIMED, (8, 64, 4096)
    with torch.inference_mode(), ctt.enable(rebind=rebind) as block:
        for size in sizes:
            for turn in range(count):
                x = torch.randn(size, 256, device="cuda", dtype=torch.float16)
                y, z = F.layer_norm(x, (256,), scale, bias), F.softmax(x, 1)
                if turn % 7 == 0:
                    wide = x.double()
                    var, mean = torch.var_mean(wide, 1, correction=0, keepdim=True)
                    expected = (wide - mean) / (var + 1e-5).sqrt() * scale.double() + bias.double()
                    torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=2e-2)
                    powers = wide.exp()
                    expected = powers / powers.sum(1, keepdim=True)
                    torch.testing.assert_close(z.double(), expected, rtol=2e-2, atol=2e-3)
    report = block.report()
    print(report)
    for group in ("layer_norm", "softmax"):
        seen = report.served[group] + report.left[group, faster.SLOWER]
        assert seen >= count * len(sizes)


def test_tensors_without_memory_have_the_error_of_torch() -> None:
    x = torch.randn(2, 3, device="cuda")
    with torch.no_grad(), ctt.enable():
        for _ in range(3):
            F.softmax(x, 1)
        x.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="not allocated"):
            F.softmax(x, 1)


def test_exported_models_take_images_of_any_size() -> None:
    model = _model("resnet18").eval()
    sizes = {0: torch.export.Dim("batch", max=64)}
    sizes |= {axis: torch.export.Dim(f"axis{axis}", min=64, max=512) for axis in (2, 3)}
    with torch.no_grad():
        with ctt.enable():
            operands = (torch.randn(2, 3, 64, 96, device="cuda"),)
            program = torch.export.export(model, operands, dynamic_shapes=(sizes,))
        assert any("cudnn_ct" in str(node.target) for node in program.graph.nodes)
        for shape in [(2, 3, 64, 96), (3, 3, 130, 75)]:
            x = torch.randn(shape, device="cuda")
            assert_near(program.module()(x), model(x).double().cpu(), 1e-3, f"result of {shape}")


@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=["float32", "float16"])
def test_recurrent_networks_of_a_model_are_served(dtype: Any) -> None:
    module = nn.LSTM(16, 32, 2, batch_first=True, device="cuda", dtype=dtype)
    x = torch.randn(3, 7, 16, device="cuda", dtype=dtype)

    def step() -> list[Any]:
        y, (h, _) = module(x)
        gradients = torch.autograd.grad(y.float().sum() + h.float().sum(), list(module.parameters()))
        return [y, h, *gradients]

    theirs = step()
    with ctt.enable() as block:
        ours = step()
    assert block.report().served == {"lstm": 1}, str(block.report())
    for place, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        assert_near(one, two.double().cpu(), 4 * BOUND[dtype], f"result or gradient {place}")


def test_a_fused_model_has_the_results_of_torch() -> None:
    model, x = _model("resnet18").eval(), torch.randn(2, 3, 64, 64, device="cuda")
    with torch.inference_mode():
        exact = model.double()(x.double()).cpu()
        model, x = (one.to(HALF).to(memory_format=torch.channels_last) for one in (model, x))
        theirs = model(x)
        fused = ctt.fuse(model)
        ours = fused(x)
        found = [float((one.double().cpu() - exact).abs().max()) for one in (ours, theirs)]
    assert found[0] <= 3 * found[1] + 1e-3 * float(exact.abs().max()), found
    assert not any(isinstance(one, nn.BatchNorm2d) for one in fused.modules())


def test_modules_train_as_those_of_torch() -> None:
    def network(kind: Any, norm: Any) -> Any:
        torch.manual_seed(0)
        return nn.Sequential(
            kind(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
        ).cuda()

    def plain(features: int) -> Any:
        return ctt.nn.BatchNormActivation(features, activation=None)

    x, labels = torch.randn(16, 3, 8, 8, device="cuda"), torch.randint(0, 4, (16,), device="cuda")
    losses = []
    for model in (network(ctt.nn.Conv2d, plain), network(nn.Conv2d, nn.BatchNorm2d)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        made = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            made.append(loss.item())
        losses.append(made)
    assert losses[0] == pytest.approx(losses[1], rel=1e-2), losses
    assert losses[0][-1] < losses[0][0]
