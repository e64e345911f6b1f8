"""Scaled dot product attention and its gradient: one graph of cuDNN each.

`attention` has the public functions for half precision, `operands` gathers their arrays. `graph` builds the
graph of a problem, `core` reduces a problem to one that cuDNN computes right, and `source` has its candidates
and plans. `scaled` has the public function for float8, its graph, candidates and plans.
"""
