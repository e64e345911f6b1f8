"""Uses of the public interface that type checkers must accept, and misuses that they must reject.

mypy and pyright check this file; nothing runs it. An unneeded ``type: ignore`` is an error, so each misuse
below is known to be rejected.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import cudnn_ct as ct


class TorchLike:
    """The protocol of a tensor of PyTorch."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}


class StreamLike:
    """The protocol of a stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        return 0


x, w = ct.asarray(np.ones((1, 2, 4, 4), np.float32)), ct.empty((3, 2, 3, 3), "float32", layout="nhwc")
tensor, stream = TorchLike(), StreamLike()

# Arrays of any library, streams, padding in each form, algorithms by policy, name and row.
assert_type(x, ct.DeviceArray)
assert_type(ct.conv(x, w, padding=1), ct.DeviceArray)
assert_type(ct.conv(tensor, tensor, padding="half", stride=(2, 2), out=tensor, stream=stream), ct.DeviceArray)
ct.conv(x, w, padding=((0, 1), (2, 2)), algo="heuristic", precision="tf32", stream=7)
ct.conv(x, w, padding=(1, 1), algo="engine 0", mode="convolution")
ct.conv(x, w, algo=ct.conv_algorithms(x, w)[0])
ct.conv_backward_data(x, w, (1, 2, 4, 4))
ct.conv_bias_activation(x, w, x, activation="gelu")
assert_type(ct.conv_scale_bias_activation(x, w, x, x, residual=x, activation="relu"), ct.DeviceArray)
assert_type(ct.scaled_conv(x, w, amax=True, padding=1).amax, ct.DeviceArray | None)
assert_type(ct.conv_batch_norm_statistics(x, w, padding=1).sums, ct.DeviceArray)
assert_type(ct.conv_backward_data_relu_batch_norm(x, w, x, x, x, x, x).dz, ct.DeviceArray)
assert_type(ct.pool(x, window=2, mode="average"), ct.DeviceArray)
assert_type(ct.reduce(x, op="norm2", axis=(0, 1)), ct.DeviceArray)
assert_type(ct.reduce_with_indices(x, op="max", axis=1).indices, ct.DeviceArray)
assert_type(ct.batch_norm_training(x, w, w).invstd, ct.DeviceArray)
assert_type(ct.RNN("lstm", 4, 8).forward(x, w).y, ct.DeviceArray)
assert_type(x[0, ..., ::2].reshape(-1), ct.DeviceArray)
assert_type(x[np.int64(0)][None], ct.DeviceArray)
assert_type(ct.conv_plan(x, w)(tensor, w, out=tensor), ct.DeviceArray)
assert_type(ct.TensorDescriptor.cached(x.spec).read(), ct.TensorSpec)
assert_type(ct.RNN("gru", 4, 8).hidden_size, int)
assert_type(x.__cuda_array_interface__, dict[str, object])
ct.config.dnn.conv.algo_fwd = "fft"

assert_type(ct.ctc_loss(x, [[1]], [1], [2], algo="non_deterministic", out=tensor).gradient, ct.DeviceArray)
ct.ctc_loss(x, x, x, x, out=(None, tensor))
assert_type(
    ct.transform(x, layout=x.layout, dtype=ct.TensorSpec.packed((1,), np.float16).dtype), ct.DeviceArray
)

# Results by their names.
assert_type(ct.conv_algorithms(x, w), ct.Algorithms)
assert_type(ct.conv_plan(x, w), ct.ConvPlan)
assert_type(ct.available(), ct.Availability)
assert_type(ct.library_info(), ct.LibraryInfo)
assert_type(ct.ctc_loss(x, x, x, x), ct.CTCLoss[ct.DeviceArray])
assert_type(ct.RNN("gru", 4, 8).spec, ct.RNNSpec)
with ct.use(device=0) as used:
    assert_type(used, ct.Stream)

# The reference, on NumPy arrays, and Theano's names.
host = np.ones((1, 2, 4, 4))
assert_type(ct.reference.conv(host, host, padding="half"), NDArray[Any])
assert_type(ct.reference.reduce(host, op="norm2", axis=(0, 1), out=host), NDArray[Any])
ct.reference.batch_norm_training([[1.0], [2.0]], [1.0], [0.0]).invstd.sum()
assert_type(ct.dnn.dnn_conv(x, tensor, border_mode="half", subsample=np.array([2, 2])), ct.DeviceArray)
assert_type(ct.dnn.GpuDnnPool("max")(x, (2, 2)), ct.DeviceArray)
assert_type(ct.dnn.GpuDnnConvGradW(inplace=True)(x, x, w, ct.dnn.GpuDnnConvDesc("valid")), ct.DeviceArray)
ct.dnn.dnn_conv(x, w, conv_mode="cross", direction_hint="forward!")
ct.dnn.GpuDnnReduction("maximum", axis=(1,))(x)
ct.dnn.dnn_batch_normalization_train(x, w, w, mode="spatial")
assert_type(ct.dnn.RNNBlock("float32", 4, 2, "gru").apply(w, x, x), list[ct.DeviceArray])

ct.reference.pool(host, window=2, mode="median")  # type: ignore[arg-type]
ct.dnn.dnn_pool(x, 2, mode="median")  # type: ignore[arg-type]
ct.dnn.dnn_conv(host, "w")  # type: ignore[arg-type]
ct.dnn.dnn_conv(x, w, conv_mode="convolution")  # type: ignore[arg-type]
ct.dnn.dnn_conv(x, w, direction_hint="backward")  # type: ignore[arg-type]
ct.dnn.dnn_batch_normalization_train(x, w, w, mode="per_activation")  # type: ignore[arg-type]
ct.dnn.GpuDnnReduction("max")  # type: ignore[arg-type]
ct.dnn.GpuDnnSoftmax("fast", "channel", tensor_format="b01c")  # type: ignore[arg-type]
ct.dnn.GpuDnnRNNOp("lstm", "backward")  # type: ignore[arg-type]
ct.conv(x, "w")  # type: ignore[arg-type]
ct.conv(x, w, padding="same")  # type: ignore[arg-type]
ct.conv(x, w, mode="flipped")  # type: ignore[arg-type]
ct.pool(x, window=2, mode="median")  # type: ignore[arg-type]
ct.activation(x, mode="gelu")  # type: ignore[arg-type]
ct.ctc_loss(x, x, x, x, algo="fast")  # type: ignore[arg-type]
ct.ctc_loss(x, x, x, x, out=(x, x, x))  # type: ignore[arg-type]
ct.transform(x, layout="chwn")  # type: ignore[arg-type]
ct.ActivationSpec("gelu")  # type: ignore[arg-type]
ct.PoolingSpec((2, 2), (0, 0), (2, 2), "average")  # type: ignore[arg-type]
ct.reference.transform(host, layout="chwn")  # type: ignore[arg-type]
ct.TensorSpec.packed((1, 2), layout="chwn")  # type: ignore[arg-type]
ct.empty((1, 2), layout="chwn")  # type: ignore[arg-type]
x["first"]  # type: ignore[index]
ct.conv_plan(x, w)(x, "w")  # type: ignore[arg-type]
ct.reference.softmax(x)  # type: ignore[arg-type]
ct.TensorDescriptor.cached(ct.LRNSpec())  # type: ignore[arg-type]
ct.config.algo = 3  # type: ignore[assignment]
_ = ct.config.no_such_name  # type: ignore[attr-defined]
_ = x.no_such_name  # type: ignore[attr-defined]
_ = ct.RNN("gru", 4, 8).no_such_name  # type: ignore[attr-defined]
_ = ct.no_such_name  # type: ignore[attr-defined]


# Captured functions have the signature of the function.
@ct.capture
def forward(x: ct.DeviceArray, factor: float = 1) -> ct.DeviceArray:
    return ct.scale(x, alpha=factor)


assert_type(forward(x, factor=2), ct.DeviceArray)
assert_type(ct.capture(max_signatures=2, operands="pointer")(forward)(x), ct.DeviceArray)
forward("x")  # type: ignore[arg-type]
ct.capture(forward, operands="other")  # type: ignore[call-overload]
