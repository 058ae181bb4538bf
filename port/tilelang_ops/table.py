"""What each of the 42 kernel factories is for and whether this platform has it, as data.

Printed by `python -c "from port.tilelang_ops.table import kernel_table; print(kernel_table())"`; the same text is in
docs/kernels.md. Names, arguments and tensors are the contract's (section 15); where the contract leaves compile-time
arguments or their names open, those here are the port's reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["", "decode", "prefill", "both"]


@dataclass(frozen=True, slots=True)
class Mode:
    """When a kernel is called.

    Attributes:
        name: in words.
        way_out: what turns the mode off; "" where the platform has it.
    """

    name: str
    way_out: str = ""


TEXT = Mode("text basic mode")
OPTION = Mode("text, by option")
TESTS = Mode("tests of the sampler")
DRAFTS = Mode("drafting (MTP, DSpark)", "Set DEEPINFER_USE_NEXTN_DECODE=0.")
VARLEN = Mode("drafting of varying length", "Set DEEPINFER_ENABLE_MTP_VARLEN=0.")
DEFERRED = Mode("zero-overhead scheduling", "Set DEEPINFER_ZERO_OVERHEAD_SCHEDULING=0.")
CONTEXT = Mode("context parallelism", "Use context_parallel_size=1.")
SHORTENED = Mode(
    "shortened prefill with context parallelism",
    "Set DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE=off, or use context_parallel_size=1.",
)
STORED = Mode("storing or handing over sequence states", "Use engine_type=NORMAL: prefill and decode in one engine.")
IMAGES = Mode("image input", "Give text prompts only.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One factory.

    Attributes:
        name: the factory's.
        mode: when its kernel is called.
        arguments: compile-time arguments, in order; "" for refused ones.
        tensors: arguments of the kernel before its outputs, in order.
        outputs: tensors it writes into, in order; "" where it changes `changes` instead.
        changes: argument changed in place besides the outputs.
        phase: which steps call it; "decode" and "both" may run inside a compiled graph.
    """

    name: str
    mode: Mode
    arguments: str = ""
    tensors: str = ""
    outputs: str = ""
    changes: str = ""
    phase: Phase = ""

    @property
    def works(self) -> bool:
        """Whether the platform has it."""
        return not self.mode.way_out


