"""Measurement of the rows of the host benchmark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import host_workload
import rnn_networks
import rnn_workload
from harness.comparison import EPSILON, distance, tensor_of
from harness.operands import Array, rotating
from harness.results import Record, explain
from harness.timing import HostCall, host_times, lost_context
from host_report import STYLES
from host_workload import SIDES, Call
from layers_rows import PAIRS, calls_of
from layers_workload import Row

import cudnn_ct as ct

CALLS = 50  # calls in a loop; none of them launches more than ten kernels
SETS = 64  # sets of operands that rotate
LAUNCHES = 400  # in a loop of calls that launch many kernels; the launch queue holds about 1000
WARM = 24  # loops before the measurement: replays begin after a few calls with the same pointers
SETTLE = 3  # untimed calls after a change of `ct.config.replay`
TOLERANCE = 2  # factor of the tolerance of a dtype

Sets = Callable[[], Sequence[Sequence[Any]]]


def conv_record(row: Row, rounds: int) -> Record:
    """Measure a convolution on the same operands in each call."""
    return _conv_record("conv", row, rounds, 1)


def rotating_record(row: Row, rounds: int) -> Record:
    """Measure a convolution on `SETS` sets of operands, which alternate."""
    return _conv_record("conv-rotating", row, rounds, SETS)


def _conv_record(section: str, row: Row, rounds: int, count: int) -> Record:
    import torch

    sides, record = SIDES[row.operation](row), room(section, row)
    operands = rotating(sides.arrays, count)
    calls = {"torch": HostCall(sides.theirs(torch), repeated(operands.theirs))}
    for style, call in _styles(sides).items():
        arrays = operands.ours if style == "ours" else operands.theirs
        calls[style] = HostCall(call, repeated(arrays))
    return measured(record, calls, rounds, row.kind.dtype)


def fresh_record(row: Row, rounds: int) -> Record:
    """Measure a convolution on other pointers in each call, with and without replays."""
    sides, record = SIDES[row.operation](row), room("conv-fresh", row)
    if not hasattr(ct.config, "replay"):
        record["missing"] = dict.fromkeys(STYLES, "ct.config.replay does not exist")
        return record
    rounds = max(5, rounds // 3)
    operands = rotating(sides.arrays, 2 * len(STYLES) * (1 + rounds) * (CALLS + SETTLE))
    turn, calls = iter(range(operands.count)), {}
    for style, call in _styles(sides).items():
        arrays = operands.ours if style == "ours" else operands.theirs
        for replay in (True, False):
            sets = fresh(call, arrays, turn, replay)
            calls[style if replay else f"{style}_off"] = HostCall(call, sets)
    before = ct.config.replay
    try:
        return measured(record, calls, rounds, row.kind.dtype, warm=1)
    finally:
        ct.config.replay = before


def fresh(call: Call, arrays: dict[str, list[Any]], turn: Iterable[int], replay: bool) -> Sets:
    """Return a function that changes the setting and returns operands that no call has had."""

    def sets() -> Sequence[Sequence[Any]]:
        ct.config.replay = replay
        made = [[several[i] for several in arrays.values()] for i in itertools.islice(turn, CALLS + SETTLE)]
        for one in made[:SETTLE]:
            call(*one)
        return made[SETTLE:]

    return sets


def _styles(sides: host_workload.Sides) -> dict[str, Call]:
    """Return our calls by contender, in the order of `STYLES`."""
    assert sides.new is not None
    return dict(zip(STYLES, (sides.new, sides.new, sides.ours), strict=True))


def layer_record(row: Row, rounds: int) -> Record:
    """Measure an operation with ``out=``."""
    import torch

    sides, record = SIDES[row.operation](row), room("layers", row)
    operands = rotating(sides.arrays, 1)
    for var in operands.theirs.get("var", ()):
        var.uniform_(0.5, 1.5)
    calls = {
        "torch": HostCall(sides.theirs(torch), repeated(operands.theirs)),
        "ours": HostCall(sides.ours, repeated(operands.ours)),
    }
    return measured(record, calls, rounds, row.kind.dtype)


def other_record(row: Row, rounds: int) -> Record:
    """Measure an operation of the layer benchmark that has no target here."""
    record, pair = room("other", row), PAIRS[row.operation](row)
    calls = calls_of(row, pair, rotating(pair.arrays, 1), record)
    indices = {"set": [0]}
    return measured(record, {name: HostCall(call, repeated(indices)) for name, call in calls.items()}, rounds)


def plan_record(row: Row, rounds: int) -> Record:
    """Measure a convolution by a prepared plan, and by one of nvidia-cudnn-frontend."""
    import torch

    sides, record = SIDES[row.operation](row), room("plan", row, "conv_plan")
    operands, options = rotating(sides.arrays, 1), row.parameters
    x, w, y = (several[0] for several in operands.ours.values())
    plan = ct.conv_plan(x, w, padding=options["padding"], stride=options["stride"], out=y)
    calls = {
        "torch": HostCall(sides.theirs(torch), repeated(operands.theirs)),
        "ours": HostCall(lambda x, w, y: plan(x, w, out=y), repeated(operands.ours)),
    }
    try:
        tensors = (several[0] for several in operands.theirs.values())
        calls["frontend"] = HostCall(frontend_call(row, *tensors), repeated({}))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cudnn":
            record["missing"] = {"frontend": "nvidia-cudnn-frontend is not installed"}
        else:
            record["errors"]["frontend"] = explain(error)
    return measured(record, calls, rounds, row.kind.dtype)


def frontend_call(row: Row, x: Any, w: Any, y: Any) -> Call:
    """Return a call that executes a graph of nvidia-cudnn-frontend on PyTorch's tensors."""
    import cudnn
    import torch

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    single = cudnn.data_type.FLOAT
    dtype = cudnn.data_type.HALF if row.kind.dtype == "float16" else single
    graph = cudnn.pygraph(
        io_data_type=dtype, intermediate_data_type=single, compute_data_type=single, handle=handle
    )
    image, weight = (
        graph.tensor(name=name, dim=list(t.shape), stride=list(t.stride()), data_type=dtype)
        for name, t in (("x", x), ("w", w))
    )
    padding, stride = ([row.parameters[name]] * 2 for name in ("padding", "stride"))
    result = graph.conv_fprop(image=image, weight=weight, padding=padding, stride=stride, dilation=[1, 1])
    result.set_output(True).set_data_type(dtype).set_dim(list(y.shape)).set_stride(list(y.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    operands = {image: x, weight: w, result: y}
    return lambda: graph.execute(operands, workspace, handle=handle)


def rnn_record(row: rnn_workload.Row, rounds: int) -> Record:
    """Measure a forward pass with ``out=``."""
    record = {**room("rnn", row, row.mode), "kind": row.kind.name}
    network, operands = rnn_networks.torch_network(row), rotating(row.arrays, 1)
    rnn, weights = rnn_networks.our_network(row, network, "heuristic")
    states = ["hy", "cy"] if row.mode == "lstm" else ["hy"]
    shapes = {"y": row.arrays["x"].shape} | dict.fromkeys(states, (row.layers, row.batch, row.hidden))
    out = tuple(ct.empty(shape, row.kind.dtype) for shape in shapes.values())
    calls = max(4, LAUNCHES // (2 * row.steps + 10))  # some algorithms launch kernels for each time step
    return measured(
        record,
        {
            "torch": HostCall(network, repeated(operands.theirs, calls)),
            "ours": HostCall(lambda x: rnn.forward(x, weights, out=out), repeated(operands.ours, calls)),
        },
        rounds,
        row.kind.dtype,
    )


def network_record(batch: int, rounds: int) -> Record:
    """Measure the captured network of example 2: host time, and the time of passes until the GPU is done.

    PyTorch's graph is launched alone, without a copy of its operand. Both libraries time their algorithms,
    which decides the second measurement.
    """
    import torch

    record = {**room_of("network", f"batch {batch}", "capture"), "batch": batch}
    with torch.inference_mode(False):
        network = host_workload.torch_digits(torch).to("cuda").requires_grad_(False)
    operands = rotating({"x": Array((batch, 1, 8, 8), "float32")}, 1)
    calls_in_loop = LAUNCHES // 20
    theirs, ours = (repeated(arrays, calls_in_loop) for arrays in operands[1:])
    calls = {"torch": HostCall(network, theirs)}
    try:
        graph = torch_graph(network, operands.theirs["x"][0])
        calls["torch_graph"] = HostCall(graph.replay, repeated({}, calls_in_loop))
    except Exception as error:
        record["errors"]["torch_graph"] = explain(error)
        record["lost"] = lost_context()
    if hasattr(ct, "capture"):
        digits = host_workload.our_digits(network, ct.asarray)
        calls["ours"] = HostCall(ct.capture(digits.predict), ours)
    else:
        record["missing"] = {"ours": "ct.capture does not exist"}
    passes = {f"{name}_pass": call._replace(until_done=True) for name, call in calls.items()}
    if "ours" in calls:  # takes its operand by pointer, as PyTorch's graph does
        pointed = ct.capture(digits.predict, operands="pointer")
        passes["ours_pass"] = HostCall(pointed, ours, until_done=True)
    with autotuned():
        return measured(record, calls | passes, rounds, "float32")


@contextmanager
def autotuned() -> Iterator[None]:
    """Let calls without ``algo`` time their algorithms within a block, as PyTorch's do here."""
    before, ct.config.algo = ct.config.algo, "autotune"
    try:
        yield
    finally:
        ct.config.algo = before


def torch_graph(network: Any, x: Any) -> Any:
    """Return a CUDA graph of PyTorch's call, captured after a warm-up on another stream."""
    import torch

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                network(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            network(x)
    return graph


# --- one row -----------------------------------------------------------------------------------------------


def room(section: str, row: Any, operation: str = "") -> Record:
    """Return a new record of a row."""
    record = room_of(section, row.id, operation or row.operation)
    return {**record, "kind": row.kind.name}


def room_of(section: str, key: str, operation: str) -> Record:
    """Return a new record with empty fields for the results."""
    return {"section": section, "id": key, "operation": operation, "times": {}, "errors": {}}


def repeated(arrays: dict[str, list[Any]], calls: int = CALLS) -> Sets:
    """Return a function that returns the operands of each call of a loop: the sets of ``arrays`` in turn.

    A loop has every set, and at least ``calls`` calls.
    """
    sets = list(zip(*arrays.values(), strict=True)) or [()]
    loop = sets * math.ceil(calls / len(sets))
    return lambda: loop


def measured(
    record: Record, calls: dict[str, HostCall], rounds: int, dtype: str = "", *, warm: int = WARM
) -> Record:
    """Warm up the calls, store their host times, and check the results if ``dtype`` is given.

    A call that fails is dropped, and the record has the reason.
    """
    import torch

    for name, (call, sets, _) in list(calls.items()):
        try:
            with torch.inference_mode():
                for one in itertools.chain.from_iterable(sets() for _ in range(warm)):
                    call(*one)
        except Exception as error:
            _drop(record, calls, name, explain(error))
    if calls:
        record["times"] = host_times(calls, rounds)
    if dtype and "torch" in calls:
        for name in [name for name in calls if name == "ours" or name.startswith("tensors")]:
            reason = wrong_result(calls["torch"], calls[name], TOLERANCE * EPSILON[dtype])
            if reason:
                _drop(record, calls, name, reason)
    return record


def _drop(record: Record, calls: dict[str, HostCall], name: str, reason: str) -> None:
    record["errors"][name] = reason
    record["lost"] = lost_context()
    record["times"].pop(name, None)
    del calls[name]


def wrong_result(theirs: HostCall, ours: HostCall, limit: float) -> str:
    """Return why our result differs from PyTorch's, or an empty string.

    The first and the last operand, which may be ``out``, get new values at their addresses. A replay that
    does not read them, or does not write, is found.
    """
    import torch

    try:
        with torch.inference_mode():
            given = theirs.sets()[0]
            for tensor in (given[0], given[-1]):
                tensor.normal_()
            found = _first(ours.call(*ours.sets()[0])).clone()
            apart = distance(found, _first(theirs.call(*given)))
    except Exception as error:
        return f"the result cannot be compared with PyTorch's: {explain(error)}"
    if apart <= limit:
        return ""
    return f"wrong result: relative distance from PyTorch's is {apart:.2g}, limit is {limit:.2g}"


def _first(result: Any) -> Any:
    """Return the first of the results of a call as a tensor."""
    several = result if isinstance(result, tuple | list) else (result,)
    return tensor_of(next(one for one in several if one is not None))


def warm_up() -> None:
    """Set PyTorch's flags, and measure a row, so that all libraries are loaded before the measurements."""
    import torch

    torch.backends.cudnn.benchmark = True
    conv_record(host_workload.conv_rows()[0], 1)
