"""Slices read from disk equal the whole tensor sliced in memory, for every dtype and on every axis."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
import torch

from port.checkpoint import CheckpointReader, open_checkpoint
from port.checkpoint.dtypes import STORED_DTYPES, STORED_NAME
from port.checkpoint.shard_writer import shard_bytes
from port.errors import CheckpointError
from tests.port.checkpoint.files import write_shard

SHARD = "model.safetensors"
ROWS, COLUMNS = 37, 24
PIECES = [slice(None), slice(0, 4), slice(10, 22), slice(-6, None), slice(8, 8), slice(20, 400)]
DTYPES = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
]


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.empty(shape, dtype=dtype).nbytes
    generator = torch.Generator().manual_seed(0)
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def _store(folder: Path, tensor: torch.Tensor) -> None:
    (folder / SHARD).write_bytes(shard_bytes({"x": tensor}))


def _same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    wanted = wanted.contiguous()
    if found.shape != wanted.shape or found.dtype != wanted.dtype or not found.is_contiguous():
        return False
    return found.numel() == 0 or torch.equal(found.reshape(-1).view(torch.uint8), wanted.view(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_slice_of_a_matrix_equals_read_then_slice(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = _random(dtype, ROWS, COLUMNS)
    _store(tmp_path, whole)
    checkpoint = open_checkpoint(tmp_path)
    assert _same(checkpoint.read("x"), whole)
    with checkpoint.reader() as reader:
        entry = checkpoint.entry("x")
        for rows, columns in product([*PIECES, 5, -1], [*PIECES, 7, -3]):
            assert _same(reader.read_slice(entry, [rows, columns]), whole[rows, columns]), (rows, columns)


@pytest.mark.parametrize("axes", [(), (11,), (5, 6, 7), (3, 4, 5, 6)])
def test_any_number_of_axes(axes: tuple[int, ...], tmp_path: Path) -> None:
    whole = _random(torch.bfloat16, *axes)
    _store(tmp_path, whole)
    checkpoint = open_checkpoint(tmp_path)
    assert _same(checkpoint.read("x"), whole)
    for pieces in product([slice(None), slice(1, 3), 2], repeat=len(axes)):
        assert _same(checkpoint.read_slice("x", pieces), whole[pieces]), pieces


def test_packed_f4_is_sliced_in_elements(tmp_path: Path) -> None:
    codes = _random(torch.uint8, ROWS, COLUMNS // 2)
    write_shard(tmp_path / SHARD, ("x", "F4", [ROWS, COLUMNS], codes.numpy().tobytes()))
    checkpoint = open_checkpoint(tmp_path)
    packed = codes.view(torch.float4_e2m1fn_x2)
    assert _same(checkpoint.read("x"), packed)
    for rows, columns in product(PIECES, PIECES):
        first, last, _ = columns.indices(COLUMNS)
        found = checkpoint.read_slice("x", [rows, columns])
        assert _same(found.view(torch.uint8), codes[rows, first // 2 : last // 2]), (rows, columns)
    with pytest.raises(CheckpointError, match=r"expected borders divisible by 2, because F4 elements share bytes"):
        checkpoint.read_slice("x", [slice(None), slice(1, 4)])
    with pytest.raises(CheckpointError, match=r"found \[3, 4\) of 24"):
        checkpoint.read_slice("x", [0, 3])


def test_every_stored_dtype_comes_back_as_its_own(tmp_path: Path) -> None:
    for dtype, name in STORED_NAME.items():
        if name != "F4":
            whole = _random(torch.uint8, 4, 8 * (STORED_DTYPES[name].bits // 8)).view(-1)
            write_shard(tmp_path / SHARD, ("x", name, [4, 8], whole.numpy().tobytes()))
            found = open_checkpoint(tmp_path).read_slice("x", [slice(1, 3)])
            assert (found.dtype, tuple(found.shape)) == (dtype, (2, 8))


@pytest.mark.parametrize("columns", [slice(0, 3), slice(40, 41), slice(1, None)])
def test_columns_read_through_a_small_window_are_the_same(
    columns: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _random(torch.float32, 900, 50)
    _store(tmp_path, whole)
    monkeypatch.setattr("port.checkpoint.reader.WINDOW_BYTES", 16 << 10)
    checkpoint = open_checkpoint(tmp_path)
    with checkpoint.reader() as reader:
        assert _same(reader.read_slice(checkpoint.entry("x"), [slice(3, 801), columns]), whole[3:801, columns])


def test_only_the_bytes_asked_for_are_read(tmp_path: Path) -> None:
    whole = _random(torch.float32, 1024, 256)
    _store(tmp_path, whole)
    checkpoint = open_checkpoint(tmp_path)
    with checkpoint.reader() as reader:
        reader.read_slice(checkpoint.entry("x"), [slice(128, 256)])
        assert reader.stats.asked_bytes == reader.stats.read_bytes == 128 * 256 * 4
        assert reader.stats.call_count == 1
        reader.read_slice(checkpoint.entry("x"), [slice(0, 0)])
        assert reader.stats.call_count == 1


def test_read_into_fills_what_it_is_given(tmp_path: Path) -> None:
    whole = _random(torch.bfloat16, ROWS, COLUMNS)
    _store(tmp_path, whole)
    checkpoint = open_checkpoint(tmp_path)
    entry = checkpoint.entry("x")
    with checkpoint.reader() as reader:
        out = torch.zeros(5, COLUMNS, dtype=torch.bfloat16)
        assert reader.read_into(out, entry, [slice(2, 7)]) is out
        assert _same(out, whole[2:7])
        with pytest.raises(
            CheckpointError, match=r"expected an `out` of torch\.bfloat16\[5, 24\]; found torch\.float32"
        ):
            reader.read_into(out.float(), entry, [slice(2, 7)])
        with pytest.raises(CheckpointError, match="expected a contiguous `out`"):
            reader.read_into(torch.zeros(COLUMNS, 5, dtype=torch.bfloat16).T, entry, [slice(2, 7)])


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([slice(0, 4, 2)], "expected step 1 on axis 0; found step 2"),
        ([ROWS], f"expected an index from 0 to {ROWS - 1} on axis 0; found {ROWS}"),
        ([0, 0, 0], "expected at most 2 slices"),
    ],
)
def test_slices_that_do_not_fit_are_refused(slices: list, message: str, tmp_path: Path) -> None:
    _store(tmp_path, _random(torch.float32, ROWS, COLUMNS))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path).read_slice("x", slices)


@pytest.mark.parametrize("slices", [[slice(None)], [slice(None), slice(0, 2)]])
def test_a_file_that_shrank_after_opening_is_refused_not_read_as_zeros(slices: list[slice], tmp_path: Path) -> None:
    _store(tmp_path, _random(torch.float32, ROWS, COLUMNS))
    checkpoint = open_checkpoint(tmp_path)
    with (tmp_path / SHARD).open("r+b") as stream:
        stream.truncate((tmp_path / SHARD).stat().st_size - 200)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*It has become shorter since it was opened"):
        checkpoint.read_slice("x", slices)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    _store(tmp_path, _random(torch.float32, ROWS, COLUMNS))
    checkpoint = open_checkpoint(tmp_path)
    (tmp_path / SHARD).unlink()
    with pytest.raises(CheckpointError, match=r"expected the shard that holds x; No such file"):
        checkpoint.read("x")


def test_a_reader_closes_its_files_and_opens_them_again(tmp_path: Path) -> None:
    whole = _random(torch.float32, 4, 4)
    _store(tmp_path, whole)
    entry = open_checkpoint(tmp_path).entry("x")
    reader = CheckpointReader(tmp_path)
    assert _same(reader.read(entry), whole)
    reader.close()
    assert _same(reader.read(entry), whole)
    reader.close()


@pytest.mark.parametrize("cached", [0, 1 << 20, (3 << 20) + 17])
def test_a_long_run_that_is_not_in_memory_is_put_together_from_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    whole = _random(torch.uint8, 1024, 6144)
    _store(tmp_path, whole)

    def part_of_it(descriptor: int, target: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [target[:cached]], offset) if cached else 0

    monkeypatch.setattr("port.checkpoint.reader._read_cached", part_of_it)
    checkpoint = open_checkpoint(tmp_path)
    with checkpoint.reader() as reader:
        assert _same(reader.read_slice(checkpoint.entry("x"), [slice(3, 1000)]), whole[3:1000])
        assert reader.stats.call_count > 1
        assert reader.stats.read_bytes == 997 * 6144


def test_a_long_run_of_a_file_that_became_shorter_is_an_error_from_every_piece(tmp_path: Path) -> None:
    whole = _random(torch.uint8, 1024, 6144)
    _store(tmp_path, whole)
    checkpoint = open_checkpoint(tmp_path)
    os.truncate(tmp_path / SHARD, 2 << 20)
    with checkpoint.reader() as reader, pytest.raises(CheckpointError, match="It has become shorter"):
        reader.read_slice(checkpoint.entry("x"), [slice(3, 1000)])
