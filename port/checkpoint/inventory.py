"""What a checkpoint holds, added up by family and dtype; from headers alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from port.checkpoint.entries import TensorEntry
from port.checkpoint.families import FAMILIES, Family, family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRow:
    """All tensors of one family and one dtype.

    Attributes:
        family: part of the model.
        dtype: as stored.
        tensor_count: tensors.
        nbytes: bytes stored.
    """

    family: Family
    dtype: str
    tensor_count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Rows ordered by family, then by bytes."""

    rows: tuple[InventoryRow, ...]

    @property
    def tensor_count(self) -> int:
        """All tensors."""
        return sum(row.tensor_count for row in self.rows)

    @property
    def nbytes(self) -> int:
        """All bytes stored."""
        return sum(row.nbytes for row in self.rows)

    def bytes_by_family(self) -> dict[Family, int]:
        """Return the bytes of each family that is present, in model order."""
        totals: dict[Family, int] = {}
        for row in self.rows:
            totals[row.family] = totals.get(row.family, 0) + row.nbytes
        return totals


def take_inventory(entries: Iterable[TensorEntry]) -> Inventory:
    """Return the tensors added up by family and dtype."""
    counts: dict[tuple[Family, str], tuple[int, int]] = {}
    for entry in entries:
        key = family_of(entry.name), entry.dtype
        count, nbytes = counts.get(key, (0, 0))
        counts[key] = count + 1, nbytes + entry.nbytes
    order = {family: rank for rank, family in enumerate(FAMILIES)}
    rows = [
        InventoryRow(family=family, dtype=dtype, tensor_count=count, nbytes=nbytes)
        for (family, dtype), (count, nbytes) in counts.items()
    ]
    return Inventory(tuple(sorted(rows, key=lambda row: (order[row.family], -row.nbytes, row.dtype))))
