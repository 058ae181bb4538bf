"""Which scale belongs to which weight, and how many elements share one scale number: read off names, shapes and dtypes.

| weight | scale | meaning |
|---|---|---|
| F8_E4M3 or F8_E5M2 [N, K] | [ceil(N/a), ceil(K/b)] | one per a x b tile; release: 32 x 32, Engram tables 1 x 32 |
| I8 or U8 [N, K/2], F4 [N, K] | [N, K/b] | two codes a byte along K, one number per row and b columns |

A scale is F8_E8M0 (powers of two), F32/BF16/F16 (the number itself), or U8. Plain U8 could be either raw exponent
bytes or small integers; it is read as exponent bytes, because that is what converters without an E8M0 type write, and
a note says so. Copying an exponent byte as a number gives 120.0 for 2**-7: fluent garbage and no error.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from port.checkpoint.entries import TensorEntry
from port.checkpoint.problems import Problem

ScaleKind = Literal["exponent", "exponent_bytes", "number"]

_FP8 = ("F8_E4M3", "F8_E5M2")
_BYTES = ("I8", "U8")
_NUMBERS = ("F32", "BF16", "F16", "F64")
_SCALE_KINDS: dict[str, ScaleKind] = {
    "F8_E8M0": "exponent",
    "U8": "exponent_bytes",
    **dict.fromkeys(_NUMBERS, "number"),
}
_SCALE_ENDINGS = (".scale", ".weight_scale_inv", ".weight_scale", ".scale_inv", "_scale_inv", "_scale")
_SURE_ENDINGS = (".scale", ".weight_scale_inv", ".weight_scale")
_FP4_GROUPS = (16, 32)
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedEntry:
    """A stored weight together with its scale.

    Attributes:
        name: of the weight.
        weight, scale: the two stored tensors.
        shape: of the weight in elements; twice the stored columns where two codes share a byte.
        block: rows and columns that share one scale number. An axis with a single scale has the size of the axis.
        packed: whether two FP4 codes share a byte.
        scale_kind: "exponent" (E8M0), "exponent_bytes" (plain U8, read as exponents), "number".
    """

    name: str
    weight: TensorEntry
    scale: TensorEntry
    shape: tuple[int, int]
    block: tuple[int, int]
    packed: bool
    scale_kind: ScaleKind

    @property
    def nbytes(self) -> int:
        """Bytes stored for both."""
        return self.weight.nbytes + self.scale.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """All quantised weights of a checkpoint.

    Attributes:
        quantized: by the name of the weight; only pairs whose shapes and dtypes fit.
        refused: weights that cannot be dequantised, with the reason.
        problems: what is wrong or worth knowing; an error here concerns one tensor, not the whole checkpoint.
    """

    quantized: Mapping[str, QuantizedEntry]
    refused: Mapping[str, Problem]
    problems: tuple[Problem, ...]


def pair_scales(
    entries: Mapping[str, TensorEntry],
    *,
    block: tuple[int, int] | None = None,
    unreadable: Collection[str] = (),
) -> Pairing:
    """Return every quantised weight with its scale.

    Args:
        entries: all tensors, by name.
        block: rows and columns of a tile, where a configuration says so; otherwise the shapes decide.
        unreadable: names that exist but are damaged; their partners are not reported a second time.
    """
    quantized: dict[str, QuantizedEntry] = {}
    refused: dict[str, Problem] = {}
    problems: list[Problem] = []
    scales = _scales_by_weight(entries)
    for name, entry in entries.items():
        scale = scales.get(name)
        if scale is None:
            if _needs_scale(entry, name in scales):
                problem = refused[name] = _missing_scale(entry)
                problems.append(problem)
            continue
        if not _is_quantized_pair(entry, scale):
            continue
        outcome = pair(entry, scale, block=block)
        if isinstance(outcome, Problem):
            refused[name] = outcome
            problems.append(outcome)
            continue
        quantized[name] = outcome
        problems.extend(_notes(outcome))
    weights_with_scale = {scale.name for scale in scales.values()}
    for name, entry in entries.items():
        if name.endswith(_SURE_ENDINGS) and name not in weights_with_scale and entry.dtype in _SCALE_KINDS:
            stem = name[: -len(next(ending for ending in _SURE_ENDINGS if name.endswith(ending)))]
            if stem + _WEIGHT not in unreadable and stem not in unreadable:
                problems.append(_orphan_scale(entry))
    return Pairing(quantized=quantized, refused=refused, problems=tuple(problems))


def pair(weight: TensorEntry, scale: TensorEntry, *, block: tuple[int, int] | None = None) -> QuantizedEntry | Problem:
    """Return weight and scale as one entry, or the problem that keeps them apart."""
    if weight.dtype not in (*_FP8, *_BYTES, "F4"):
        return Problem(
            kind="wrong_dtype",
            file=weight.file,
            tensor=weight.name,
            expected=f"FP8 or packed FP4, because {scale.name} is stored too",
            found=f"{weight.dtype}{list(weight.shape)}, which looks dequantised already",
            remedy="Applying the scale again would be wrong. Use the quantised release, or remove the stale scale.",
        )
    kind = _SCALE_KINDS.get(scale.dtype)
    if kind is None:
        return _scale_problem("scale_dtype", weight, scale, "a scale of F8_E8M0, F32 or U8", scale.dtype)
    packed = weight.dtype == "F4" or weight.dtype in _BYTES
    if len(weight.shape) != 2 or len(scale.shape) > 2:
        found = f"{list(weight.shape)} and {list(scale.shape)}"
        return _scale_problem("scale_shape", weight, scale, "a matrix and a scale of two axes", found)
    rows, stored_columns = weight.shape
    columns = stored_columns * 2 if weight.dtype in _BYTES else stored_columns
    grid = _grid(scale.shape, rows)
    sizes = _packed_block((rows, columns), grid) if packed else _tile_block((rows, columns), grid, block)
    if sizes is None:
        expected = f"a scale of {_wanted((rows, columns), packed=packed, block=block)} for {list((rows, columns))}"
        return _scale_problem("scale_shape", weight, scale, expected, f"{scale.dtype}{list(scale.shape)}")
    return QuantizedEntry(
        name=weight.name,
        weight=weight,
        scale=scale,
        shape=(rows, columns),
        block=sizes,
        packed=packed,
        scale_kind=kind,
    )


def _scales_by_weight(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Return the scale of each weight that has one, by the name of the weight."""
    found: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        for ending in _SCALE_ENDINGS:
            if not name.endswith(ending):
                continue
            stem = name[: -len(ending)]
            weight = next((w for w in (stem + _WEIGHT, stem) if w in entries and w != name), None)
            if weight is not None and not _is_scale_name(weight):
                found.setdefault(weight, entry)
                break
    return found


