"""Which key of a checkpoint case asks for which fact: the keys taken apart into words, and a rule for the words.

`missing_scale_for` is the words missing, scale and for; the rule with the most of these words answers it. A key with a
word that no rule knows has no answer, and so has one that no rule fits whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from port.checkpoint.headers import MAX_HEADER_BYTES
from workbench.cases.checkpoint_facts import Answer, CheckpointFacts, unique
from workbench.cases.key_rules import best_rule, key_words

_SHOWN_ELEMENTS = 4096
_STEM_LETTERS = 5

IN_OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "header_length": ("header too large or too long", "header length runs beyond the end of the file"),
    "truncated_header": ("header cut short, truncated", "header length runs beyond the end of the file"),
    "header_json": ("header is not valid JSON", "header of invalid, damaged JSON"),
    "truncated": ("offsets run beyond the end of the file, out of range", "data offsets out of bounds"),
    "offsets": ("offsets out of range, reversed or invalid",),
    "overlap": ("overlapping offsets, overlapping tensors, data ranges that overlap",),
    "hole": ("a hole, a gap between tensors that no tensor covers",),
    "size_mismatch": ("shape and dtype do not match the byte range of the offsets",),
    "name_prefix": ("two stored names become the same name when the prefix model. is removed",),
    "unknown_dtype": ("an unknown, unsupported dtype",),
    "duplicate_key": ("the same tensor name twice in one header, a duplicate key",),
}
"""What a kind of problem means, as others say it."""
_FILLERS = frozenset(
    "for of in but the a and to per with after dequant before tensor folder list all 240 these at".split()  # noqa: SIM905
)


def answer(facts: CheckpointFacts, key: str) -> Answer | None:
    """Return the ways to answer a key, None where no rule knows its words."""
    fact = best_rule(key_words(key), RULES, _FILLERS)
    return None if fact is None else fact(facts)


def stated(facts: CheckpointFacts, key: str) -> Answer:
    """Return the statements about problems that a key without a rule speaks of: those with one of its words."""
    stems = {word[:_STEM_LETTERS] for word in key.casefold().split("_") if word not in _FILLERS}
    sides = {"expected": "expected", "declared": "expected", "found": "found", "actual": "found"}
    side = next((sides[word] for word in key.casefold().split("_") if word in sides), None)
    said: list[str] = []
    for problem in facts.leading:
        sentence = str(problem) if side is None else str(getattr(problem, side))
        words = re.findall(r"[a-z]+", f"{problem.kind} {sentence}".casefold().replace("_", " "))
        if stems & {word[:_STEM_LETTERS] for word in words}:
            said.append(sentence)
    return (*said, *([said] if len(said) > 1 else []))


def _by_tensor(facts: Mapping[str, object], combined: object = None) -> Answer:
    """Return one value for all tensors where they agree or can be combined, and the values by name."""
    return (*([] if combined is None else [combined]), *_single(facts), dict(facts))


def _single(facts: Mapping[str, object]) -> list[object]:
    values = list(facts.values())
    return values[:1] if values and all(value == values[0] for value in values) else []


def _constant_text(values: torch.Tensor) -> str:
    if values.numel() and bool((values == values.flatten()[0]).all()):
        return f"all {float(values.flatten()[0])}"
    if not values.numel():
        return f"{list(values.shape)}, no elements"
    return f"{list(values.shape)}, from {float(values.min()):g} to {float(values.max()):g}"


def _value_text_or_list(values: torch.Tensor) -> object:
    return values.tolist() if values.numel() <= _SHOWN_ELEMENTS else _constant_text(values)


def _files_at_fault(facts: CheckpointFacts) -> Answer:
    at_fault = unique(problem.file for problem in facts.leading if problem.file)
    shards = sorted(facts.report.contents.shards)
    return (at_fault,) if at_fault else (shards, len(shards))


def _kinds(facts: CheckpointFacts) -> Answer:
    kinds = unique(problem.kind for problem in facts.leading)
    sentences = [str(problem) for problem in facts.leading]
    meant = [phrase for kind in kinds for phrase in IN_OTHER_WORDS.get(kind, ())]
    plain = [kind.replace("_", " ") for kind in kinds]
    return (kinds, plain, sentences, "; ".join(sentences), *kinds, *sentences, *meant)


def _of_shards(attribute: str) -> Callable[[CheckpointFacts], Answer]:
    """Return the fact that a number of each shard is: of those at fault, of all, and all added up."""

    def fact(facts: CheckpointFacts) -> Answer:
        shards = facts.report.contents.shards
        by_file: dict[str, object] = {file: getattr(header, attribute) for file, header in shards.items()}
        at_fault = [by_file[problem.file] for problem in facts.leading if problem.file in by_file]
        return (
            *unique(at_fault),
            by_file,
            *_single(by_file),
            sum(getattr(header, attribute) for header in shards.values()),
        )

    return fact


def _spare_bytes(facts: CheckpointFacts) -> Answer:
    shards = facts.report.contents.shards.values()
    return (sum(max(0, header.present_bytes - header.declared_bytes) for header in shards if header.data_start),)


def _first_bad_tensor(facts: CheckpointFacts) -> Answer:
    return ([next((problem.tensor for problem in facts.leading if problem.tensor), None)],)


def _others_ok(facts: CheckpointFacts) -> Answer:
    at_fault = {problem.file for problem in facts.leading}
    others = {file: header for file, header in facts.report.contents.shards.items() if file not in at_fault}
    return (bool(others) and all(header.ok for header in others.values()), sorted(others))


def _shards_found(facts: CheckpointFacts) -> Answer:
    shards = sorted(facts.report.contents.shards)
    return (len(shards), shards)


def _shards_expected(facts: CheckpointFacts) -> Answer:
    names = sorted({*facts.report.contents.shards, *facts.report.contents.missing_shards})
    return (len(names), names)


def _total_size(facts: CheckpointFacts) -> Answer:
    contents = facts.report.contents
    claimed = contents.index.total_size if contents.index is not None else None
    return ({"index": claimed, "actual": contents.total_size}, contents.total_size)


def _duplicates(facts: CheckpointFacts) -> Answer:
    records: list[object] = [
        {
            "tensor": item.tensor,
            "files": list(item.files),
            "used": f"{item.used} (index)" if item.used else "none: nothing says which is meant",
        }
        for item in facts.report.contents.duplicates
    ]
    return (records, [item.tensor for item in facts.report.contents.duplicates], *facts.of_kind("name_prefix"))


def _wrong_shard(facts: CheckpointFacts) -> Answer:
    found = facts.report.contents.wrong_shard
    records = [
        {"tensor": item.tensor, "index_says": item.index_says, "found_in": list(item.found_in)} for item in found
    ]
    return (records, [item.tensor for item in found])


def _duplicate_keys(facts: CheckpointFacts) -> Answer:
    index = facts.report.contents.index
    in_index = list(index.repeated_keys) if index is not None else []
    in_headers = [
        name
        for header in facts.report.contents.shards.values()
        for name, problem in header.damaged.items()
        if problem.kind == "duplicate_key"
    ]
    return ([*in_index, *in_headers], *facts.of_kind("duplicate_key"))


def _paths_outside(facts: CheckpointFacts) -> Answer:
    index = facts.report.contents.index
    return (list(index.paths_outside) if index is not None else [],)


def _missing_tensors(facts: CheckpointFacts) -> Answer:
    contents = facts.report.contents
    in_missing = [name for name, problem in facts.checkpoint.damaged.items() if problem.kind == "missing_shard"]
    return (sorted({*in_missing, *contents.ghosts}), list(contents.ghosts), in_missing)


def _index(facts: CheckpointFacts) -> Answer:
    contents = facts.report.contents
    if contents.index is None:
        numbered = "numbered, complete" if not contents.missing_shards else "numbered, incomplete"
        found, wanted = len(contents.shards), len(contents.shards) + len(contents.missing_shards)
        return (
            f"absent: shards found by their names (pattern *.safetensors, {numbered})",
            f"absent: the names say {wanted} shards, {found} are there",
            None,
        )
    return (contents.index.file, f"present: {contents.index.file}", f"used: {contents.index.file}, the authority")


def _blocks(facts: CheckpointFacts) -> Answer:
    return _by_tensor({name: list(pair.block) for name, pair in facts.quantized.items()})


def _scale_values(facts: CheckpointFacts) -> Answer:
    return _by_tensor({name: scale.tolist() for name, scale in facts.scales.items()})


def _dequantized_blocks(facts: CheckpointFacts) -> Answer:
    """Say whether each tile of each weight is one number, and whether that number is the tile's scale."""
    constant, equal = True, True
    for name, values in facts.dequantized.items():
        rows, columns = facts.quantized[name].block
        numbers = facts.scales[name].repeat_interleave(rows, 0)[: values.shape[0]]
        numbers = numbers.repeat_interleave(columns, 1)[:, : values.shape[1]]
        first = values[::rows, ::columns].repeat_interleave(rows, 0)[: values.shape[0]]
        first = first.repeat_interleave(columns, 1)[:, : values.shape[1]]
        constant = constant and torch.equal(values, first)
        equal = equal and torch.equal(values, numbers)
    blocks = unique(f"{rows}x{columns}" for rows, columns in (pair.block for pair in facts.quantized.values()))
    stems = ", ".join(name.removesuffix(".weight") for name in facts.quantized)
    state = "is constant" if constant else "is not constant"
    relation = "and equal to its scale" if equal else "and differs from its scale"
    return (f"each {' or '.join(blocks)} block of {stems} {state} {relation}",)


