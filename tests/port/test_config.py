"""A configuration is read with the checkpoint's own keys, and everything wrong with it is said at once."""

import copy
import json

import pytest

from port.config import ModelConfig
from port.errors import ConfigError
from tests.shared import shared_path


@pytest.fixture(scope="module")
def released():
    return json.loads(shared_path("spec", "released_config.json").read_text())


def changed(data, **text):
    data = copy.deepcopy(data)
    data["text_config"] |= text
    return data


@pytest.mark.parametrize(
    "parts", [("spec", "released_config.json"), ("golden", "A", "checkpoint"), ("golden", "B", "checkpoint")]
)
def test_every_given_configuration_is_accepted_and_round_trips(parts):
    config = ModelConfig.from_file(shared_path(*parts))
    assert config.unknown_keys == ()
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_fields_carry_the_checkpoint_spelling(released):
    config = ModelConfig.from_dict(released)
    text = released["text_config"]
    for key in ("hidden_size", "q_lora_rank", "o_groups", "index_topk", "hc_eps", "engram_vocab_size"):
        assert getattr(config, key) == text[key]
    assert config.compress_ratios == tuple(text["compress_ratios"])
    assert config.rope_scaling.factor == 16
    assert config.rms_norm_eps == 1e-20


def test_optional_keys_take_the_documented_defaults(released):
    config = ModelConfig.from_dict(released)
    assert config.index_k_source_layer_ids == config.kv_source_layer_ids
    assert config.hc_shifted
    assert config.use_fp4_sparse_kv
    assert config.tokenizer_compatibility == "release"
    without_engram = copy.deepcopy(released)
    for key in [key for key in released["text_config"] if key.startswith("engram")]:
        del without_engram["text_config"][key]
    assert ModelConfig.from_dict(without_engram).engram_layer_ids == ()


def test_engine_limits_are_not_architecture(released):
    config = ModelConfig.from_dict(
        changed(released, qk_rope_head_dim=24, head_dim=96, candidate_block_size=12, candidate_topk_blocks=43)
    )
    assert config.qk_rope_head_dim == 24


def test_engram_may_sit_on_layer_zero(released):
    config = ModelConfig.from_dict(changed(released, engram_layer_ids=[0, 1]))
    assert config.engram_layer_ids == (0, 1)


def test_all_missing_and_mistyped_keys_are_named_in_one_error(released):
    data = changed(released, head_dim="wide", hc_mult=True)
    del data["text_config"]["vocab_size"]
    data["quantization_config"]["weight_block_size"] = [32]
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(data)
    text = str(error.value)
    assert "4 problems" in text
    for part in (
        "text_config.vocab_size: expected an integer; the key is missing",
        "text_config.head_dim: expected an integer; found 'wide'",
        "text_config.hc_mult: expected an integer; found True",
        "quantization_config.weight_block_size: expected a list of two integers; found [32]",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"head_dim": 40}, "head_dim: expected a multiple of 32"),
        ({"qk_rope_head_dim": 31}, "qk_rope_head_dim: expected an even number"),
        ({"qk_rope_head_dim": 160}, "at most index_head_dim (128); found 160"),
        ({"o_groups": 7}, "num_attention_heads: expected a multiple of o_groups (7); found 64"),
        ({"compress_ratios": [0] * 42}, "compress_ratios: expected 43 entries"),
        ({"compress_ratios": [0, 0, 3] + [2] * 17 + [1] * 20 + [0] * 3}, "compress_ratios[2]: expected 0 or a divisor"),
        ({"kv_source_layer_ids": [2, 8, 14]}, "layer 20 has ratio 1 and would read from layer 14 with ratio 2"),
        ({"kv_source_layer_ids": [8, 14, 20]}, "expected a source at or before layer 2"),
        ({"kv_source_layer_ids": [1, 8, 14, 20]}, "layer 1 has ratio 0"),
        ({"index_source_layer_ids": [2, 8, 20]}, "expected to contain every layer of index_k_source_layer_ids"),
        ({"index_k_source_layer_ids": [2, 8, 14, 20, 24]}, "layers [24] have none"),
        ({"candidate_source_layer_id": 14}, "layer 20 selects inside the blocks of layer 14"),
        ({"candidate_source_layer_id": 21}, "candidate_source_layer_id: expected one of index_source_layer_ids"),
        ({"candidate_topk_blocks": 1}, "expected at least index_topk (512)"),
        ({"engram_num_embeddings": [5]}, "expected one number per Engram layer (2); found 1"),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size: expected 2 or more"),
        ({"num_experts_per_tok": 500}, "expected at most n_routed_experts (384); found 500"),
        ({"scoring_func": "softmax"}, "scoring_func: expected 'sqrtsoftplus'; found 'softmax'"),
        ({"hc_shifted": False}, "hc_shifted: expected True"),
    ],
)
def test_contradictions_are_explained(released, change, part):
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(changed(released, **change))
    assert part in str(error.value)


def test_unknown_keys_are_listed_with_the_nearest_known_key(released):
    config = ModelConfig.from_dict(changed(released, hiden_size=1, flavour="plum"))
    assert config.unknown_keys == (
        "text_config.hiden_size: not a known key, ignored; did you mean hidden_size?",
        "text_config.flavour: not a known key, ignored",
    )


def test_file_errors_name_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: expected a config\.json; it cannot be read"):
        ModelConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: expected JSON"):
        ModelConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object; found list"):
        ModelConfig.from_file(tmp_path)
