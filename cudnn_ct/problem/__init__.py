"""What is to be computed, as values: specs, problems, the rules of shapes, and rows of candidates.

Everything here is immutable, hashable and printable, and knows neither a library nor a device. A problem is
at once the validated request, the cache key, the repr in an error, and what tests work on without a GPU.
"""
