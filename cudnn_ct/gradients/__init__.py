"""Operations with a gradient, for operators of libraries with automatic differentiation.

``table`` has a row for each operation: operands, parameters, results, the gradient, what is saved for it, and
the batch axes. ``formulas`` has the gradients as calls of other rows on a namespace of operators (``ops``),
so that each library differentiates its own operators again. Besides rows, they call two functions that each
library has: ``ops.broadcast_to(array, shape)`` and ``ops.gelu_backward(dy, x, approximate="none" | "tanh")``.
Nothing here imports a library.
"""
