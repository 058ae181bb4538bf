"""Factories that write cache rows and read them back: the fused store pipeline, store, and load by segments."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.cache_records import (
    FP4_INDEX,
    FP4_MAIN,
    FP8_INDEX,
    FP8_MAIN,
    RecordFormat,
    decode_rows,
    encode_rows,
    read_slots,
    write_slots,
)
from port.kernels.paged_copy import segment_slots
from port.kernels.row_pipeline import prepare_rows
from port.tilelang_ops.neuron.arguments import CODES, Arguments, at_least
from port.tilelang_ops.neuron.scales import scale_dtype, write_codes, write_exponents

LAYOUTS: dict[str, RecordFormat] = {form.name: form for form in (FP4_MAIN, FP8_MAIN, FP4_INDEX, FP8_INDEX)}
"""What `layout` and `cast` name: the formats of `port/kernels/cache_records.py`."""

Output = Literal["bf16", "quant", "store"]
Tap = Literal["norm", "transforms", "round_trip"]

_BF16, _INT32 = torch.bfloat16, torch.int32


def fused_norm_rope_hadamard_cast_store_kvcache_tl(
    num_heads: int,
    head_dim: int,
    *,
    has_norm: bool = False,
    eps: float = 1e-20,
    has_rope: bool = False,
    rope_dim: int = 0,
    rope_offset: int | None = None,
    conjugate: bool = False,
    has_hadamard: bool = False,
    cast: str | None = None,
    output: Output = "bf16",
    tap: Tap | None = None,
) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return the pipeline norm → rotation → cast → output: `(x, weight, positions, cos_sin) → outputs`.

    Args:
        num_heads: heads of `x` [n, heads, head_dim]; with 1, `x` may be [n, head_dim] too.
        head_dim: channels of a row; the norm is over one head.
        has_norm: RMSNorm with `weight` [head_dim], None otherwise.
        eps: of the norm.
        has_rope: turn `rope_dim` channels to `positions` int32 [n]; `cos_sin` is float32 [positions, rope_dim],
            cosines then sines.
        rope_dim: channels that turn.
        rope_offset: the first of them; the last `rope_dim` channels when None.
        conjugate: turn back.
        has_hadamard: False; the model has no Hadamard stage.
        cast: name of the cache format rows are cast to, or None.
        output: "bf16": one output, the rows, after the cast and back where there is a cast. "quant": codes, and scales.
            "store": `kv_cache` and `slot_mapping` int32 [n]; slot -1 stores nothing.
        tap: one more bf16 output, shaped as `x`: rows after the norm, after the transforms, or after the cast and
            back.

    Raises:
        NotImplementedError: `has_hadamard`.
        ValueError: options that do not go together.
    """
    name = "fused_norm_rope_hadamard_cast_store_kvcache_tl"
    at_least(name, 1, num_heads=num_heads, head_dim=head_dim)
    if has_hadamard:
        raise NotImplementedError(f"{name}: the model has no Hadamard stage; use has_hadamard=False.")
    form = None if cast is None else _layout(name, "cast", cast)
    offset = head_dim - rope_dim if rope_offset is None else rope_offset
    _check_options(name, head_dim, has_rope, rope_dim, offset, form, num_heads, output, tap)
    fp8_max, packed = _fp8_max(), scale_dtype()

    def kernel(
        x: Tensor,
        weight: Tensor | None,
        positions: Tensor | None,
        cos_sin: Tensor | None,
        first: Tensor,
        second: Tensor | None = None,
        tapped: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        given = Arguments(name)
        lead = ("n",) if x.ndim == 2 and num_heads == 1 else ("n", num_heads)
        given.check("x", x, _BF16, (*lead, head_dim), strided=True)
        given.present("weight", weight, has_norm, f"has_norm is {has_norm}")
        given.present("positions", positions, has_rope, f"has_rope is {has_rope}")
        given.present("cos_sin", cos_sin, has_rope, f"has_rope is {has_rope}")
        given.present("second", second, output != "bf16", f"output is {output!r}")
        given.present("tapped", tapped, tap is not None, f"tap is {tap!r}")
        if weight is not None:
            given.check("weight", weight, (_BF16, torch.float32), (head_dim,))
        rotation = None
        if positions is not None and cos_sin is not None:
            given.check("positions", positions, _INT32, ("n",))
            given.check("cos_sin", cos_sin, torch.float32, ("p", rope_dim), strided=True)
            cosine, sine = F.embedding(positions, cos_sin).chunk(2, dim=-1)
            rotation = cosine, sine
        rows = prepare_rows(x, weight, rotation, eps=eps, rotary_offset=offset, inverse=conjugate)
        stages = {"norm": rows.normed, "transforms": rows.turned}
        if form is not None:
            data, scale = encode_rows(rows.turned, form, fp8_max=fp8_max)
            if output == "bf16" or tap == "round_trip":
                stages["round_trip"] = decode_rows(data, scale, form)
            if output == "quant" and second is not None:
                given.check("out_quant", first, CODES, (*lead, form.data_bytes(head_dim)), strided=True)
                _write_rows(given, first, second, data, scale, form, packed, (*lead, form.scale_bytes(head_dim)))
            elif output == "store" and second is not None:
                given.check("slot_mapping", second, _INT32, ("n",))
                _check_cache(given, "kv_cache", first, form, head_dim, None)
                write_slots(first, second, data.flatten(0, -2), scale.flatten(0, -2), form)
        if output == "bf16":
            given.check("out_bf16", first, _BF16, (*lead, head_dim), strided=True)
            first.copy_(rows.turned if form is None else stages["round_trip"])
        if tapped is not None and tap is not None:
            given.check("tapped", tapped, _BF16, (*lead, head_dim), strided=True)
            tapped.copy_(stages[tap])
        outputs = tuple(tensor for tensor in (first, second, tapped) if tensor is not None)
        return outputs[0] if len(outputs) == 1 else outputs

    return kernel


def store_kv_cache_tl(layout: str, block_size: int, *tuning: int) -> Callable[..., Tensor]:
    """Return a kernel that casts rows and stores them: `(kv bf16 [n, D], cache, slots [n])` → cache; -1 is skipped.

    Args:
        layout: name of the cache format.
        block_size: entries of a block.
        tuning: figures that shape the device kernel of other back ends; they change no result.
    """
    name = "store_kv_cache_tl"
    form = _layout(name, "layout", layout)
    at_least(name, 1, block_size=block_size)
    fp8_max = _fp8_max()

    def kernel(kv: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("kv", kv, _BF16, ("n", "D"), strided=True)
        given.check("slots", slots, _INT32, ("n",))
        _check_cache(given, "cache", cache, form, kv.shape[1], block_size)
        data, scale = encode_rows(kv, form, fp8_max=fp8_max)
        write_slots(cache, slots, data, scale, form)
        return cache

    return kernel


def load_paged_kv_cache_tl(
    layout: str,
    block_size: int,
    fp4_strides: tuple[int, ...] | None = None,
    index_batch_size: int = 0,
) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return a kernel that copies block ranges into a line: `(segments [s, 4], cache) → values` or `values, scales`.

    A segment is (block or -1 for zeros, first entry, entry after the last, first row of the line); rows that no
    segment covers keep what they hold. Main and window formats come as bf16 [total, D]; index formats as codes
    [total, bytes] with packed scales. For prefill: not for decode graphs.

    Args:
        layout: name of the cache format.
        block_size: entries of a block, or slots of a window ring.
        fp4_strides: the cache's strides, where the kernel is made for one arrangement; None takes any.
        index_batch_size: tuning of other back ends; it changes no result.
    """
    name = "load_paged_kv_cache_tl"
    form = _layout(name, "layout", layout)
    at_least(name, 1, block_size=block_size)
    at_least(name, 0, index_batch_size=index_batch_size)
    packed = scale_dtype()

    def kernel(
        segments: Tensor, cache: Tensor, values: Tensor, scales: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        given = Arguments(name)
        given.check("segments", segments, _INT32, ("s", 4))
        given.present("scales", scales, form.planar, f"layout is {layout!r}")
        width = form.width_of(cache.shape[-1])
        _check_cache(given, "cache", cache, form, width, block_size)
        if fp4_strides is not None and tuple(cache.stride()) != tuple(fp4_strides):
            raise ValueError(f"{name}: cache: expected strides {fp4_strides}; found {tuple(cache.stride())}.")
        slot, covered = segment_slots(segments, rows=values.shape[0], entries_per_block=block_size)
        data, scale = read_slots(cache, slot, form)
        covered = covered.unsqueeze(-1)
        if scales is None:
            given.check("values", values, _BF16, ("total", width), strided=True)
            return values.copy_(torch.where(covered, decode_rows(data, scale, form), values))
        given.check("values", values, CODES, ("total", form.data_bytes(width)), strided=True)
        given.check("scales", scales, packed, ("total", form.scale_bytes(width) // packed.itemsize), strided=True)
        write_codes(values, torch.where(covered, data, values.view(torch.uint8)))
        scales.copy_(torch.where(covered, scale.view(packed), scales))
        return values, scales

    return kernel


def _layout(kernel: str, argument: str, name: str) -> RecordFormat:
    if name not in LAYOUTS:
        raise ValueError(f"{kernel}: {argument}: expected one of {', '.join(LAYOUTS)}; found {name!r}.")
    return LAYOUTS[name]


def _fp8_max() -> float:
    from port.platform import PLATFORM

    return PLATFORM.fp8_max


def _check_options(
    kernel: str,
    head_dim: int,
    has_rope: bool,
    rope_dim: int,
    offset: int,
    form: RecordFormat | None,
    heads: int,
    output: str,
    tap: str | None,
) -> None:
    problems = []
    if output not in ("bf16", "quant", "store"):
        problems.append(f"output is bf16, quant or store; found {output!r}")
    if tap not in (None, "norm", "transforms", "round_trip"):
        problems.append(f"tap is None, norm, transforms or round_trip; found {tap!r}")
    if form is None and (output in ("quant", "store") or tap == "round_trip"):
        problems.append(f"output {output!r} with tap {tap!r} needs a cast; found cast=None")
    if output == "store" and heads != 1:
        problems.append(f"a cache row is one head; found num_heads={heads}")
    if has_rope != (rope_dim > 0) or rope_dim % 2 or not 0 <= offset <= head_dim - rope_dim:
        problems.append(
            f"has_rope goes with an even rope_dim that lies inside {head_dim} channels; "
            f"found has_rope={has_rope}, rope_dim={rope_dim}, rope_offset={offset}"
        )
    if problems:
        raise ValueError(f"{kernel}: {'; '.join(problems)}.")


def _check_cache(
    given: Arguments, name: str, cache: Tensor, form: RecordFormat, width: int, block_size: int | None
) -> None:
    entries = "entries" if block_size is None else block_size
    given.check(name, cache, torch.uint8, ("blocks", entries, 1, form.record_bytes(width)), strided=True)


def _write_rows(
    given: Arguments,
    codes: Tensor,
    scales: Tensor,
    data: Tensor,
    scale: Tensor,
    form: RecordFormat,
    packed: torch.dtype,
    shape: tuple[int | str, ...],
) -> None:
    """Write codes and scales: E8M0 packed, E4M3 as they are."""
    write_codes(codes, data)
    if form.scale == "e8m0":
        *lead, columns = shape
        assert isinstance(columns, int), "a row has a known number of scales"
        given.check("out_sf", scales, packed, (*lead, columns // packed.itemsize), strided=True)
        write_exponents(scales, scale)
    else:
        given.check("out_sf", scales, CODES, shape, strided=True)
        write_codes(scales, scale)
