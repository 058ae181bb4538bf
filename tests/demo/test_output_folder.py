"""The demo replaces what it wrote itself, and nothing else."""

from __future__ import annotations

import pytest

from demo.output_folder import MARK, NotOurs, prepare


def test_a_second_run_replaces_the_first(tmp_path) -> None:
    out = prepare(tmp_path / "deep" / "out")
    (out / "tour.html").write_text("old")
    (out / "plots").mkdir()
    (out / "plots" / "errors.png").write_bytes(b"old")
    assert sorted(path.name for path in prepare(out).iterdir()) == [MARK]


def test_a_folder_of_someone_else_is_left_alone(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(NotOurs, match=r"left alone.*--out"):
        prepare(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_and_one_of_our_own_folders_may_be_used(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    assert prepare(tmp_path / "empty").is_dir()
    prepare(tmp_path / "made" / "notebooks")
    assert sorted(path.name for path in prepare(tmp_path / "made").iterdir()) == [MARK]


def test_a_stranger_deep_inside_keeps_the_folder(tmp_path) -> None:
    prepare(tmp_path / "notebooks")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(NotOurs):
        prepare(tmp_path)


def test_a_file_or_a_link_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        with pytest.raises(NotOurs, match="expected a folder or nothing"):
            prepare(tmp_path / name)


def test_links_inside_are_removed_and_not_followed(tmp_path) -> None:
    out = prepare(tmp_path / "out")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (out / "link").symlink_to(tmp_path / "kept")
    prepare(out)
    assert (tmp_path / "kept" / "file").read_text() == "kept"
