"""What the contract's callers ask about sizes and distances before they make a buffer."""

from torch.distributed import ProcessGroup

from port.collectives.transport import group_size

_ALIGNMENT = 512


def get_physical_domain_size(group: ProcessGroup | None) -> int:
    """Return how many ranks of a group reach each other without a network: all of them.

    Ranks of one trn2 instance are joined by NeuronLink, and this port runs within one instance (inferred); a group that
    spans instances is not told apart.
    """
    return group_size(group)


def get_num_rdma_alignment() -> int:
    """Return the bytes a row of a network buffer is rounded up to; there is no such buffer here, so rows are bytes."""
    return 1


def get_num_allocation_alignment() -> int:
    """Return the bytes a part of a buffer is rounded up to: 512, which every dtype divides."""
    return _ALIGNMENT


def align(nbytes: int, alignment: int = _ALIGNMENT) -> int:
    """Return `nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment
