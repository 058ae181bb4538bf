"""Exchanges between ranks: process groups, expert dispatch and combine, lookups in sharded tables.

Everything goes through `torch.distributed` on the groups it is given, whatever back end they have. A group of None is
this process alone; then nothing is exchanged and the same code gives the same bits.
"""