def _is_quantized_pair(weight: TensorEntry, scale: TensorEntry) -> bool:
    """Return whether a neighbour called `scale` means that a tensor is quantised; plain tensors have such names too."""
    if weight.dtype in (*_FP8, *_BYTES, "F4"):
        return True
    return scale.dtype in ("F8_E8M0", "U8") or (weight.dtype in ("BF16", "F16") and len(scale.shape) == 2)


def _is_scale_name(name: str) -> bool:
    return name.endswith(_SCALE_ENDINGS)


def _needs_scale(entry: TensorEntry, has_scale: bool) -> bool:
    if has_scale or _is_scale_name(entry.name):
        return False
    is_fp8 = entry.dtype in _FP8 and len(entry.shape) == 2
    is_expert = entry.dtype in _BYTES and ".experts." in entry.name and entry.name.endswith(_WEIGHT)
    return is_fp8 or is_expert or entry.dtype == "F4"


def _grid(shape: tuple[int, ...], rows: int) -> tuple[int, int]:
    """Return the shape of a scale as rows and columns; one axis is one number per row, or one for everything."""
    if len(shape) == 2:
        return shape[0], shape[1]
    count = shape[0] if shape else 1
    return (count, 1) if count == rows else (1, count)


def _tile_block(shape: tuple[int, int], grid: tuple[int, int], block: tuple[int, int] | None) -> tuple[int, int] | None:
    if block is not None:
        for sizes in (block, (1, block[1])):
            if grid == (-(-shape[0] // sizes[0]), -(-shape[1] // sizes[1])):
                return sizes
        return None
    rows, columns = _axis_block(shape[0], grid[0]), _axis_block(shape[1], grid[1])
    return None if rows is None or columns is None else (rows, columns)


def _packed_block(shape: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int] | None:
    if grid[0] != shape[0]:
        return None
    for group in reversed(_FP4_GROUPS):
        if grid[1] == -(-shape[1] // group):
            return 1, group
    return None


def _axis_block(size: int, count: int) -> int | None:
    """Return how many elements of an axis share a scale; None when no block size gives that count.

    Powers of two come first: of 160 elements with 2 scales, 128 share one, not 80.
    """
    if count <= 1 or size == 0:
        return max(size, 1) if count == 1 or count == size else None
    smallest = -(-size // count)
    largest = -(-size // (count - 1)) - 1
    if smallest > largest:
        return None
    power = 1 << (smallest - 1).bit_length()
    if power <= largest:
        return power
    return smallest if size % count == 0 or smallest == largest else None


def _wanted(shape: tuple[int, int], *, packed: bool, block: tuple[int, int] | None) -> str:
    if packed:
        return f"[{shape[0]}, {-(-shape[1] // _FP4_GROUPS[-1])}], one per row and {_FP4_GROUPS[-1]} columns,"
    if block is not None:
        grid = [-(-size // part) for size, part in zip(shape, block, strict=True)]
        return f"{grid}, one per {block[0]} x {block[1]} tile,"
    return "one number per tile of equal size"


def _notes(pair: QuantizedEntry) -> list[Problem]:
    notes: list[Problem] = []
    if pair.scale_kind == "exponent_bytes":
        notes.append(
            Problem(
                kind="ambiguous_scale",
                severity="note",
                file=pair.scale.file,
                tensor=pair.scale.name,
                expected="scales as F8_E8M0, or as F32 numbers",
                found="U8, which could be raw exponent bytes or small integers",
                remedy="Read as raw exponent bytes: byte b stands for 2**(b - 127).",
            )
        )
    if pair.scale.file != pair.weight.file:
        notes.append(
            Problem(
                kind="scale_in_other_shard",
                severity="note",
                file=pair.scale.file,
                tensor=pair.scale.name,
                expected=f"it beside its weight in {pair.weight.file}",
                found=f"it in {pair.scale.file}",
                remedy="Both are read; a copy of one shard alone would lack the other half.",
            )
        )
    return notes


def _missing_scale(weight: TensorEntry) -> Problem:
    stem = weight.name.removesuffix(_WEIGHT)
    return Problem(
        kind="missing_scale",
        file=weight.file,
        tensor=weight.name,
        expected=f"a scale {stem}.scale, because {weight.dtype} codes mean nothing without one",
        found="none in any shard",
        remedy="The tensor is not dequantised. Fetch the shard that holds the scale, or convert the weight again.",
    )


def _orphan_scale(scale: TensorEntry) -> Problem:
    return Problem(
        kind="scale_without_weight",
        severity="warning",
        file=scale.file,
        tensor=scale.name,
        expected="a weight it belongs to",
        found="none in any shard",
        remedy="It is not used. Fetch the shard that holds the weight if one is meant.",
    )


def _scale_problem(
    kind: Literal["scale_dtype", "scale_shape"], weight: TensorEntry, scale: TensorEntry, expected: str, found: str
) -> Problem:
    return Problem(
        kind=kind,
        file=scale.file,
        tensor=scale.name,
        expected=f"{expected} (weight {weight.name} is {weight.dtype}{list(weight.shape)})",
        found=found,
        remedy=f"{weight.name} is not dequantised; convert the weight again.",
    )
