"""Graphs that users build: the builder, its operations, the native graph, and built graphs.

``builder`` has the state of a :class:`cudnn_ct.Graph`; the modules named after families have its methods.
``lower`` translates a graph into cuDNN's nodes and tensors, and ``built`` runs it.
"""
