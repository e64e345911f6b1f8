"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""
