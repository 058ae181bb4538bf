"""The contract's communication package: expert dispatch and combine, Engram rows, context-parallel buckets.

Names, argument orders, dtypes and in-place effects are those of `deepinfer_ep` 2.5.0 as its callers use them (runtime
contracts, section 14); the work is done in `port/collectives`.
"""

from port.vendor.deep_ep.bucket_buffer import BucketBuffer
from port.vendor.deep_ep.engram_buffer import EngramBuffer
from port.vendor.deep_ep.ep_buffer import EPBuffer, EPHandle
from port.vendor.deep_ep.events import Event
from port.vendor.deep_ep.sizes import get_num_allocation_alignment, get_num_rdma_alignment, get_physical_domain_size

__all__ = [
    "BucketBuffer",
    "EPBuffer",
    "EPHandle",
    "EngramBuffer",
    "Event",
    "get_num_allocation_alignment",
    "get_num_rdma_alignment",
    "get_physical_domain_size",
]
