"""Selection: which backend an engine uses, and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from core_engine._text import parse_bool
from core_engine.backends.allow_list import read_allow_list
from core_engine.backends.backend import Backend
from core_engine.backends.discovery import AUTOMATIC, Finding, FindingState, survey
from core_engine.backends.installed import EXTENSION_GROUP, POLICY_GROUP, SCHEDULER_GROUP, find_entries
from core_engine.errors import (
    AmbiguousBackend,
    BackendLoadError,
    BackendNotFound,
    BackendUnavailable,
    ConfigError,
    did_you_mean,
)
from core_engine.plugin._backend_types import Detection
from core_engine.plugin._probe import Probe

__all__ = [
    "BACKEND_VARIABLE",
    "STRICT_VARIABLE",
    "PassedOver",
    "Request",
    "Selection",
    "choose",
    "is_strict",
    "read_request",
    "select_backend",
]

BACKEND_VARIABLE = "CORE_ENGINE_BACKEND"
STRICT_VARIABLE = "CORE_ENGINE_STRICT_PLUGINS"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for: a backend's name, or None for the automatic choice, and where it was said."""

    name: str | None
    origin: str
    #: Says that the flag overrides the variable, where both are given and differ.
    note: str = ""

    def __str__(self) -> str:
        return f"{self.origin}, {self.note}" if self.note else self.origin


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOver:
    """A backend that was not chosen, and why."""

    name: str
    state: FindingState
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The chosen backend, what its detection said, and how the choice came about."""

    backend: Backend
    detection: Detection
    #: Why this one, in one line.
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    #: Faults that did not stand in the way: plugins that failed, names that nobody knows.
    warnings: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Return what every start prints: the choice and why, then the backends passed over."""
        entry = self.backend.entry
        return (
            f"backend {entry.name} ({entry.distribution} {entry.version}): {self.reason}",
            *(f"passed over {other.name} ({other.state}): {other.reason}" for other in self.passed_over),
        )

    def log(self) -> None:
        """Log the lines; a plugin that failed is a warning."""
        choice, *others = self.lines()
        _logger.info(choice)
        for other, line in zip(self.passed_over, others, strict=True):
            if not other.state.failed:
                _logger.info(line)
        for warning in self.warnings:
            _logger.warning(warning)


def select_backend(
    flag: str | None = None,
    environment: Mapping[str, str] | None = None,
    probe: Probe | None = None,
    *,
    serve: bool = False,
) -> Selection:
    """Choose the backend: ``flag``, else ``CORE_ENGINE_BACKEND``, else the best that is available.

    A name is meant: where it cannot be used an error says why, and nothing else is tried or
    imported. "auto" and the empty string stand for the automatic choice, which takes the highest
    priority among the available backends. ``serve`` refuses to end on a backend of core's own while
    a plugin is broken.

    Raises `BackendNotFound`, `BackendUnavailable`, `BackendBlocked`, `BackendLoadError`,
    `ApiVersionError`, `ContractError`, `AmbiguousBackend`; `ConfigError` for a variable that cannot
    be read.
    """
    environment = os.environ if environment is None else environment
    request = read_request(flag, environment)
    findings = survey(environment, probe or Probe(environment), only=request.name)
    return choose(request, findings, environment, serve=serve)


def read_request(flag: str | None, environment: Mapping[str, str]) -> Request:
    """Combine the flag (or argument) with ``CORE_ENGINE_BACKEND``; the flag wins."""
    variable = environment.get(BACKEND_VARIABLE, "").strip() or None
    if flag is None:
        origin = f"{BACKEND_VARIABLE}={variable}" if variable else "automatic choice"
        return Request(name=_name_or_auto(variable), origin=origin)
    text = flag.strip() or AUTOMATIC
    note = f"which overrides {BACKEND_VARIABLE}={variable}" if variable not in (None, text) else ""
    return Request(name=_name_or_auto(text), origin=f"--backend {text}", note=note)


