"""Numbers as people read them: bytes in binary units, seconds, counts, tables that fit a terminal.

Text only; the values themselves travel as plain ints (bytes) and floats (seconds).
"""

from collections.abc import Sequence

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(nbytes: int) -> str:
    """Return `nbytes` in the largest binary unit that leaves at least one whole digit, as in `16.30 GiB`."""
    value, step = float(abs(nbytes)), 0
    while value >= 1024 and step < len(_STEPS) - 1:
        value /= 1024
        step += 1
    sign = "-" if nbytes < 0 else ""
    return f"{sign}{int(value)} B" if step == 0 else f"{sign}{value:.2f} {_STEPS[step]}"


def seconds_text(seconds: float) -> str:
    """Return a duration with three significant digits, in us, ms, s or min."""
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def number_text(value: float | None) -> str:
    """Return a float with four significant digits, `-` for None."""
    return "-" if value is None else f"{value:.4g}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 layer`, `2 layers`, with thousands separated."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 100, align: str = "") -> str:
    """Return a plain text table no wider than `width` characters.

    Args:
        header: column titles.
        rows: cells, already text; every row as long as the header.
        width: the widest line allowed. The widest columns give way first; a shortened cell ends with an ellipsis, or
            begins with one where the column is a path-like (right-informative) value and `align` says `p`.
        align: one letter a column: `l` left (default), `r` right, `p` left but shortened at its start.

    Raises:
        ValueError: a row of another length than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"table row has {len(row)} cells, header has {len(header)}: {row!r}")
    modes = (align + "l" * len(header))[: len(header)]
    columns = [[title, *(row[index] for row in rows)] for index, title in enumerate(header)]
    widths = [max(len(cell) for cell in column) for column in columns]
    spare = width - 2 * (len(header) - 1)
    while sum(widths) > spare and max(widths) > 4:
        widths[widths.index(max(widths))] -= 1
    lines = [_line(list(header), widths, modes), "  ".join("-" * size for size in widths)]
    lines.extend(_line(list(row), widths, modes) for row in rows)
    return "\n".join(lines)


def _line(cells: list[str], widths: list[int], modes: str) -> str:
    parts = []
    for cell, size, mode in zip(cells, widths, modes, strict=True):
        if len(cell) > size:
            cell = "…" + cell[len(cell) - size + 1 :] if mode == "p" else cell[: size - 1] + "…"
        parts.append(cell.rjust(size) if mode == "r" else cell.ljust(size))
    return "  ".join(parts).rstrip()
