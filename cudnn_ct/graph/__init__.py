"""cuDNN's graph API, for any operation: graphs, engines for them, and plans that run them.

A graph of nodes and tensors is built into a native graph (`operations`), engines and execution plans
(`engines`, `plan`). All are backend descriptors (`plan`, `attributes`), for a device that exists or is
only described (`offline`). `candidates` has the engines of a graph as candidates, `reasons` why none exists.
The graphs of an operation are in its modules of `ops`.
"""
