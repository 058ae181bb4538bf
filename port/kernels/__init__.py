"""Pure functions of tensors: the one place of arithmetic, and the seam where a device kernel can replace one.

A kernel keeps no state, reads no configuration and imports torch only. Suffixes in argument names give logical shapes;
each file has its legend at the top.
"""
