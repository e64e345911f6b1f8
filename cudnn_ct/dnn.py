"""The package `cudnn_ct_dnn`, which has the names of Theano's ``dnn`` module, under its former name."""

import sys

import cudnn_ct_dnn

for _part in ("checks", "conv", "flags", "layers", "rnn"):
    sys.modules[f"{__name__}.{_part}"] = sys.modules[f"cudnn_ct_dnn.{_part}"]
sys.modules[__name__] = cudnn_ct_dnn
