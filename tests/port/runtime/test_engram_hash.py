"""The Engram hash against plain Python integers, the golden rows, and the figures of the release."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file

from port.config import ModelConfig
from port.errors import ConfigError
from port.runtime.engram_hash import EngramHash, multiplier_table, prime_table
from tests.port.golden import GOLDEN_A, model_a, prompt_ids, units
from tests.port.tiny import BASE, COMPRESSED_VOCABULARY, VOCABULARY, random_ids, tiny_config, token_map
from tests.shared import shared_path


def slow_rows(hashes, token_ids, position, layer_index):
    """Table rows of one position of one layer, in Python's unbounded integers."""
    window, broken = [], False
    for back in range(hashes.ngram_size):
        source = position - back
        inside = source >= 0 and 0 <= token_ids[source] < len(hashes.token_map)
        broken = broken or not inside
        window.append(hashes.pad_id if broken else int(hashes.token_map[token_ids[source]]))
    rows, total, value = [], 0, window[0] * int(hashes.multipliers[layer_index, 0])
    for order in range(1, hashes.ngram_size):
        value ^= window[order] * int(hashes.multipliers[layer_index, order])
        assert 0 <= value < 2**63
        for prime in hashes.primes[layer_index, order - 1].tolist():
            rows.append(value % prime + total)
            total += prime
    return rows


@pytest.fixture(scope="module")
def tiny_hash():
    return EngramHash.from_config(BASE, token_map())


def test_rows_agree_with_plain_integers(tiny_hash):
    ids = np.array([*random_ids(40), VOCABULARY, 5, 7, 9, 11, 0, 1, 2])
    found = tiny_hash.rows(tiny_hash.windows(ids, 0, len(ids)))
    assert found.dtype == np.int32
    for position in range(len(ids)):
        for layer in range(2):
            assert found[position, layer].tolist() == slow_rows(tiny_hash, ids.tolist(), position, layer)


def test_a_window_in_the_middle_is_the_same_as_from_the_start(tiny_hash):
    ids = np.array(random_ids(20))
    whole = tiny_hash.windows(ids, 0, 20)
    assert np.array_equal(tiny_hash.windows(ids, 7, 20), whole[7:])


def test_windows_are_newest_first_and_padded_before_the_text(tiny_hash):
    ids = np.array([10, 20, 30, 40, 50])
    compressed = token_map()[ids].tolist()
    pad = int(token_map()[BASE.engram_pad_token_id])
    found = tiny_hash.windows(ids, 0, 5).tolist()
    assert found[0] == [compressed[0], pad, pad, pad]
    assert found[1] == [compressed[1], compressed[0], pad, pad]
    assert found[4] == [compressed[4], compressed[3], compressed[2], compressed[1]]


def test_an_image_token_breaks_every_window_that_reaches_it(tiny_hash):
    ids = np.array([10, 20, VOCABULARY + 5, 40, 50])
    pad = int(token_map()[BASE.engram_pad_token_id])
    found = tiny_hash.windows(ids, 0, 5).tolist()
    assert found[2] == [pad] * 4
    assert found[3] == [int(token_map()[40]), pad, pad, pad]
    assert found[4] == [int(token_map()[50]), int(token_map()[40]), pad, pad]


def test_begin_and_end_tokens_do_not_stop_the_look_back(tiny_hash):
    ids = np.array([10, 1, 0, 40])
    assert tiny_hash.windows(ids, 3, 4).tolist() == [token_map()[[40, 0, 1, 10]].tolist()]


@pytest.mark.parametrize("prompt", ["len1", "len70", "len200", "text2"])
def test_golden_rows_are_hit_exactly(prompt):
    golden, hashes = load_file(GOLDEN_A / "engram.safetensors"), model_a().engram
    ids = np.array(prompt_ids(prompt))
    assert np.array_equal(hashes.rows(hashes.windows(ids, 0, len(ids))), golden[f"{prompt}.hash_ids"])


def test_golden_tables_are_derived_exactly():
    golden, hashes = load_file(GOLDEN_A / "engram.safetensors"), model_a().engram
    assert np.array_equal(hashes.token_map, golden["token_map"])
    for name in ("multipliers", "primes", "offsets"):
        assert np.array_equal(getattr(hashes, name), golden[name]), name


def released():
    return ModelConfig.from_file(shared_path("spec", "released_config.json"))


def released_like():
    """The release's Engram figures, without its file."""
    return dataclasses.replace(
        BASE,
        num_hidden_layers=20,
        compress_ratios=(0,) * 20 + (0,),
        kv_source_layer_ids=(),
        index_k_source_layer_ids=(),
        index_source_layer_ids=(),
        candidate_source_layer_id=None,
        engram_layer_ids=(1, 14),
        engram_n_heads=8,
        engram_vocab_size=16_000_000,
        engram_compressed_vocab_size=99092,
    )


@pytest.fixture(scope="module")
def released_hash():
    config = released_like()
    primes = prime_table(config)
    flat = primes.reshape(2, -1)
    return EngramHash(
        layers=(1, 14),
        token_map=np.arange(99092),
        pad_id=2,
        multipliers=multiplier_table(config),
        primes=primes,
        offsets=np.cumsum(flat, axis=1) - flat,
    )


def test_released_tables_are_those_of_the_specification(released_hash):
    assert released_hash.multipliers.tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]
    assert released_hash.primes[:, [0, -1], [0, -1]].tolist() == [[16000057, 16000463], [16000477, 16000889]]
    assert released_hash.primes.sum(axis=(1, 2)).tolist() == [384006168, 384016682]
    assert np.array_equal(released_hash.primes, units()["release.primes"].numpy())
    assert np.array_equal(released_hash.multipliers, units()["release.multipliers"].numpy())


def test_released_windows_hash_to_the_rows_of_the_specification(released_hash):
    rows = released_hash.rows(np.array([[10, 20, 30, 40], [5, 2, 2, 2]]))
    assert rows[0, 0, :3].tolist() == [10250667, 16051853, 42761335]
    assert rows[0, 0, -1] == 381142068
    assert rows[0, 1, :2].tolist() == [13402985, 31185432]
    assert rows[0, 1, -1] == 370522085
    assert rows[1, 0, :2].tolist() == [5412672, 18319159]
    assert rows[1, 1, :2].tolist() == [6939818, 27264717]


def test_the_largest_ids_stay_within_63_bits(released_hash):
    rows = released_hash.rows(np.full((1, 4), 99091))
    assert bool((rows >= 0).all())
    assert rows[0, 0].tolist() == slow_rows(
        dataclasses.replace(released_hash, token_map=np.full(4, 99091)), [0, 1, 2, 3], 3, 0
    )


def test_released_config_names_the_row_counts_the_primes_give():
    config = released()
    assert config.engram_num_embeddings == (384006168, 384016682)


def test_a_prime_is_taken_once():
    primes = prime_table(tiny_config(engram_vocab_size=2))
    flat = primes.flatten().tolist()
    assert len(set(flat)) == len(flat)
    assert flat[:3] == [2, 3, 5]
    assert all(all(value % divisor for divisor in range(2, value)) for value in flat)


def test_a_map_or_table_of_another_size_is_refused():
    with pytest.raises(ConfigError, match="expected 250; the tokenizer gives 251 different compressed tokens"):
        EngramHash.from_config(BASE, np.append(token_map(), COMPRESSED_VOCABULARY))
    wrong = tiny_config(engram_num_embeddings=(100, 200))
    with pytest.raises(ConfigError, match=r"expected \[100, 200\] table rows; the primes above"):
        EngramHash.from_config(wrong, token_map())
