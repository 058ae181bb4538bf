"""All 42 `*_tl` kernel factories of the contract, for NeuronCores: pure PyTorch over `port/kernels`.

How a factory and its kernel are called:

- A factory takes the contract's compile-time arguments in the contract's order and returns a kernel. Where the contract
  leaves arguments open, the names are those of `port/tilelang_ops/table.py`. Dtypes are `torch.dtype`s or their names.
- A kernel takes the contract's tensors in the contract's order, and after them its outputs, in the order behind the
  contract's arrow: `kernel(*tensors, *outputs)`. It allocates no output: it writes into those given, and returns them,
  one tensor or a tuple. A kernel without an arrow changes the argument that the contract marks as in place and returns
  that. Cache and state arguments are changed where the contract says so, besides the outputs.
- An optional tensor keeps its place and is None where it is absent; absent outputs at the end may be left out.
- Shapes, dtypes and contiguity are checked; what does not fit is one ValueError. Values are not: reading them would
  stop a graph.
- E8M0 scales that leave a kernel are packed as `PLATFORM.fp8_sf_type`, two bytes, little endian. Codes may be written
  into any 8-bit dtype.

A factory of a mode that the platform does not have raises NotImplementedError when it is called, with the way out.
"""

from collections.abc import Callable
from typing import Any

from port.tilelang_ops.neuron.cache import (
    fused_norm_rope_hadamard_cast_store_kvcache_tl,
    load_paged_kv_cache_tl,
    store_kv_cache_tl,
)
from port.tilelang_ops.neuron.candidates import (
    candidate_block_max_tl,
    get_candidate_compact_lens_tl,
    restore_candidate_indices_inplace_tl,
)
from port.tilelang_ops.neuron.compress import compress_and_update_state_decode_tl, compress_and_update_state_prefill_tl
from port.tilelang_ops.neuron.index import (
    convert_kv_index_tl,
    expand_swa_index_tl,
    gather_tl,
    kv_index_cat_tl,
    load_kv_index_tl,
)
from port.tilelang_ops.neuron.norm import norm_tl
from port.tilelang_ops.neuron.refused import refuse
from port.tilelang_ops.neuron.sampler import fused_sample_tl, random_sampling_tl, sum_smaller_probs_tl
from port.tilelang_ops.neuron.sampling_rows import (
    apply_token_bitmask_by_step_inplace_tl,
    expand_sampling_params_tl,
    map_lookup_tl,
    prepare_verification_metadata_tl,
)

FACTORIES: dict[str, Callable[..., Any]] = {
    "norm_tl": norm_tl,
    "fused_norm_rope_hadamard_cast_store_kvcache_tl": fused_norm_rope_hadamard_cast_store_kvcache_tl,
    "gather_tl": gather_tl,
    "load_kv_index_tl": load_kv_index_tl,
    "expand_swa_index_tl": expand_swa_index_tl,
    "kv_index_cat_tl": kv_index_cat_tl,
    "load_paged_kv_cache_tl": load_paged_kv_cache_tl,
    "store_kv_cache_tl": store_kv_cache_tl,
    "compress_and_update_state_prefill_tl": compress_and_update_state_prefill_tl,
    "compress_and_update_state_decode_tl": compress_and_update_state_decode_tl,
    "candidate_block_max_tl": candidate_block_max_tl,
    "get_candidate_compact_lens_tl": get_candidate_compact_lens_tl,
    "restore_candidate_indices_inplace_tl": restore_candidate_indices_inplace_tl,
    "convert_kv_index_tl": convert_kv_index_tl,
    "fused_sample_tl": fused_sample_tl,
    "random_sampling_tl": random_sampling_tl,
    "prepare_verification_metadata_tl": prepare_verification_metadata_tl,
    "expand_sampling_params_tl": expand_sampling_params_tl,
    "map_lookup_tl": map_lookup_tl,
    "sum_smaller_probs_tl": sum_smaller_probs_tl,
    "apply_token_bitmask_by_step_inplace_tl": apply_token_bitmask_by_step_inplace_tl,
    "remap_draft_topk_tl": refuse("remap_draft_topk_tl"),
    "get_accept_result_tl": refuse("get_accept_result_tl"),
    "finalize_verification_tl": refuse("finalize_verification_tl"),
    "prepare_v4_decode_metadata_tl": refuse("prepare_v4_decode_metadata_tl"),
    "copy_block_tables_tl": refuse("copy_block_tables_tl"),
    "compute_seqlens_k_zos_tl": refuse("compute_seqlens_k_zos_tl"),
    "gather_input_ids_zos_tl": refuse("gather_input_ids_zos_tl"),
    "gather_engram_tokens_zos_tl": refuse("gather_engram_tokens_zos_tl"),
    "compute_seqlens_q_by_confidence_rates_tl": refuse("compute_seqlens_q_by_confidence_rates_tl"),
    "store_mtp_info_tl": refuse("store_mtp_info_tl"),
    "dflash_input_store_tl": refuse("dflash_input_store_tl"),
    "get_fused_dflash_get_input_tl": refuse("get_fused_dflash_get_input_tl"),
    "copy_dflash_decode_input_tl": refuse("copy_dflash_decode_input_tl"),
    "confidence_head_fused_tl": refuse("confidence_head_fused_tl"),
    "prepare_cp_mirror_tl": refuse("prepare_cp_mirror_tl"),
    "yoco_cp_boundary_fused_tl": refuse("yoco_cp_boundary_fused_tl"),
    "select_state_slice_tl": refuse("select_state_slice_tl"),
    "load_state_to_cache_tl": refuse("load_state_to_cache_tl"),
    "replace_input_embeds_tl": refuse("replace_input_embeds_tl"),
    "rgb_pad_to_patches_tl": refuse("rgb_pad_to_patches_tl"),
    "batch_downsample_tl": refuse("batch_downsample_tl"),
}


def __getattr__(name: str) -> Callable[..., Any]:
    if name in FACTORIES:
        return FACTORIES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
