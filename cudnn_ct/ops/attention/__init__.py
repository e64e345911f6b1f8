"""Scaled dot product attention and its gradient: one graph of cuDNN each.

`attention` has the public functions for half precision, `operands` gathers their arrays. `graph` builds the
graph of a problem, `core` reduces a problem to one that cuDNN computes right, and `source` has its candidates
and plans. `errata` has the reported defects. `scaled` has the public function for float8, and
`scaled_source` its graph, candidates and plans.
"""
