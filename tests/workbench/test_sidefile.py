"""The side file: any safetensors reader opens it, a capture costs the same after many others, a cut is survived."""

import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from workbench.errors import JournalError
from workbench.sidefile import SideFile


def _filled(path: Path, count: int) -> SideFile:
    side = SideFile(path)
    for number in range(count):
        side.append(f"k{number}", "F32", (2,), struct.pack("<2f", number, -number))
    return side


def test_any_safetensors_reader_opens_it_before_and_after_the_header_grows(tmp_path):
    for count in (1, 3, 2500):
        path = tmp_path / f"{count}.safetensors"
        _filled(path, count)
        tensors = load_file(path)
        assert len(tensors) == count
        assert all(torch.equal(tensors[f"k{n}"], torch.tensor([n, -n], dtype=torch.float32)) for n in range(count))


def test_it_reads_back_what_it_wrote_and_can_go_on(tmp_path):
    path = tmp_path / "a.safetensors"
    _filled(path, 5)
    again = SideFile(path)
    again.append("more", "U8", (3,), b"abc")
    third = SideFile(path)
    assert third.keys() == ["k0", "k1", "k2", "k3", "k4", "more"]
    assert third.read("k3").data == struct.pack("<2f", 3, -3)
    assert third.read("more").data == b"abc"
    assert third.read("more").shape == (3,)


def test_a_capture_writes_a_few_hundred_bytes_of_header_however_many_there_are(tmp_path, monkeypatch):
    import workbench.sidefile as module

    path = tmp_path / "a.safetensors"
    side = _filled(path, 400)
    written = []
    plain = module.os.pwrite

    def counting(descriptor, data, offset):
        written.append(len(data))
        return plain(descriptor, data, offset)

    monkeypatch.setattr(module.os, "pwrite", counting)
    side.append("last", "F32", (2,), b"\0" * 8)
    assert sum(written) < 300


@pytest.mark.parametrize("cut", range(1, 50, 7))
def test_a_last_header_entry_that_was_cut_loses_only_itself(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    _filled(path, 3)
    data = bytearray(path.read_bytes())
    end = data.rindex(b"}", 8, 8 + (1 << 16)) + 1
    data[end - cut : end] = b" " * cut
    path.write_bytes(data)

    assert SideFile(path).keys()[:2] == ["k0", "k1"]
    assert len(SideFile(path).keys()) == 2


def test_a_key_is_written_once(tmp_path):
    side = _filled(tmp_path / "a.safetensors", 1)
    with pytest.raises(JournalError, match="never overwritten"):
        side.append("k0", "F32", (2,), b"\0" * 8)


def test_a_missing_key_names_what_there_is(tmp_path):
    side = _filled(tmp_path / "a.safetensors", 2)
    with pytest.raises(JournalError, match=r"no capture 'x'.*k0"):
        side.read("x")


def test_data_cut_off_is_an_error_not_zeros(tmp_path):
    path = tmp_path / "a.safetensors"
    _filled(path, 2)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(JournalError, match="the file was cut"):
        SideFile(path).read("k1")