def _dequantized_values(facts: CheckpointFacts) -> Answer:
    return _by_tensor({name: _value_text_or_list(values) for name, values in facts.dequantized.items()})


def _stored_values(facts: CheckpointFacts) -> Answer:
    numbers: dict[str, torch.Tensor] = {}
    for name, entry in facts.checkpoint.entries.items():
        if name in facts.dequantized:
            numbers[name] = facts.dequantized[name]
        elif entry.torch_dtype.is_floating_point and entry.dtype not in ("F4", "F8_E8M0"):
            numbers[name] = facts.checkpoint.read(name).to(torch.float32)
        elif entry.dtype not in ("F4", "F8_E8M0"):
            numbers[name] = facts.checkpoint.read(name)
    texts = {name: _constant_text(values) for name, values in numbers.items()}
    return (texts, {name: _value_text_or_list(values) for name, values in numbers.items()})


def _max_abs(facts: CheckpointFacts) -> Answer:
    return _by_tensor(
        {report.name: report.max_abs for report in facts.values},
        max((report.max_abs for report in facts.values), default=None),
    )


def _above_count(facts: CheckpointFacts) -> Answer:
    return _by_tensor(
        {report.name: report.above_device_count for report in facts.values},
        sum(report.above_device_count for report in facts.values),
    )


