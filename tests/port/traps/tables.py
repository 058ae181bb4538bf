"""Traps of experts, Engram tables, the tokenizer and the sizes of a configuration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from port.config_rules import config_problems
from port.errors import ConfigError
from port.kernels.quantize import round_trip_fp8
from port.kernels.swiglu import clamped_swiglu
from port.model.engram import EngramTable
from port.model.experts import Expert
from port.runtime import engram_hash
from port.runtime.engram_hash import multiplier_table
from port.tokenizer import Tokenizer
from tests.port.golden import CHECKPOINT_A, model_a, prompt_ids
from tests.port.tiny import BASE, tiny_config
from tests.port.traps.mutation import (
    Trap,
    replace_function,
    rewrite_method,
    wrap_function,
)
from tests.port.traps.runs import (
    alike,
    tiny,
)


def experts_weigh_before_the_second_product_and_gate_with_w1() -> None:
    text_model = tiny("fp32q")
    generator = torch.Generator().manual_seed(3)
    y = round_trip_fp8(torch.randn(9, BASE.hidden_size, generator=generator))
    weight = torch.rand(9, 1, generator=generator)
    expert = text_model.model.layers[0].ffn.experts[4]
    product = F.silu(y @ expert.w1.dense.T) * (y @ expert.w3.dense.T) * weight
    alike(expert(y, weight), round_trip_fp8(product) @ expert.w2.dense.T)


def engram_scales_belong_to_rows() -> None:
    embed = tiny().model.layers[0].engram.embed
    rows = torch.tensor([[1, 40, 33], [63, 2, 100]], dtype=torch.int32)
    found = embed(rows, torch.float32)
    for token in range(2):
        for column, row in enumerate(rows[token].tolist()):
            scale = 2.0 ** (embed.scale[row].view(torch.uint8).item() - 127)
            expected = embed.weight[row].to(torch.float32) * scale
            assert torch.equal(found[token, 32 * column : 32 * (column + 1)], expected)


def engram_multipliers_are_those_of_the_release() -> None:
    found = np.stack([engram_hash._draw_multipliers(layer, 4, 99092) for layer in (1, 14)])
    assert found.tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def changed_generator_is_refused() -> None:
    """A NumPy that draws other numbers is an error, not another model."""
    engram_hash._verify_generator.cache_clear()
    multiplier_table(tiny_config())


def prompts_begin_with_bos() -> None:
    text_model = model_a()
    tokenizer = Tokenizer.from_checkpoint(CHECKPOINT_A, text_model.config)
    text = tokenizer.decode(prompt_ids("text2"))
    assert tokenizer.encode(text) == list(prompt_ids("text2"))
    assert tokenizer.encode("")[:1] == [text_model.config.bos_token_id]


def small_sizes_are_taken_and_uneven_ones_refused() -> None:
    assert tiny_config(head_dim=64, qk_rope_head_dim=10, index_head_dim=32, candidate_block_size=3).head_dim == 64
    for name in ("hidden_size", "head_dim", "moe_intermediate_size", "index_head_dim"):
        with pytest.raises(ConfigError, match=f"{name}: expected a multiple of 32"):
            tiny_config(**{name: 40})


def plant_engine_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, config):
        limits = [] if config.head_dim == 512 else [f"head_dim: expected 512; found {config.head_dim}"]
        return [*right(config), *limits]

    wrap_function(monkeypatch, config_problems, wrong)


TABLE_TRAPS = (
    Trap(
        number=15,
        name="routing_weight_comes_before_w2",
        check=experts_weigh_before_the_second_product_and_gate_with_w1,
        plant=rewrite_method(
            Expert,
            "forward",
            ("clamped_swiglu(gate, up, weight, limit", "clamped_swiglu(gate, up, None, limit"),
            (
                "return self.w2(self.precision.linear_input(product), operands=operands, out_dtype=activation)",
                "output = self.w2(self.precision.linear_input(product), operands=operands, out_dtype=activation)\n"
                "    return output if weight is None else output * weight",
            ),
        ),
    ),
    Trap(
        number=17,
        name="w1_is_the_gate",
        check=experts_weigh_before_the_second_product_and_gate_with_w1,
        plant=lambda monkeypatch: wrap_function(
            monkeypatch,
            clamped_swiglu,
            lambda right, gate, up, weight, **options: right(up, gate, weight, **options),
        ),
        golden=True,
    ),
    Trap(
        number=19,
        name="engram_scales_belong_to_rows",
        check=engram_scales_belong_to_rows,
        plant=rewrite_method(
            EngramTable,
            "forward",
            (
                "gather_table_rows(self.scale, row_ids.flatten())",
                "gather_table_rows(self.scale, row_ids.flatten() // 32 * 32)",
            ),
        ),
        golden=True,
    ),
    Trap(
        number=19,
        name="engram_multipliers_are_those_of_the_release",
        check=engram_multipliers_are_those_of_the_release,
        plant=lambda monkeypatch: monkeypatch.setattr(engram_hash, "_SEED_FACTOR", 10009),
    ),
    Trap(
        number=19,
        name="a_generator_that_draws_other_numbers_is_refused",
        check=changed_generator_is_refused,
        plant=lambda monkeypatch: monkeypatch.setattr(engram_hash, "_SEED_FACTOR", 10009),
    ),
    Trap(
        number=24,
        name="prompts_begin_with_bos",
        check=prompts_begin_with_bos,
        plant=rewrite_method(Tokenizer, "encode", ("[self.bos_token_id, *ids]", "ids")),
    ),
    Trap(
        number=26,
        name="small_sizes_are_taken",
        check=small_sizes_are_taken_and_uneven_ones_refused,
        plant=plant_engine_limits,
    ),
    Trap(
        number=26,
        name="uneven_sizes_are_refused",
        check=small_sizes_are_taken_and_uneven_ones_refused,
        plant=lambda monkeypatch: replace_function(monkeypatch, config_problems, lambda config: []),
    ),
)
