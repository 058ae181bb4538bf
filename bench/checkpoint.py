"""Reading only what a rank needs, beside `safetensors.get_slice` in the same run: cold and warm rows and columns.

| figure | target |
|---|---|
| an eighth of the rows, cold | at least 4 times the bytes a second of `get_slice` |
| an eighth of the rows, and of the columns, warm | at least as fast as `get_slice` |
| memory a slice needs at its peak, measured in a process of its own | the slice and 64 MiB |
| inventory of a checkpoint of 50 shards and 96,000 tensors | at most 1 s |

"Cold" means dropped from the page cache, and checked to be: where the file system keeps pages, the figure is left out.
Both sides take turns, and the best round of each counts: what else runs on a machine only ever adds time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open

from port.checkpoint import open_checkpoint, tensor_table
from port.checkpoint.shard_writer import shard_bytes
from port.config import ModelConfig

ROWS, COLUMNS = 8192, 4096
TENSORS = 16
ROUNDS = 5
COLD_TARGET, WARM_TARGET = 4.0, 1.0
SPARE_BYTES = 64 << 20
INVENTORY_TARGET_S = 1.0
SHARDS = 50
_MIB = 1 << 20
Reader = Callable[[str, tuple[slice, slice]], torch.Tensor]
_NAMES = tuple(f"layers.{layer}.w" for layer in range(TENSORS))
_PIECES: dict[str, tuple[slice, slice]] = {
    "rows": (slice(ROWS // 8, ROWS // 4), slice(None)),
    "columns": (slice(None), slice(COLUMNS // 8, COLUMNS // 4)),
}


def main(out: Callable[[str], None]) -> None:
    """Print the figures; nothing is asserted, because a shared machine has its own opinion on time."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as scratch:
        folder = Path(scratch, "slices")
        folder.mkdir()
        _write_matrices(folder)
        for piece in _PIECES:
            _compare(folder, piece, out, cold=True)
        for piece in _PIECES:
            _compare(folder, piece, out, cold=False)
        for piece in _PIECES:
            _peak(folder, piece, out)
        _inventory(Path(scratch, "inventory"), out)


# --- slices -----------------------------------------------------------------------------------------------------------


def _write_matrices(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 256, (ROWS, COLUMNS), dtype=torch.uint8, generator=generator)
    tensors = {name: numbers.roll(layer, 0).view(torch.float8_e4m3fn) for layer, name in enumerate(_NAMES)}
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(shard_bytes(tensors))
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _ours(folder: Path) -> Iterator[Reader]:
    checkpoint = open_checkpoint(folder)
    with checkpoint.reader() as reader:
        yield lambda name, piece: reader.read_slice(checkpoint.entry(name), piece)


@contextmanager
def _theirs(folder: Path) -> Iterator[Reader]:
    with safe_open(folder / "model.safetensors", "pt") as shard:
        # A slice of theirs is a view of the file until it is copied; nothing has been read before that.
        yield lambda name, piece: shard.get_slice(name)[piece].clone(memory_format=torch.contiguous_format)


def _compare(folder: Path, piece: str, out: Callable[[str], None], *, cold: bool) -> None:
    path = folder / "model.safetensors"
    state = "cold" if cold else "warm"
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    kept: dict[str, list[torch.Tensor]] = {}
    path.read_bytes()
    for _ in range(ROUNDS):
        for side, opened in (("ours", _ours), ("theirs", _theirs)):
            if cold and not _drop(path):
                out(f"{state} {piece}: left out, because this file system keeps pages that were dropped")
                return
            with _timed(times[side]), opened(folder) as read:  # opening and closing are part of it
                kept[side] = [read(name, _PIECES[piece]) for name in _NAMES]
    same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(*kept.values(), strict=True))
    assert same, "both sides read the same bytes"
    nbytes = sum(tensor.nbytes for tensor in kept["ours"])
    ours, theirs = min(times["ours"]), min(times["theirs"])
    goal = COLD_TARGET if cold and piece == "rows" else WARM_TARGET
    target = "no target" if cold and piece == "columns" else f"target: at least {goal:g}"
    out(
        f"{state} 1/8 of the {piece}: {nbytes / ours / 2**30:.2f} GiB/s, get_slice {nbytes / theirs / 2**30:.2f}: "
        f"{theirs / ours:.1f} times ({target})"
    )


