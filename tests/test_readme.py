"""The README does what it says: its code runs, its commands work, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from workbench.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder that has the fixtures of the checkout."""
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_code_of_the_readme_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(ROOT / "README.md", "python")
    assert len(code) >= 3
    exec("\n".join(code), {"__name__": "readme"})
    said = capsys.readouterr().out
    for words in ("Steps", "Owners at the peak", "session.first_divergence", "Tensors compared", "4 steps"):
        assert words in said, words
    assert (workplace / "first.wbj").exists()


def test_commands_of_the_readme_work(workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    lines = [line.removeprefix("$ ") for block in blocks(ROOT / "README.md", "console") for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "workbench"
        assert main(arguments) == 0, (line, capsys.readouterr().err[-500:])
    assert (workplace / "run.xml").exists()


def test_the_first_two_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        named = set(re.findall(r"^    make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert {"demo", "test"} <= named
        assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:port|workbench|notebooks|fixtures|docs|tests|bench|demo)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pictures_are_small_and_made_by_the_demo() -> None:
    from demo.plots import _PICTURES

    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert {picture.stem for picture in pictures} <= {name for name, _, _ in _PICTURES}
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
    shown = set(re.findall(r"docs/pictures/([\w-]+\.png)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == {picture.name for picture in pictures}