def choose(
    request: Request, findings: tuple[Finding, ...], environment: Mapping[str, str], *, serve: bool = False
) -> Selection:
    """Apply the rules of `select_backend` to what discovery found."""
    strict = is_strict(environment)
    if request.name is not None:
        chosen = _named(request, findings)
        reason = f"asked for by {request}"
    else:
        chosen, reason = _best(findings, strict=strict, serve=serve)
        if request.note:
            reason += f" ({request})"
    if chosen.backend is None or chosen.detection is None:
        raise chosen.error or BackendLoadError(f"backend {chosen.name!r} did not load")
    others = [finding for finding in findings if finding is not chosen]
    return Selection(
        backend=chosen.backend,
        detection=chosen.detection,
        reason=reason,
        passed_over=tuple(PassedOver(name=f.name, state=f.state, reason=f.reason) for f in others),
        warnings=(
            *(str(f.error) for f in others if f.state.failed),
            *_allow_list_warnings(environment, findings),
        ),
    )


def is_strict(environment: Mapping[str, str]) -> bool:
    """Say whether ``CORE_ENGINE_STRICT_PLUGINS`` makes every plugin that fails to load fatal."""
    return _read_switch(STRICT_VARIABLE, environment)


def _named(request: Request, findings: tuple[Finding, ...]) -> Finding:
    names = sorted({finding.name for finding in findings})
    for finding in findings:
        if finding.name == request.name:
            if finding.error is not None:
                raise type(finding.error)(f"{finding.error} (asked for by {request})")
            return finding
    raise BackendNotFound(
        f"no installed backend is named {request.name!r} (asked for by {request})."
        f"{did_you_mean(request.name or '', [*names, AUTOMATIC])} Installed are {', '.join(names)}; another "
        f"one comes with a distribution of its own, usually core-engine-{request.name}"
    )


def _best(findings: tuple[Finding, ...], *, strict: bool, serve: bool) -> tuple[Finding, str]:
    faults = [finding.error for finding in findings if finding.state.failed and finding.error]
    if strict and faults:
        raise type(faults[0])(f"{faults[0]} (fatal under {STRICT_VARIABLE}=1)")
    available = [
        (finding.backend.info.priority, finding)
        for finding in findings
        if finding.state is FindingState.AVAILABLE and finding.backend is not None
    ]
    if not available:
        found = "; ".join(f"{f.name} ({f.state}): {f.reason}" for f in findings)
        raise BackendUnavailable(f"no backend can be chosen automatically: {found}")
    top = max(priority for priority, _ in available)
    best = [finding for priority, finding in available if priority == top]
    if len(best) > 1:
        names = " and ".join(f"{f.name!r} ({f.candidate.entry})" for f in best)
        raise AmbiguousBackend(
            f"the available backends {names} share the highest priority, {top}: choose one with "
            f"--backend or {BACKEND_VARIABLE}, e.g. {BACKEND_VARIABLE}={best[0].name}"
        )
    chosen = best[0]
    if not chosen.candidate.entry.builtin:
        return chosen, f"the highest priority ({top}) among the available; {chosen.reason}"
    if serve and faults:
        raise BackendLoadError(
            f"serve does not fall back to {chosen.name!r} by itself while a plugin is broken: "
            f"{'; '.join(str(fault) for fault in faults)}. Repair or uninstall the plugin, or "
            f"allow it with --backend {chosen.name} or {BACKEND_VARIABLE}={chosen.name}"
        )
    return chosen, "no other backend is available"


def _allow_list_warnings(environment: Mapping[str, str], findings: tuple[Finding, ...]) -> tuple[str, ...]:
    allow_list = read_allow_list(environment)
    if allow_list.names is None:
        return ()
    others = [
        entry.name
        for group in (EXTENSION_GROUP, SCHEDULER_GROUP, POLICY_GROUP)
        for entry in find_entries(group)
    ]
    return allow_list.warnings([*(finding.name for finding in findings), *others])


def _name_or_auto(text: str | None) -> str | None:
    return None if text in (None, "", AUTOMATIC) else text


def _read_switch(variable: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(variable, "").strip()
    try:
        return bool(text) and parse_bool(text)
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}") from None