def _element_count(facts: CheckpointFacts) -> Answer:
    return _by_tensor(
        {report.name: report.element_count for report in facts.values},
        sum(report.element_count for report in facts.values),
    )


def _above_codes(facts: CheckpointFacts) -> Answer:
    codes = unique(code for report in facts.values for code in report.above_device_codes)
    numbers = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).tolist()
    return ([f"0x{code:02x} ({number:g})" for code, number in zip(codes, numbers, strict=True)], list(codes), numbers)


def _exact_fix(facts: CheckpointFacts) -> Answer:
    fixes = [report.fix for report in facts.values if report.fix is not None]
    sentences = [str(fix) for fix in fixes]
    return ("; ".join(sentences), sentences, bool(fixes) and all(fix.exact for fix in fixes))


def _after_fix(facts: CheckpointFacts) -> Answer:
    after = {
        report.name: {"max_abs": report.fix.max_abs, "scale": report.fix.scale, "tiles": report.fix.tile_count}
        for report in facts.values
        if report.fix is not None
    }
    return _by_tensor(after)


def _nan_places(attribute: str, of_scale: bool) -> Callable[[CheckpointFacts], Answer]:
    def fact(facts: CheckpointFacts) -> Answer:
        places: list[dict[str, object]] = []
        for report in facts.values:
            name = facts.quantized[report.name].scale.name if of_scale else report.name
            places += [{"tensor": name, "index": list(index)} for index in getattr(report, attribute)]
        if not of_scale:
            places += [{"tensor": item.name, "index": list(at)} for item in facts.nonfinite for at in item.indices]
        return (places, unique(str(place["tensor"]) for place in places), len(places))

    return fact


def _nan_count(facts: CheckpointFacts) -> Answer:
    return _by_tensor(
        {report.name: report.nan_element_count for report in facts.values},
        sum(report.nan_element_count for report in facts.values),
    )


def _missing_scales(facts: CheckpointFacts) -> Answer:
    return facts.of_kind("missing_scale")


def _sound(facts: CheckpointFacts) -> Answer:
    """Return what reads well: quantised weights, all tensors, shards."""
    sound_shards = sorted(file for file, header in facts.report.contents.shards.items() if header.ok)
    readable = sorted(facts.checkpoint.entries.keys() - facts.checkpoint.pairing.refused.keys())
    return (sorted(facts.quantized), readable, sound_shards, facts.outcome in ("load", "warn"))