def _drop(path: Path) -> bool:
    """Drop a file from the page cache and return whether it is gone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        for _ in range(20):  # pages that were touched a moment ago may need a second asking
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(_is_cached(descriptor, offset) for offset in range(0, size, size // 64)):
                return True
            time.sleep(0.02)
        return False
    finally:
        os.close(descriptor)


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return whether a byte can be read without waiting for the disk; asking reads nothing."""
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


# --- memory -----------------------------------------------------------------------------------------------------------


def _peak(folder: Path, piece: str, out: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "bench.checkpoint", str(folder), piece]
    child = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    figures = json.loads(child.stdout)
    spare = figures["peak_bytes"] - figures["slice_bytes"]
    out(
        f"peak memory of a slice of {piece}: {figures['slice_bytes'] / _MIB:.0f} MiB and "
        f"{max(0, spare) / _MIB:.1f} MiB (target: at most {SPARE_BYTES / _MIB:.0f})"
    )


def measure_peak(folder: Path, piece: str) -> dict[str, int]:
    """Return how far a slice raises this process's peak resident memory, and the size of the slice."""
    checkpoint = open_checkpoint(folder)
    with checkpoint.reader() as reader:
        reader.read_slice(checkpoint.entry(_NAMES[0]), [slice(0, 1)])  # what is imported late is no part of it
        before = _reset_peak()
        tensor = reader.read_slice(checkpoint.entry(_NAMES[1]), _PIECES[piece])
        return {"peak_bytes": _status_bytes("VmHWM") - before, "slice_bytes": tensor.nbytes}


def _reset_peak() -> int:
    """Begin a new peak at the present size, and return that size."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


# --- inventory --------------------------------------------------------------------------------------------------------


def _inventory(folder: Path, out: Callable[[str], None]) -> None:
    count = _write_headers(folder)
    ours: list[float] = []
    cpu: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        cpu_began = time.process_time()
        with _timed(ours):
            found = open_checkpoint(folder).inventory().tensor_count
        cpu.append(time.process_time() - cpu_began)
        assert found == count, f"{found} of {count} tensors found"
        with _timed(theirs):
            _walk_with_safetensors(sorted(folder.glob("*.safetensors")))
    wall_s, cpu_s, their_s = (min(times) for times in (ours, cpu, theirs))
    out(
        f"inventory of {SHARDS} shards, {count:,} tensors, checked against the index: {wall_s:.2f} s, {cpu_s:.2f} s of "
        f"it on the CPU (target: at most {INVENTORY_TARGET_S:g}); safe_open on each: {their_s:.2f} s"
    )


def _write_headers(folder: Path) -> int:
    """Write shards with the names of a release and one byte for each tensor; return how many there are."""
    folder.mkdir()
    names = list(tensor_table(ModelConfig.from_dict(_large_config())))
    per_shard = -(-len(names) // SHARDS)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        mine = names[number * per_shard : (number + 1) * per_shard]
        header = {name: {"dtype": "U8", "shape": [1, 1], "data_offsets": [k, k + 1]} for k, name in enumerate(mine)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + bytes(len(mine)))
        weight_map.update(dict.fromkeys(mine, file))
    index = {"metadata": {"total_size": len(names)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return len(names)


def _large_config() -> dict[str, object]:
    """Return the tiny configuration with as many layers and experts as the release."""
    body = json.loads((Path(__file__).parents[1] / "fixtures" / "tiny_v41" / "config.json").read_text(encoding="utf-8"))
    text = body["text_config"]
    text |= {
        "num_hidden_layers": 40,
        "n_routed_experts": 384,
        "num_nextn_predict_layers": 3,
        "dspark_n_routed_experts": 128,
        "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_k_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "candidate_source_layer_id": 20,
    }
    return body


def _walk_with_safetensors(paths: Sequence[Path]) -> None:
    for path in paths:
        with safe_open(path, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - it is no dict
                piece = shard.get_slice(name)
                assert piece.get_dtype()
                assert piece.get_shape()


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    into.append(time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(measure_peak(Path(sys.argv[1]), sys.argv[2])))
