"""What ``core-engine backends`` shows: one row per backend, the choice, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from core_engine._text import aligned
from core_engine.backends.discovery import Finding, FindingState, survey
from core_engine.backends.selection import Selection, choose, read_request
from core_engine.errors import CoreEngineError
from core_engine.plugin._backend_types import DeviceInfo
from core_engine.plugin._probe import Probe
from core_engine.plugin._version import API_VERSION

__all__ = ["BackendRow", "BackendsReport", "format_table", "report_backends"]

#: Exit codes: all is well; usable, but a plugin is broken; what was asked for cannot be used.
CLEAN, USABLE, NOT_USABLE = 0, 1, 2

_HEADER = (
    "",
    "NAME",
    "STATE",
    "PRIORITY",
    "DISTRIBUTION",
    "ENTRY POINT",
    "API",
    "DEVICES",
    "IMPORT",
    "HEAVY MODULES",
    "REASON",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRow:
    """One candidate; None stands for what is unknown because the plugin did not get that far."""

    name: str
    distribution: str
    version: str
    entry_point: str
    #: The plugin API that it states, and the one that this core serves.
    api: str | None
    host_api: str
    state: FindingState
    reason: str
    priority: int | None
    devices: tuple[DeviceInfo, ...]
    import_seconds: float | None
    #: Heavy packages that importing the light module brought in; should be empty.
    heavy_modules: tuple[str, ...]
    selected: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendsReport:
    """All candidates, the chosen one first, then by falling priority and name; and what a start would do.

    Either ``selection`` or ``error``, which the start would raise, is None.
    """

    rows: tuple[BackendRow, ...]
    findings: tuple[Finding, ...]
    selection: Selection | None
    error: CoreEngineError | None

    @property
    def exit_code(self) -> int:
        """0 clean, 1 usable but some plugin failed, 2 what was asked for is not usable."""
        if self.error is not None:
            return NOT_USABLE
        return USABLE if any(row.state.failed for row in self.rows) else CLEAN

    def json(self) -> str:
        """Return the rows as a JSON list of objects."""
        return json.dumps([asdict(row) for row in self.rows], indent=2)

    def text(self) -> str:
        """Return the rows as a table, the chosen one marked, and the reason for a choice below it."""
        table = format_table(_HEADER, [_cells(row) for row in self.rows])
        return f"{table}\n\n{self.choice()}" if self.selection else table

    def choice(self) -> str:
        """Return the choice and why, or why there is none, in one line."""
        return self.selection.lines()[0] if self.selection else f"no backend: {self.error}"


def report_backends(flag: str | None, environment: Mapping[str, str], probe: Probe) -> BackendsReport:
    """Examine every backend, and select as a start with ``flag`` and ``environment`` would.

    Unlike a start, the listing also loads the backends that were not asked for.
    """
    request = read_request(flag, environment)
    findings = survey(environment, probe)
    selection: Selection | None = None
    error: CoreEngineError | None = None
    try:
        selection = choose(request, findings, environment)
    except CoreEngineError as failure:
        error = failure
    chosen = selection.backend if selection else None
    rows = [_row(finding, chosen is not None and finding.backend is chosen) for finding in findings]
    rows.sort(key=_rank)
    return BackendsReport(rows=tuple(rows), findings=findings, selection=selection, error=error)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out columns with two blanks between them; the last one is as wide as it must be."""
    return "\n".join(aligned([header, *rows]))


def _row(finding: Finding, selected: bool) -> BackendRow:
    entries = finding.candidate.entries
    return BackendRow(
        name=finding.name,
        distribution=_joined(entry.distribution for entry in entries),
        version=_joined(entry.version for entry in entries),
        entry_point=_joined(entry.value for entry in entries),
        api=finding.api,
        host_api=API_VERSION,
        state=finding.state,
        reason=finding.reason,
        priority=finding.backend.info.priority if finding.backend else None,
        devices=finding.detection.devices if finding.detection else (),
        import_seconds=finding.import_seconds,
        heavy_modules=finding.heavy_modules,
        selected=selected,
    )


def _rank(row: BackendRow) -> tuple[bool, bool, int, str]:
    return (not row.selected, row.priority is None, -(row.priority or 0), row.name)


def _cells(row: BackendRow) -> tuple[str, ...]:
    return (
        "*" if row.selected else "",
        row.name,
        row.state,
        "-" if row.priority is None else str(row.priority),
        f"{row.distribution} {row.version}",
        row.entry_point,
        f"{row.api or '-'}/{row.host_api}",
        str(len(row.devices)),
        "-" if row.import_seconds is None else f"{row.import_seconds * 1000:.0f} ms",
        ", ".join(row.heavy_modules) or "-",
        row.reason,
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