def _names(facts: CheckpointFacts) -> Answer:
    """Return the tensors there are, and those at fault: of an overlap both, of a bad scale its weight."""
    names = list(facts.checkpoint.entries)
    at_fault = unique(problem.tensor for problem in facts.leading if problem.tensor)
    lost = facts.lost_tensors
    return (names, len(names), *([at_fault] if at_fault else []), *([lost] if lost else []))


def _stored_names(facts: CheckpointFacts) -> Answer:
    stored = {entry.stored_name or name: name for name, entry in facts.checkpoint.entries.items()}
    renamed = {written: name for written, name in stored.items() if written != name}
    return (renamed, list(renamed), "model." if renamed else None, bool(renamed), stored)


def _by_tensor_or_weight(facts: CheckpointFacts, of_all: dict[str, object]) -> Answer:
    """Return a value by tensor, and without the scales, which a case that speaks of its weights leaves out."""
    scales = {pair.scale.name for pair in facts.quantized.values()}
    return (*_by_tensor(of_all), *_single({name: value for name, value in of_all.items() if name not in scales}))


def _dtypes(facts: CheckpointFacts) -> Answer:
    dtypes: dict[str, object] = {name: entry.dtype for name, entry in facts.checkpoint.entries.items()}
    return (*_by_tensor_or_weight(facts, dtypes), sorted({str(dtype) for dtype in dtypes.values()}))


def _shapes(facts: CheckpointFacts) -> Answer:
    return _by_tensor_or_weight(facts, {name: list(entry.shape) for name, entry in facts.checkpoint.entries.items()})


def _scalars(facts: CheckpointFacts) -> Answer:
    scalars = [name for name, entry in facts.checkpoint.entries.items() if not entry.shape]
    return (scalars, len(scalars))


def _quantized(facts: CheckpointFacts) -> Answer:
    names = sorted(facts.quantized)
    return (names, len(names), bool(names))


def _pairs(facts: CheckpointFacts) -> Answer:
    """Return the scale of every weight; where one does not fit, its name too."""
    pairs: dict[str, object] = {name: pair.scale.name for name, pair in facts.quantized.items()}
    bad = [problem.tensor for problem in facts.problems if problem.tensor and problem.kind.startswith("scale_")]
    return (*_by_tensor(pairs), list(pairs.values()), *([bad] if bad else []))


def _last_blocks(facts: CheckpointFacts) -> Answer:
    """Return the rows and columns that the last tile of every weight really has."""
    return _by_tensor(
        {
            name: [(size - 1) % step + 1 if size else 0 for size, step in zip(pair.shape, pair.block, strict=True)]
            for name, pair in facts.quantized.items()
        }
    )


def _scale_elsewhere(facts: CheckpointFacts) -> Answer:
    scales = {problem.tensor for problem in facts.problems if problem.kind == "scale_in_other_shard"}
    weights = [name for name, pair in facts.quantized.items() if pair.scale.name in scales]
    return (weights, *facts.of_kind("scale_in_other_shard"))


def _side_of_dtype(side: str) -> Callable[[CheckpointFacts], Answer]:
    def fact(facts: CheckpointFacts) -> Answer:
        kinds = ("wrong_dtype", "scale_dtype", "unknown_dtype")
        sides = [str(getattr(problem, side)) for problem in facts.problems if problem.kind in kinds]
        return (sides, *sides)

    return fact


def _element_shapes(facts: CheckpointFacts) -> Answer:
    return _by_tensor({name: list(pair.shape) for name, pair in facts.quantized.items()})


def _scale_shapes(facts: CheckpointFacts) -> Answer:
    shapes = {pair.scale.name: list(pair.scale.shape) for pair in facts.quantized.values()}
    refused = facts.of_kind("scale_shape")
    return (*refused, *_by_tensor(shapes), *_by_tensor({n: list(p.scale.shape) for n, p in facts.quantized.items()}))


def _side_of(kind: str, side: str) -> Callable[[CheckpointFacts], Answer]:
    def fact(facts: CheckpointFacts) -> Answer:
        sides = [str(getattr(problem, side)) for problem in facts.problems if problem.kind == kind]
        return (sides, *sides)

    return fact


def _scale_dtypes(facts: CheckpointFacts) -> Answer:
    dtypes = {pair.scale.name: pair.scale.dtype for pair in facts.quantized.values()}
    return (*facts.of_kind("scale_dtype"), *_by_tensor(dtypes))


