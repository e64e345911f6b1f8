"""Values, gradients and registrations of the operators, on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import forward_ad
from torch.func import jvp, vmap

import cudnn_ct.torch as ctt
from cudnn_ct.torch.kernels import ROWS
from tests.fake.cudnn import FakeCudnn
from tests.torch_cases import CASES, DOUBLE, HALF, Case

TOLERANCE = {DOUBLE: 1e-9, torch.float32: 2e-5, HALF: 1e-2}


@pytest.fixture(params=["dispatcher", "direct"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Calls go through torch's dispatcher, or to the kernels at once, as those on CUDA tensors do."""
    if request.param == "direct":
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return str(request.param)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # of torch, for even windows
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_equal_torch(door: FakeCudnn, case: Case, route: str) -> None:
    bound = TOLERANCE[case.dtype]
    for factor in (1, -0.5, 0.75):  # later calls know what the first one did
        ours = [(one.detach() * factor).requires_grad_() for one in case.operands("cpu")]
        exact = [one.double().detach().requires_grad_() for one in ours]
        y, expected = case.ours(*ours), case.theirs(*exact)
        assert y.dtype == case.dtype
        torch.testing.assert_close(y.double(), expected, rtol=bound, atol=bound)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        gradients = torch.autograd.grad(y, ours, dy.to(case.dtype))
        exact_gradients = torch.autograd.grad(expected, exact, dy)
        for place, (one, two) in enumerate(zip(gradients, exact_gradients, strict=True)):
            assert one.dtype == ours[place].dtype
            torch.testing.assert_close(
                one.double(),
                two,
                rtol=4 * bound,
                atol=4 * bound,
                msg=lambda text, at=place: f"operand {at}: {text}",
            )


