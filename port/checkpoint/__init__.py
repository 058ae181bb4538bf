"""Checkpoints in the released layout: opened from headers, audited, read in slices, planned per rank, loaded, written.

checkpoint = open_checkpoint("fixtures/tiny_v41")
checkpoint.inventory()                               # bytes by family and dtype; nothing read
checkpoint.read_slice("embed.weight", [slice(0, 4)])
checkpoint.read_quantized("layers.0.attn.wkv.weight").dequantize()
"""

from port.checkpoint.audit import TensorAudit, audit_checkpoint
from port.checkpoint.codecs import QuantizedTensor, encode_fp4, encode_fp8
from port.checkpoint.entries import TensorEntry
from port.checkpoint.index import Checkpoint, CheckpointRef, open_checkpoint
from port.checkpoint.inspection import CheckpointReport, inspect_checkpoint
from port.checkpoint.inventory import Inventory, InventoryRow
from port.checkpoint.loader import LoadReport, check_tensors, load_tensors
from port.checkpoint.names import TensorSpec, tensor_table
from port.checkpoint.plan import PlanRow, WeightPlan, plan_weights
from port.checkpoint.problems import Problem
from port.checkpoint.reader import CheckpointReader, ReadStats
from port.checkpoint.slices import RankSlice, rank_slices, read_rank_slice
from port.checkpoint.writer import WrittenCheckpoint, write_tiny_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "CheckpointRef",
    "CheckpointReport",
    "Inventory",
    "InventoryRow",
    "LoadReport",
    "PlanRow",
    "Problem",
    "QuantizedTensor",
    "RankSlice",
    "ReadStats",
    "TensorAudit",
    "TensorEntry",
    "TensorSpec",
    "WeightPlan",
    "WrittenCheckpoint",
    "audit_checkpoint",
    "check_tensors",
    "encode_fp4",
    "encode_fp8",
    "inspect_checkpoint",
    "load_tensors",
    "open_checkpoint",
    "plan_weights",
    "rank_slices",
    "read_rank_slice",
    "tensor_table",
    "write_tiny_checkpoint",
]