def _first_values(facts: CheckpointFacts) -> Answer:
    """Return the first row of every matrix that is or becomes float32 numbers."""
    return _by_tensor({name: values[0].tolist() for name, values in facts.dequantized.items() if values.shape[0]})


def _tile_grid(facts: CheckpointFacts) -> Answer:
    return _by_tensor({name: list(numbers.shape) for name, numbers in facts.scales.items()})


def _nibbles(facts: CheckpointFacts) -> Answer:
    packed = _packed(facts)[0]
    return (f"low nibble first: low nibble = even column, high nibble = odd column, in {packed}",)


def _packed(facts: CheckpointFacts) -> Answer:
    packed = [name for name, pair in facts.quantized.items() if pair.packed]
    return (packed, bool(packed))


def _empty_tensors(facts: CheckpointFacts) -> Answer:
    empty = [name for name, entry in facts.checkpoint.entries.items() if entry.element_count == 0]
    return (empty, len(empty))


def _overlaps(facts: CheckpointFacts) -> Answer:
    pairs: list[list[str]] = []
    for header in facts.report.contents.shards.values():
        hit = [problem.tensor for problem in header.problems if problem.kind == "overlap"]
        partners = [name for name, problem in header.damaged.items() if problem.kind == "overlap" and name not in hit]
        pairs += [sorted(filter(None, [*hit, *partners]))] if hit else []
    flat = [name for pair in pairs for name in pair]
    return (flat, pairs, *facts.of_kind("overlap"))


def _kind(*kinds: str) -> Callable[[CheckpointFacts], Answer]:
    return lambda facts: facts.of_kind(*kinds)


def _severity(severity: str) -> Callable[[CheckpointFacts], Answer]:
    def fact(facts: CheckpointFacts) -> Answer:
        found = [problem for problem in facts.problems if problem.severity == severity]
        sentences = [str(problem) for problem in found]
        return (sentences, "; ".join(sentences), [problem.kind for problem in found], len(found))

    return fact


def _remedies(facts: CheckpointFacts) -> Answer:
    remedies = unique(problem.remedy for problem in facts.leading)
    return (remedies, "; ".join(remedies))


def _message(facts: CheckpointFacts) -> Answer:
    return (facts.message(), [str(problem) for problem in facts.problems])


