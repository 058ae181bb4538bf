"""Text to ids and back, BOS, and the map that makes tokens alike for the Engram tables."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from port.config import ModelConfig
from port.errors import CheckpointError
from port.tokenizer import Tokenizer
from tests.port.golden import CHECKPOINT_A, model_a, prompt_ids


@pytest.fixture(scope="module")
def tokenizer():
    return model_a().tokenizer


@pytest.mark.parametrize(
    "text",
    ["The quick brown fox", "naïve café — 日本語 🦊", "def f(x):\n\treturn x  # tabs\n", " leading", "", "a" * 500],
)
def test_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[0] == 0
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids) == text


def test_golden_text_prompts_are_encoded_alike(tokenizer):
    ids = list(prompt_ids("text2"))
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_special_tokens_show_only_when_asked_for(tokenizer):
    ids = tokenizer.encode("fox")
    assert tokenizer.decode(ids) == "fox"
    assert tokenizer.decode(ids, skip_special_tokens=False) != "fox"


def test_native_tokenizers_put_no_bos_before_a_prompt():
    data = json.loads((CHECKPOINT_A / "config.json").read_text())
    native = ModelConfig.from_dict(data | {"tokenizer_compatibility": "native"})
    assert Tokenizer.from_checkpoint(CHECKPOINT_A, native).encode("fox")[0] != 0


def made_tokenizer(path, pieces):
    """A byte-level tokenizer with these pieces, in this order."""
    made = FastTokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(path))
    return Tokenizer(path, bos_token_id=None)


def test_compressed_ids_worked_by_hand(tmp_path):
    # In byte-level spelling Ġ is a space, Ċ a line feed, Ã© the letter é; a lone Ã is half a character.
    pieces = ["A", "b", "a", "Ġa", "Ã©", "e", "Ã", "©", "Ġ", "Ċ", "ĠĊ", "ĠaĠb", "aĊb", "B", "ĠE"]
    found = made_tokenizer(tmp_path / "tokenizer.json", pieces).compression_map().tolist()
    same = {
        "a": ["A", "a", "Ġa"],
        "b": ["b", "B"],
        "e": ["Ã©", "e", "ĠE"],
        " ": ["Ġ", "Ċ", "ĠĊ"],
        "a b": ["ĠaĠb", "aĊb"],
        "raw": ["Ã"],
        "other raw": ["©"],
    }
    groups = {}
    for piece, number in zip(pieces, found, strict=True):
        groups.setdefault(number, []).append(piece)
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, same.values()))
    first_seen = list(dict.fromkeys(found))
    assert first_seen == sorted(first_seen), "numbered by first appearance"


def test_compression_map_of_the_golden_tokenizer_has_the_size_the_config_says(tokenizer):
    found = tokenizer.compression_map()
    assert found.dtype == np.int64
    assert len(found) == tokenizer.vocab_size
    assert found.max() + 1 == model_a().config.engram_compressed_vocab_size


def test_a_missing_or_broken_tokenizer_is_explained(tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a tokenizer\.json; there is no such file"):
        Tokenizer(tmp_path, bos_token_id=0)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected the tokenizers library's JSON"):
        Tokenizer(tmp_path, bos_token_id=0)
