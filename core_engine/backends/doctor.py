"""What ``core-engine doctor`` shows: the backends, and all around them that can go wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from core_engine.backends.report import NOT_USABLE, USABLE, BackendRow, BackendsReport, report_backends
from core_engine.backends.surroundings import (
    ExtensionRow,
    TorchExtensionRow,
    Variable,
    find_duplicates,
    find_extensions,
    installed_versions,
    read_variables,
    try_torch_extensions,
)
from core_engine.errors import CoreEngineError
from core_engine.plugin._probe import Probe

if TYPE_CHECKING:
    from core_engine.engine.feature_table import FeatureTable

__all__ = ["DoctorReport", "ModelReport", "examine_installation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReport:
    """What one model can do on the chosen backend, or why it cannot run."""

    name: str
    features: FeatureTable | None = None
    error: str | None = None

    def lines(self) -> list[str]:
        """Return the table of features, or the error."""
        return self.features.lines() if self.features else [f"ERROR: {self.error}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorReport:
    """Everything that `examine_installation` found out."""

    backends: BackendsReport
    #: Backend name → the (fact, value) pairs of its hook ``doctor_rows``.
    facts: Mapping[str, tuple[tuple[str, str], ...]]
    #: Backend name → the error that its hook ``doctor_rows`` raised.
    faults: Mapping[str, str]
    extensions: tuple[ExtensionRow, ...]
    torch_extensions: tuple[TorchExtensionRow, ...]
    variables: tuple[Variable, ...]
    versions: Mapping[str, str | None]
    duplicates: tuple[str, ...]
    #: The model that was asked about.
    model: ModelReport | None = None

    @property
    def exit_code(self) -> int:
        """0 clean, 1 usable but something is broken, 2 what was asked for is not usable."""
        unusable = any(row.requested and row.state != "installed" for row in self.extensions)
        if self.model is not None and self.model.error is not None:
            return NOT_USABLE
        if unusable or self.backends.exit_code == NOT_USABLE:
            return NOT_USABLE
        broken = (
            self.faults
            or any(row.state == "duplicate" for row in self.extensions)
            or any(row.problem for row in self.torch_extensions)
        )
        return USABLE if broken else self.backends.exit_code

    def json(self) -> str:
        """Return the report as one JSON object."""
        selection = self.backends.selection
        return json.dumps(
            {
                "selected": selection.backend.name if selection else None,
                "choice": self.backends.choice(),
                "warnings": selection.warnings if selection else (),
                "backends": [asdict(row) for row in self.backends.rows],
                "facts": {name: dict(pairs) for name, pairs in self.facts.items()},
                "faults": self.faults,
                "extensions": [asdict(row) for row in self.extensions],
                "torch_extensions": [asdict(row) for row in self.torch_extensions],
                "variables": [asdict(variable) for variable in self.variables],
                "versions": self.versions,
                "duplicates": self.duplicates,
                "model": None if self.model is None else asdict(self.model),
            },
            indent=2,
        )

    def text(self) -> str:
        """Return the report for people, section by section; sections with nothing to say are left out."""
        selection = self.backends.selection
        sections: list[tuple[str, list[str]]] = [
            ("choice", [self.backends.choice(), *(selection.warnings if selection else ())]),
            *([(f"model {self.model.name}", self.model.lines())] if self.model else []),
            *((f"backend {row.name}", self._backend_lines(row)) for row in self.backends.rows),
            (
                "extensions of core-engine",
                [
                    f"{e.name}: {e.state}{', turned on' if e.requested else ''} "
                    f"{e.distribution} {e.version} {e.entry_point}".rstrip()
                    for e in self.extensions
                ],
            ),
            (
                "torch.backends extensions (core-engine does not load them)",
                [
                    f"{e.name} of {e.distribution} {e.version} ({e.entry_point}): "
                    f"{'BROKEN: ' + e.problem if e.problem else 'loads'}"
                    for e in self.torch_extensions
                ],
            ),
            ("installed more than once", list(self.duplicates)),
            ("variables", [f"{v.name} = {v.value or '(unset)'} ({v.origin})" for v in self.variables]),
            ("versions", [f"{name} {version or '(missing)'}" for name, version in self.versions.items()]),
        ]
        return "\n\n".join(
            "\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in sections if lines
        )

    def _backend_lines(self, row: BackendRow) -> list[str]:
        pairs = {
            "state": f"{row.state}{' (selected)' if row.selected else ''}: {row.reason}",
            "distribution": f"{row.distribution} {row.version}",
            "entry point": row.entry_point,
            "plugin API": f"{row.api or 'not stated'} (this core serves {row.host_api})",
            "priority": "unknown" if row.priority is None else str(row.priority),
            "devices": ", ".join(device.name for device in row.devices) or "none",
            "import": "not imported" if row.import_seconds is None else f"{row.import_seconds:.3f} s",
            "heavy modules": ", ".join(row.heavy_modules) or "none",
        }
        if row.api is None and row.import_seconds is None:
            del pairs["plugin API"]
        lines = [f"{name}: {value}" for name, value in pairs.items()]
        # Another plugin may carry the same name; the facts belong to the one that was loaded.
        if row.import_seconds is not None:
            lines += [f"{fact}: {value}" for fact, value in self.facts.get(row.name, ())]
            lines += [f"FAULT: {fault}" for fault in [self.faults.get(row.name)] if fault]
        return lines


def examine_installation(flag: str | None, environment: Mapping[str, str], probe: Probe) -> DoctorReport:
    """Examine backends, extensions, variables and versions; torch is not imported in this process."""
    backends = report_backends(flag, environment, probe)
    facts = {}
    faults = {}
    for finding in backends.findings:
        if finding.backend is None:
            continue
        try:
            facts[finding.name] = finding.backend.doctor_rows(probe)
        except CoreEngineError as error:
            faults[finding.name] = str(error)
    return DoctorReport(
        backends=backends,
        facts=facts,
        faults=faults,
        extensions=find_extensions(environment),
        torch_extensions=try_torch_extensions(),
        variables=read_variables(environment),
        versions=installed_versions(probe),
        duplicates=find_duplicates(),
    )
