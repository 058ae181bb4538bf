"""A small but real byte-level BPE tokenizer, learned here from a text of our own; the same every time.

Every text can be encoded, because all 256 bytes are tokens; words of the text below become a few tokens each. Some of
them differ only in case, accents or blanks, so that the token compression of the Engram tables has something to do.

Learning: the most frequent neighbouring pair becomes a token, the first pair in order among equals, until the
vocabulary is full. The `tokenizers` library reads the result; learning does not use it, because a tie it broke
otherwise in another version would change every id.
"""

import json
import re
from collections import Counter
from itertools import pairwise

BOS, EOS, PAD, IMAGE = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜deepseek_image｜>"

_TEXT = """
The quick brown fox jumps over the lazy dog. The lazy dog sleeps; the quick fox does not. THE END of the fox is not
the end of the dog. A quick look at the brown dog, and the fox is over the hill.
A model reads a token, and then the next token. It keeps the keys of the last tokens in a window, and it keeps the
older ones pressed together: two tokens to one entry, or one to one. An index says which entries are worth a look. The
experts wait; a router sends each token to a few of them, and the shared expert sees every token. A table of rows, found
by hashing the last words, adds what was learned by heart. Then the head says which token is likely to come next.
Bring the model up one layer at a time. Compare the device with the host, layer by layer, token by token. Where they
first differ, look closer: at the weights, at the scales, at the order of the sums. If the memory is full, find who took
it. If the compiler breaks, make the program smaller until it no longer breaks, then add back the last thing you took.
In the café the waiter said naïve things about the cafe and the Café. In the end we wrote it down: 1, 2, 3, 4, 10, 20,
100 and 128 are numbers; 0.5 and 2.0 are numbers too. Numbers, tokens, layers, experts: the more, the slower.
Once there was a small checkpoint with a small tokenizer. It held every kind of layer, and every kind of weight. It was
small enough to keep with the program and large enough to fail when the program was wrong. That is all it was made for.
"""
_WORD = re.compile(r" ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+")


def tiny_tokenizer_json(vocab_size: int) -> str:
    """Return a `tokenizer.json` with `vocab_size` ids: BOS, EOS, PAD, 256 bytes, merges, and the image token last.

    Raises:
        ValueError: a vocabulary too small for the bytes, or larger than the text can fill.
    """
    byte_count, special_count = 256, 4
    merge_count = vocab_size - byte_count - special_count
    if merge_count < 0:
        raise ValueError(f"vocab_size: expected at least {byte_count + special_count}; found {vocab_size}.")
    alphabet = sorted(_byte_letters().values())
    merges = _learn_merges(merge_count)
    pieces = [BOS, EOS, PAD, *alphabet, *(left + right for left, right in merges)]
    specials = {BOS: 0, EOS: 1, PAD: 2, IMAGE: vocab_size - 1}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    body = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(content, number) for content, number in specials.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges],
        },
    }
    return json.dumps(body, ensure_ascii=False, indent=1) + "\n"


def _learn_merges(count: int) -> list[tuple[str, str]]:
    letters = _byte_letters()
    words = Counter(tuple(letters[byte] for byte in word.encode("utf-8")) for word in _WORD.findall(_TEXT.strip()))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None:
            raise ValueError(f"vocab_size: the text gives at most {len(merges)} merges; {count} are wanted.")
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    for piece in word:
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)


def _byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in byte-level BPE: itself where visible, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + rank) for rank, byte in enumerate(others)}


def _special(content: str, number: int) -> dict[str, object]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
