"""The 42 names of the contract: all there, in one table, working or refusing as the table says."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from port import tilelang_ops as ops
from port.errors import KernelUnavailableError, PortError
from port.tilelang_ops import neuron
from port.tilelang_ops.table import ROWS, kernel_summary, kernel_table, row

ROOT = Path(__file__).resolve().parents[3]

_NAMES = """
norm fused_norm_rope_hadamard_cast_store_kvcache gather load_kv_index expand_swa_index kv_index_cat load_paged_kv_cache
store_kv_cache compress_and_update_state_prefill compress_and_update_state_decode candidate_block_max
get_candidate_compact_lens restore_candidate_indices_inplace convert_kv_index
fused_sample random_sampling prepare_verification_metadata expand_sampling_params map_lookup sum_smaller_probs
apply_token_bitmask_by_step_inplace remap_draft_topk get_accept_result finalize_verification
prepare_v4_decode_metadata copy_block_tables compute_seqlens_k_zos gather_input_ids_zos gather_engram_tokens_zos
compute_seqlens_q_by_confidence_rates store_mtp_info dflash_input_store get_fused_dflash_get_input
copy_dflash_decode_input confidence_head_fused prepare_cp_mirror yoco_cp_boundary_fused select_state_slice
load_state_to_cache replace_input_embeds rgb_pad_to_patches batch_downsample
"""
CONTRACT = _NAMES.split()
"""Sections 15.1, 15.2 and 15.3, in that order."""

REFUSED = [entry.name for entry in ROWS if not entry.works]


def test_there_are_the_42_names_of_the_contract() -> None:
    names = [f"{name}_tl" for name in CONTRACT]
    assert len(names) == 42
    assert [entry.name for entry in ROWS] == names
    assert list(neuron.FACTORIES) == names


def test_every_name_is_an_attribute_of_the_dispatcher_and_the_back_end() -> None:
    for name, factory in neuron.FACTORIES.items():
        assert getattr(ops, name) is factory
        assert getattr(neuron, name) is factory
        assert factory.__name__ == name
        assert name in dir(ops)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_factory_names_its_mode_and_the_way_out(name: str) -> None:
    with pytest.raises(NotImplementedError) as raised:
        getattr(ops, name)(4, 128, has_conf=True)
    text = str(raised.value)
    mode = row(name).mode
    assert text.startswith(f"{name}: this kernel is called in {mode.name} only")
    assert text.endswith(mode.way_out)


def test_everything_basic_mode_needs_works() -> None:
    assert len(ROWS) - len(REFUSED) == 21
    assert set(REFUSED) == {f"{name}_tl" for name in CONTRACT[21:]}


def test_working_factories_take_the_arguments_of_the_table() -> None:
    for entry in ROWS:
        if entry.works:
            assert ", ".join(inspect.signature(neuron.FACTORIES[entry.name]).parameters) == entry.arguments, entry.name


@pytest.mark.parametrize(
    ("name", "compile_time"),
    [
        ("expand_swa_index_tl", (4,)),
        ("kv_index_cat_tl", ("int32", 2, 2, 4)),
        ("load_paged_kv_cache_tl", ("fp8_main", 4)),
        ("store_kv_cache_tl", ("fp8_main", 4)),
        ("compress_and_update_state_prefill_tl", (4, 2, False)),
    ],
)
def test_kernels_of_a_prefill_take_the_tensors_of_the_table(name: str, compile_time: tuple) -> None:
    """Those of a decode are in test_laws.py."""
    entry = row(name)
    assert entry.phase == "prefill"
    kernel = neuron.FACTORIES[name](*compile_time)
    assert ", ".join(inspect.signature(kernel).parameters) == ", ".join(filter(None, (entry.tensors, entry.outputs)))


def test_a_name_that_is_missing_has_the_nearest_ones() -> None:
    with pytest.raises(KernelUnavailableError, match=r"gather_ids_tl: expected one of the 42 .* Nearest: .*gather_"):
        _ = ops.gather_ids_tl
    assert issubclass(KernelUnavailableError, AttributeError)
    assert issubclass(KernelUnavailableError, PortError)
    assert not hasattr(ops, "detect_outlier_and_abort_tl")
    with pytest.raises(AttributeError, match="has no attribute 'gather'; it has the"):
        _ = ops.gather


def test_a_refusal_comes_before_any_argument_is_looked_at() -> None:
    with pytest.raises(NotImplementedError, match="DEEPINFER_USE_NEXTN_DECODE=0"):
        ops.get_accept_result_tl(torch.zeros(1))


def test_the_readme_says_which_factories_work() -> None:
    assert kernel_summary() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_docs_hold_the_table() -> None:
    assert kernel_table() in (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