@pytest.mark.parametrize("case", [one for one in CASES if one.twice], ids=str)
def test_second_gradients_equal_differences(door: FakeCudnn, case: Case, route: str) -> None:
    assert torch.autograd.gradgradcheck(case.ours, case.operands("cpu"), fast_mode=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_registrations_are_complete(door: FakeCudnn, case: Case) -> None:
    seen: list[tuple[Any, Any, Any]] = []

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "cudnn_ct":
                seen.append((func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Calls():
        case.ours(*case.operands("cpu"))
    assert seen
    for operator, args, kwargs in seen:
        given = [
            one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
            for one in args
        ]
        torch.library.opcheck(operator, given, kwargs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meta_results_equal_torch(case: Case) -> None:
    operands = case.operands("meta")
    y, expected = case.ours(*operands), case.theirs(*operands)
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    y.sum().backward()
    for one in operands:
        assert one.grad is not None
        assert one.grad.shape == one.shape


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_without_graph_breaks(case: Case) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(case.ours, backend="aot_eager", fullgraph=True)
    operands = case.operands("meta")
    y = compiled(*operands)
    y.sum().backward()
    assert y.shape == case.ours(*operands).shape


def test_each_operator_with_a_gradient_has_a_case() -> None:
    tested = {case.operator for case in CASES}
    called_by_gradients = {"activation_backward", "affine_grid_backward", "pool_backward"}
    called_by_gradients |= {"conv_backward_bias", "conv_backward_data", "conv_backward_filter"}
    elsewhere = {"ctc_loss", "ada_layer_norm"}
    with_gradient = {name for name, row in ROWS.items() if row.gradient}
    assert with_gradient == tested | called_by_gradients | elsewhere


def test_ctc_loss_equals_torch(door: FakeCudnn) -> None:
    logits = torch.randn(6, 2, 4, dtype=torch.float32, requires_grad=True)
    labels = torch.tensor([[1, 2], [3, 1]], dtype=torch.int32)
    lengths, steps = torch.tensor([2, 2], dtype=torch.int32), torch.tensor([6, 5], dtype=torch.int32)
    ours = ctt.ctc_loss(logits, labels, lengths, steps)
    theirs = F.ctc_loss(logits.log_softmax(-1), labels, steps, lengths, reduction="none")
    torch.testing.assert_close(ours, theirs)
    weights = torch.tensor([1.0, 3.0])
    expected = torch.autograd.grad((theirs * weights).sum(), logits)
    torch.testing.assert_close(torch.autograd.grad((ours * weights).sum(), logits), expected)


def test_running_statistics_are_updated_in_place(door: FakeCudnn) -> None:
    x = torch.randn(4, 3, 5, dtype=DOUBLE)
    ours, theirs = torch.zeros(3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)
    var, their_var = torch.ones(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)
    scale = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    version = ours._version
    ctt.batch_norm(x, ours, var, scale, scale, True)
    F.batch_norm(x, theirs, their_var, scale, scale, True)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(var, their_var)
    assert ours._version > version


def test_channels_last_stays_channels_last() -> None:
    x = torch.empty(2, 8, 6, 6, device="meta", dtype=HALF).to(memory_format=torch.channels_last)
    w = torch.empty(8, 8, 3, 3, device="meta", dtype=HALF).to(memory_format=torch.channels_last)
    for y in (ctt.conv(x, w), ctt.pool(x, 2), ctt.conv_transpose(x, w)):
        assert y.is_contiguous(memory_format=torch.channels_last)
    assert ctt.conv(x.contiguous(), w.contiguous()).is_contiguous()


def test_batches_of_any_size_are_exported() -> None:
    class Network(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return ctt.softmax(ctt.pool(ctt.conv(x, w, padding=1), 2), 1)

    operands = (torch.empty(2, 4, 8, 8), torch.empty(6, 4, 3, 3))
    shapes = {"x": {0: torch.export.Dim("batch")}, "w": None}
    program = torch.export.export(Network(), operands, dynamic_shapes=shapes)
    (result,) = program.graph_signature.user_outputs
    node = next(node for node in program.graph.nodes if node.name == result)
    batch, *rest = node.meta["val"].shape
    assert isinstance(batch, torch.SymInt)
    assert rest == [6, 4, 4]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by make_dual
@pytest.mark.parametrize("direct", [True, False])
def test_tangents_are_refused(door: FakeCudnn, direct: bool) -> None:
    x, softmax = torch.randn(3, 4), torch.ops.cudnn_ct.softmax
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="softmax has no forward-mode derivative"):
            ctt.softmax(dual) if direct else softmax(dual, (-1,), "accurate")
        torch.testing.assert_close(ctt.softmax(x), F.softmax(x, -1))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by jvp
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_tangents_of_torch_func_are_refused(door: FakeCudnn, compiled: bool, direct: bool) -> None:
    x, softmax = torch.randn(3, 4), ctt.softmax if direct else torch.ops.cudnn_ct.softmax

    def tangent(function: Any) -> Any:
        torch._dynamo.reset()
        found = torch.compile(function, backend="aot_eager") if compiled else function
        return found(x)

    with pytest.raises(NotImplementedError, match="softmax has no forward-mode derivative"):
        tangent(lambda x: jvp(softmax, (x,), (x,)))
    with pytest.raises(NotImplementedError, match="softmax has no forward-mode derivative"):
        tangent(lambda x: vmap(lambda one: jvp(softmax, (one,), (one,)))(x[:, None]))
    with pytest.raises(Exception, match=r"softmax has no forward-mode|Batching rule not impl"):
        tangent(lambda x: jvp(vmap(softmax), (x[:, None],), (x[:, None],)))
    found = tangent(lambda x: jvp(lambda one: one.sin() + softmax(torch.ones(3, 4)), (x,), (x,))[1])
    torch.testing.assert_close(found, x.cos() * x)


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (1, 4, 8, 8), (2, 1, 8, 8)])
def test_vmap_of_attention_does_not_map_a_bias(door: FakeCudnn, shape: tuple[int, ...]) -> None:
    q, k, v = torch.randn(3, 3, 2, 4, 8, 16).half()
    bias = torch.randn(shape).half()
    found = torch.vmap(lambda q, k, v: ctt.attention(q, k, v, bias))(q, k, v)
    expected = [F.scaled_dot_product_attention(*one, bias) for one in zip(q, k, v, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-2, atol=1e-2)


def test_vmap_maps_numbers(door: FakeCudnn) -> None:
    x = torch.randn(2, 5)
    torch.testing.assert_close(torch.vmap(torch.vmap(ctt.activation))(x), x.relu())


def test_vmap_joins_samples_or_maps_weights(door: FakeCudnn) -> None:
    x, w = torch.randn(3, 2, 4, 5, 5, dtype=DOUBLE), torch.randn(6, 4, 3, 3, dtype=DOUBLE)
    expected = torch.stack([F.conv2d(one, w) for one in x])
    torch.testing.assert_close(torch.vmap(lambda one: ctt.conv(one, w))(x), expected)
    ws = torch.randn(3, 6, 4, 3, 3, dtype=DOUBLE)
    expected = torch.stack([F.conv2d(one, two) for one, two in zip(x, ws, strict=True)])
    torch.testing.assert_close(torch.vmap(ctt.conv)(x, ws), expected)
    rows = torch.randn(3, 4, 5, dtype=DOUBLE)
    torch.testing.assert_close(torch.vmap(ctt.softmax)(rows), F.softmax(rows, -1))
    columns = torch.vmap(lambda one: ctt.softmax(one, 0))(rows)
    torch.testing.assert_close(columns, F.softmax(rows, 1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ctt.conv(torch.empty(1, 1, 3, 3), torch.empty(1, 1, 3, 3)), ValueError,
         r"conv needs CUDA tensors: x, w on the CPU"),
        (lambda: ctt.conv(None, torch.empty(1, 1, 3, 3)), TypeError,
         r"conv: x is not a Tensor: got NoneType"),
        (lambda: ctt.layer_norm(torch.empty(2, 16), (16,)), TypeError,
         r"layer_norm_inference: scale is not a Tensor: got tuple"),
        (lambda: ctt.conv(torch.empty(1, 2, 3, 3, device="meta"), torch.empty(1, 1, 3, 3, device="meta")),
         ValueError, "2 channels"),
        (lambda: ctt.matmul(torch.empty(2, 2, device="meta"), torch.empty(2, 2, device="meta", dtype=HALF)),
         TypeError, "float16"),
        (lambda: ctt.conv(torch.empty(1, 1, 3, device="meta"), torch.empty(1, 1, 3), padding="full"),
         ValueError, "padding must be numbers"),
        (lambda: ctt.rnn(torch.empty(5, 2, 3), torch.nn.GRU(3, 4)._flat_weights),
         ValueError, "weights has 4 tensors, expected 5 for each layer of this lstm"),
        (lambda: ctt.rnn(torch.empty(5, 2, 3), [], mode="elman"), ValueError, "mode must be one of rnn_relu"),
        (lambda: ctt.batch_norm(torch.empty(2, 3), None, None, torch.empty(3), torch.empty(3)),
         ValueError, "running_mean and running_var are needed"),
        (lambda: ctt.softmax(None), TypeError, "softmax: x is not a Tensor: got NoneType"),
        (lambda: ctt.layer_norm([1.0], torch.empty(1)), TypeError, "layer_norm: x is not a Tensor: got list"),
        (lambda: ctt.rms_norm(3, torch.empty(1)), TypeError, "rms_norm: x is not a Tensor: got int"),
        (lambda: ctt.batch_norm(3, *(torch.ones(1, requires_grad=True) for _ in range(4))), TypeError,
         "batch_norm_inference: x is not a Tensor: got int"),
        (lambda: ctt.fuse(F.relu), TypeError, "model is not a torch.nn.Module: got function"),
    ],
)  # fmt: skip
def test_errors_name_the_operand(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "target"),
    [
        (lambda x: ctt.softmax(x), "softmax"),
        (lambda x: ctt.layer_norm(x, torch.ones(4)), "layer_norm_inference"),
        (lambda x: ctt.rms_norm(x, torch.ones(4)), "rms_norm_inference"),
        (lambda x: ctt.batch_norm(x, *(torch.ones(4) for _ in range(4))), "batch_norm_inference"),
        (lambda x: ctt.conv(x, torch.ones(1, 4, 3)), "conv"),
    ],
)
def test_calls_are_traced_by_fx(call: Any, target: str) -> None:
    """A traced operand is not a tensor, but has `__torch_function__`."""
    graph = torch.fx.symbolic_trace(call).graph
    assert f"cudnn_ct.{target}.default" in [str(node.target) for node in graph.nodes]


def test_a_gradient_that_cudnn_lacks_is_an_error_when_it_is_needed(door: FakeCudnn) -> None:
    x = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(ctt.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="softmax_backward has no gradient"):
        gradient.sum().backward()


def test_settings_of_torch_are_honoured(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    import cudnn_ct as ct

    given: list[dict[str, Any]] = []
    conv = ct.conv
    monkeypatch.setattr(
        ct, "conv", lambda *args, **keywords: (given.append(keywords), conv(*args, **keywords))[1]
    )
    x, w = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    ctt.conv(x, w)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    ctt.conv(x, w)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    ctt.conv(x, w)
    on_cuda = [one for one in given if "out" in one]
    names = ("precision", "deterministic")
    found = [{name: one[name] for name in names if name in one} for one in on_cuda]
    assert found == [{}, {"precision": "float32"}, {"precision": "float32", "deterministic": True}]


def test_an_undefined_order_of_sums_is_reported_when_algorithms_must_be_deterministic(
    door: FakeCudnn,
) -> None:
    x, grid = torch.randn(1, 2, 3, 3, requires_grad=True), torch.zeros(1, 2, 2, 2)
    torch.use_deterministic_algorithms(True)
    try:
        y = ctt.grid_sample(x, grid)
        with pytest.raises(RuntimeError, match="grid_sample_backward does not have a deterministic"):
            y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (0, 3, 4, 5), (2, 3, 2, 4, 5)])
