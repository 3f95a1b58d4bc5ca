"""FeatureTable: what an engine can do as it was started, what it cannot, and why."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FeatureRow", "FeatureTable"]


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """One feature or setting."""

    feature: str
    #: "on", "off" or a value.
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """The rows in the order in which they are printed; each feature stands in one of them."""

    rows: tuple[FeatureRow, ...]

    def __getitem__(self, feature: str) -> FeatureRow:
        """Return the row of ``feature``. Raises `KeyError`."""
        for row in self.rows:
            if row.feature == feature:
                return row
        raise KeyError(feature)

    def replaced(self, *rows: FeatureRow) -> FeatureTable:
        """Return the table with ``rows`` in the places of those of the same feature, or at the end."""
        merged = {row.feature: row for row in (*self.rows, *rows)}
        return FeatureTable(tuple(merged.values()))

    def lines(self) -> list[str]:
        """Return the table, one row a line."""
        names = max((len(row.feature) for row in self.rows), default=0)
        states = max((len(row.state) for row in self.rows), default=0)
        return [f"{r.feature:<{names}}  {r.state:<{states}}  {r.reason}".rstrip() for r in self.rows]

    def news_since(self, before: FeatureTable) -> FeatureTable:
        """Return the rows whose state is another than it was ``before``."""
        states = {row.feature: row.state for row in before.rows}
        return FeatureTable(tuple(row for row in self.rows if states.get(row.feature) != row.state))

    def without(self, *features: str) -> FeatureTable:
        """Return the table without the rows of ``features``."""
        return FeatureTable(tuple(row for row in self.rows if row.feature not in features))