RULES: tuple[tuple[str, Callable[[CheckpointFacts], Answer]], ...] = (
    ("file|shard", _files_at_fault),
    ("file|shard bad|broken|damaged|truncated|affected|faulty|corrupt", _files_at_fault),
    ("problem|kind|reason|fault|cause", _kinds),
    ("missing byte", _of_shards("missing_bytes")),
    ("extra|spare|trailing|surplus byte", _spare_bytes),
    ("first bad|damaged|broken|cut|affected", _first_bad_tensor),
    ("bad|damaged|broken|unreadable|affected|lost|unavailable|refused|corrupt|unusable", lambda f: (f.lost_tensors,)),
    ("other ok|fine|sound|good", _others_ok),
    ("other shard|file ok|fine|sound|good", _others_ok),
    ("byte declared data", _of_shards("declared_bytes")),
    ("byte present|actual data", _of_shards("present_bytes")),
    ("header byte|length|len|size", _of_shards("header_bytes")),
    ("header byte|length|len|size declared|claimed|claim|say", _of_shards("header_bytes")),
    ("header limit|max|maximum|allowed", lambda _: (MAX_HEADER_BYTES,)),
    ("header limit|max|maximum|allowed byte|length|len|size", lambda _: (MAX_HEADER_BYTES,)),
    ("file|actual byte|size", _of_shards("file_bytes")),
    ("wrong|misplaced shard|file", _wrong_shard),
    ("index nowhere", lambda f: (list(f.report.contents.ghosts),)),
    ("ghost", lambda f: (list(f.report.contents.ghosts),)),
    ("file|shard not index", lambda f: (list(f.report.contents.unindexed),)),
    ("unindexed", lambda f: (list(f.report.contents.unindexed),)),
    ("unindexed|unused|stale|unlisted|extra shard|file", _kind("unindexed_shard")),
    ("total size|byte", _total_size),
    ("duplicate|duplicated", _duplicates),
    ("duplicate|duplicated|repeated key", _duplicate_keys),
    ("path outside", _paths_outside),
    ("link|symlink outside", _kind("link_outside_folder")),
    ("missing|absent shard|file", lambda f: (list(f.report.contents.missing_shards),)),
    ("missing|absent tensor", _missing_tensors),
    ("index", _index),
    ("index used|name|file", _index),
    ("block|tile", _blocks),
    ("block|tile size|shape", _blocks),
    ("scale value", _scale_values),
    ("dequantized block value", _dequantized_blocks),
    ("dequantized", _dequantized_values),
    ("dequantized value", _dequantized_values),
    ("value", _stored_values),
    ("ambiguous", _kind("ambiguous_scale")),
    ("max abs", _max_abs),
    ("count above", _above_count),
    ("element", _element_count),
    ("byte|code above", _above_codes),
    ("exact fix", _exact_fix),
    ("after fix", _after_fix),
    ("nan scale", _nan_places("nan_scale_indices", of_scale=True)),
    ("nan value|weight", _nan_places("nan_value_indices", of_scale=False)),
    ("nan element", _nan_count),
    ("missing scale", _missing_scales),
    ("without scale", _missing_scales),
    ("scale shape", _scale_shapes),
    ("scale shape wrong|bad", _kind("scale_shape")),
    ("scale shape expected|needed", _side_of("scale_shape", "expected")),
    ("scale shape found|actual", _side_of("scale_shape", "found")),
    ("scale dtype", _scale_dtypes),
    ("scale dtype wrong|bad", _kind("scale_dtype")),
    ("scale dtype expected|needed", _side_of("scale_dtype", "expected")),
    ("scale dtype found|actual", _side_of("scale_dtype", "found")),
    ("scale orphan|unused|stray", _kind("scale_without_weight")),
    ("scale without weight", _kind("scale_without_weight")),
    ("scale other|another|different shard|file", _scale_elsewhere),
    ("ok|sound|readable|fine|loadable|good", _sound),
    ("tensor", _names),
    ("tensor name", _names),
    ("prefix|renamed|alias", _stored_names),
    ("name", _stored_names),
    ("dtype", _dtypes),
    ("shape", _shapes),
    ("shape stored", _shapes),
    ("shape logical|element|unpacked|dequantized", _element_shapes),
    ("packed", _packed),
    ("nibble", _nibbles),
    ("nibble order|low|first", _nibbles),
    ("first row|value", _first_values),
    ("first row value", _first_values),
    ("dequantized first row|value", _first_values),
    ("dequantized first row value", _first_values),
    ("shard|file found|present|there", _shards_found),
    ("shard|file expected|needed|declared", _shards_expected),
    ("data byte", lambda f: (*_of_shards("present_bytes")(f), *_of_shards("declared_bytes")(f))),
    ("extra|unexpected|unlisted|unknown|surplus tensor", lambda f: (list(f.report.contents.unindexed),)),
    ("scalar", _scalars),
    ("scalar tensor", _scalars),
    ("quantized", _quantized),
    ("quantized weight|tensor", _quantized),
    ("scale", _pairs),
    ("scale name|tensor", _pairs),
    ("pair", _pairs),
    ("weight scale pair", _pairs),
    ("last|edge|ragged|partial block|tile", _last_blocks),
    ("last|edge|ragged|partial block|tile size|shape", _last_blocks),
    ("dtype expected|needed", _side_of_dtype("expected")),
    ("dtype found|actual", _side_of_dtype("found")),
    ("tile|block grid|count", _tile_grid),
    ("empty|zero tensor|size|sized", _empty_tensors),
    ("empty|zero file|shard", _kind("empty_file")),
    ("overlap|overlapping", _overlaps),
    ("out range|bound", _kind("offsets", "truncated")),
    ("hole|gap|uncovered", _kind("hole")),
    ("mismatch size|byte", _kind("size_mismatch")),
    ("unknown dtype", _kind("unknown_dtype")),
    ("wrong|unexpected dtype", _kind("wrong_dtype", "scale_dtype", "unknown_dtype")),
    ("wrong|bad shape", _kind("wrong_shape", "scale_shape", "shape", "size_mismatch")),
    ("lfs|lf|pointer", _kind("lfs_pointer")),
    ("lfs|lf pointer", _kind("lfs_pointer")),
    ("metadata", _kind("metadata")),
    ("error", _severity("error")),
    ("warning|warn", _severity("warning")),
    ("note", _severity("note")),
    ("remedy|advice", _remedies),
    ("message|say|mention", _message),
    ("error message|mention|name|say", _message),
)
"""Words of a key (alternatives with `|`) and the fact they ask for; the rule with most words wins."""