def test_the_gradient_of_a_bias_is_a_sum_of_torch(door: FakeCudnn, shape: tuple[int, ...]) -> None:
    """torch.compile can join it with other calls, and no call of cuDNN adds few channels slowly."""
    x, w = torch.randn(shape), torch.randn(4, 3, *(1,) * (len(shape) - 2))
    bias, dy = torch.zeros(4, requires_grad=True), torch.randn(shape[0], 4, *shape[2:])
    y = ctt.conv_bias_activation(x, w, bias, activation="identity")
    before = len(door.calls)
    (found,) = torch.autograd.grad(y, bias, dy)
    torch.testing.assert_close(found, dy.double().sum((0, *range(2, dy.dim()))).float(), rtol=1e-4, atol=1e-5)
    assert len(door.calls) == before


def test_importing_the_package_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, cudnn_ct, cudnn_ct.gradients.table; cudnn_ct.conv; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_running_statistics_are_updated_in_compiled_programs(door: FakeCudnn, gradients: bool) -> None:
    torch._dynamo.reset()
    x, scale = torch.randn(4, 3, 5), torch.ones(3, requires_grad=gradients)

    def step(x: Any, mean: Any, var: Any) -> Any:
        return ctt.batch_norm(x, mean, var, scale, scale, True)

    ours, theirs = ((torch.zeros(3), torch.ones(3)) for _ in range(2))
    found = torch.compile(step, backend="aot_eager", fullgraph=True)(x, *ours)
    torch.testing.assert_close(found, step(x, *theirs))
    torch.testing.assert_close(ours, theirs)
    assert found.requires_grad == gradients


def test_lrn_of_an_even_size_has_the_window_of_torch_reversed(door: FakeCudnn) -> None:
    """The docs say on which side the additional channel is."""
    x = torch.rand(2, 6, 3, 3, dtype=DOUBLE)
    expected = F.local_response_norm(x.flip(1), 4, 0.5, 0.75, 2.0).flip(1)
    torch.testing.assert_close(ctt.lrn(x, 4, alpha=0.5), expected)