ROWS: tuple[Row, ...] = (
    Row(
        name="norm_tl",
        mode=TEXT,
        arguments="hidden, dtype, return_dtype, reduce_dtype, has_residual, eps, out_scale, do_fp8_cast, "
        "num_per_channels, col_major_sf, round_sf, packed_ue8m0, return_origin_out, xdim, shared_sf_block_m, "
        "x_stride, residual_stride, y_stride, residual_out_stride, sf_stride, origin_out_stride",
        tensors="x, weight, residual",
        outputs="y, residual_out, sf, extra_sf, origin_out",
        phase="both",
    ),
    Row(
        name="fused_norm_rope_hadamard_cast_store_kvcache_tl",
        mode=TEXT,
        arguments="num_heads, head_dim, has_norm, eps, has_rope, rope_dim, rope_offset, conjugate, has_hadamard, "
        "cast, output, tap",
        tensors="x, weight, positions, cos_sin",
        outputs="first, second, tapped",
        phase="both",
    ),
    Row(
        name="gather_tl",
        mode=TEXT,
        arguments="D, dtype, index_dtype, x_stride",
        tensors="x, index",
        outputs="y",
        phase="both",
    ),
    Row(
        name="load_kv_index_tl",
        mode=TEXT,
        arguments="length, block_size, has_block_tables",
        tensors="offset_len, block_table",
        outputs="index",
        phase="decode",
    ),
    Row(
        name="expand_swa_index_tl",
        mode=TEXT,
        arguments="width",
        tensors="pivots",
        outputs="index",
        phase="prefill",
    ),
    Row(
        name="kv_index_cat_tl",
        mode=TEXT,
        arguments="dtype, W, topk, out_stride",
        tensors="window, selected, a, b",
        outputs="index",
        phase="prefill",
    ),
    Row(
        name="load_paged_kv_cache_tl",
        mode=TEXT,
        arguments="layout, block_size, fp4_strides, index_batch_size",
        tensors="segments, cache",
        outputs="values, scales",
        phase="prefill",
    ),
    Row(
        name="store_kv_cache_tl",
        mode=TEXT,
        arguments="layout, block_size, tuning",
        tensors="kv, cache, slots",
        changes="cache",
        phase="prefill",
    ),
    Row(
        name="compress_and_update_state_prefill_tl",
        mode=TEXT,
        arguments="DIM, RATIO, HAS_INDEX",
        tensors="score, latent, state, state_block_idx, batch_mapping, cu_q, cu_k, cu_c, index",
        outputs="out",
        changes="state",
        phase="prefill",
    ),
    Row(
        name="compress_and_update_state_decode_tl",
        mode=TEXT,
        arguments="DIM, RATIO",
        tensors="score, latent, state, state_block_idx, context_lens",
        outputs="out",
        changes="state",
        phase="decode",
    ),
    Row(
        name="candidate_block_max_tl",
        mode=TEXT,
        arguments="max_len, block",
        tensors="logits, valid_lens",
        outputs="scores, valid_blocks",
        phase="both",
    ),
    Row(
        name="get_candidate_compact_lens_tl",
        mode=TEXT,
        arguments="topk_blocks, block",
        tensors="blocks, valid_lens",
        outputs="lens",
        phase="both",
    ),
    Row(
        name="restore_candidate_indices_inplace_tl",
        mode=TEXT,
        arguments="topk, tb, block, has_offset",
        tensors="idx, blocks, offset",
        changes="idx",
        phase="both",
    ),
    Row(
        name="convert_kv_index_tl",
        mode=TEXT,
        arguments="s, k, n, block_size",
        tensors="idx, lens, tables",
        changes="idx",
        phase="decode",
    ),
    Row(
        name="fused_sample_tl",
        mode=TEXT,
        arguments="V, do_sample, do_reject",
        tensors="logits, temperatures, top_p, top_k, positions, seeds, is_verify",
        outputs="logprobs, candidate",
        phase="both",
    ),
    Row(
        name="random_sampling_tl",
        mode=TESTS,
        arguments="V, is_nextn",
        tensors="probs, seeds, positions",
        outputs="ids",
        phase="both",
    ),
    Row(
        name="prepare_verification_metadata_tl",
        mode=TEXT,
        arguments="num_steps",
        tensors="first_rows, seqlens_q",
        outputs="row_to_req, local_step, is_verify",
        phase="decode",
    ),
    Row(
        name="expand_sampling_params_tl",
        mode=TEXT,
        tensors="temperatures, top_p, top_k, positions, seeds, row_to_req, local_step",
        outputs="row_temperatures, row_top_p, row_top_k, row_positions, row_seeds",
        phase="decode",
    ),
    Row(
        name="map_lookup_tl",
        mode=TEXT,
        arguments="width, mode, dtype",
        tensors="key, value, query",
        outputs="out",
        phase="both",
    ),
    Row(
        name="sum_smaller_probs_tl",
        mode=OPTION,
        arguments="V",
        tensors="logprobs, ids",
        outputs="out",
        phase="both",
    ),
    Row(
        name="apply_token_bitmask_by_step_inplace_tl",
        mode=OPTION,
        arguments="V, has_ftp",
        tensors="logits, bitmask, indices, first_rows, step",
        changes="logits",
        phase="both",
    ),
    Row(name="remap_draft_topk_tl", mode=DRAFTS),
    Row(name="get_accept_result_tl", mode=DRAFTS),
    Row(name="finalize_verification_tl", mode=DRAFTS),
    Row(name="prepare_v4_decode_metadata_tl", mode=DEFERRED),
    Row(name="copy_block_tables_tl", mode=DEFERRED),
    Row(name="compute_seqlens_k_zos_tl", mode=DEFERRED),
    Row(name="gather_input_ids_zos_tl", mode=DEFERRED),
    Row(name="gather_engram_tokens_zos_tl", mode=DEFERRED),
    Row(name="compute_seqlens_q_by_confidence_rates_tl", mode=VARLEN),
    Row(name="store_mtp_info_tl", mode=DRAFTS),
    Row(name="dflash_input_store_tl", mode=DRAFTS),
    Row(name="get_fused_dflash_get_input_tl", mode=DRAFTS),
    Row(name="copy_dflash_decode_input_tl", mode=DRAFTS),
    Row(name="confidence_head_fused_tl", mode=DRAFTS),
    Row(name="prepare_cp_mirror_tl", mode=CONTEXT),
    Row(name="yoco_cp_boundary_fused_tl", mode=SHORTENED),
    Row(name="select_state_slice_tl", mode=STORED),
    Row(name="load_state_to_cache_tl", mode=STORED),
    Row(name="replace_input_embeds_tl", mode=IMAGES),
    Row(name="rgb_pad_to_patches_tl", mode=IMAGES),
    Row(name="batch_downsample_tl", mode=IMAGES),
)

_BY_NAME = {row.name: row for row in ROWS}


def row(name: str) -> Row:
    """Return the row of a factory.

    Raises:
        KeyError: no factory of this name.
    """
    return _BY_NAME[name]


def kernel_table() -> str:
    """Return the table as Markdown: every factory, when it is called, whether it works here, and the way out."""
    lines = ["| factory | called as | mode | here | way out |", "|---|---|---|---|---|"]
    for entry in ROWS:
        call = f"({entry.arguments})({entry.tensors}) → {entry.outputs or entry.changes}" if entry.works else ""
        if entry.outputs and entry.changes:
            call += f"; changes {entry.changes}"
        here = "works" if entry.works else "refuses"
        lines.append(
            f"| `{entry.name}` | {f'`{call}`' if call else ''} | {entry.mode.name} | {here} | {entry.mode.way_out} |"
        )
    return "\n".join(lines) + "\n"


def kernel_summary() -> str:
    """Return which factories work and which refuse, by mode, as Markdown: the table of the README."""
    lines = ["| mode | here | way out | factories |", "|---|---|---|---|"]
    for mode in dict.fromkeys(entry.mode for entry in ROWS):
        names = ", ".join(f"`{entry.name}`" for entry in ROWS if entry.mode is mode)
        lines.append(f"| {mode.name} | {'refuses' if mode.way_out else 'works'} | {mode.way_out} | {names} |")
    return "\n".join(lines) + "\n"
