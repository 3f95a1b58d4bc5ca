"""Discovery: every installed backend, loaded and asked for its device, each on its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from core_engine._text import one_line
from core_engine.backends.allow_list import PLUGINS_VARIABLE, AllowList, read_allow_list
from core_engine.backends.backend import Backend
from core_engine.backends.installed import (
    BACKEND_GROUP,
    InstalledPlugin,
    builtin_entries,
    describe_entries,
    find_entries,
)
from core_engine.backends.loading import as_plugin_error, try_load
from core_engine.errors import (
    AmbiguousBackend,
    ApiVersionError,
    BackendBlocked,
    BackendLoadError,
    BackendUnavailable,
    ContractError,
    PluginError,
)
from core_engine.plugin._backend_types import Detection, DetectionState
from core_engine.plugin._probe import Probe

__all__ = ["AUTOMATIC", "Candidate", "Finding", "FindingState", "examine", "find_candidates", "survey"]

_NAME = re.compile(r"\w+([.-]\w+)*")

#: Stands for the automatic choice wherever a backend is named.
AUTOMATIC = "auto"


class FindingState(StrEnum):
    """What discovery found out about one candidate."""

    AVAILABLE = "available"
    BY_NAME_ONLY = "by-name-only"
    UNAVAILABLE = "unavailable"
    #: Excluded by the allow-list; not imported.
    BLOCKED = "blocked"
    #: Another backend was asked for by name; not imported.
    NOT_LOADED = "not-loaded"
    #: The name belongs to a backend that core ships, or to the automatic choice; not imported.
    NAME_RESERVED = "name-reserved"
    #: Several installed plugins claim the name; not imported.
    DUPLICATE = "duplicate"
    LOAD_FAILED = "load-failed"
    API_REFUSED = "api-refused"
    CONTRACT_BROKEN = "contract-broken"
    DETECT_FAILED = "detect-failed"

    @property
    def failed(self) -> bool:
        """Whether the plugin is at fault, so that somebody should repair or remove it."""
        return self in _FAILED


_FAILED = frozenset(
    {
        FindingState.NAME_RESERVED,
        FindingState.DUPLICATE,
        FindingState.LOAD_FAILED,
        FindingState.API_REFUSED,
        FindingState.CONTRACT_BROKEN,
        FindingState.DETECT_FAILED,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One backend name and the installed plugins that claim it; more than one makes it unusable.

    A plugin whose name differs only in case claims it too.
    """

    name: str
    entries: tuple[InstalledPlugin, ...]
    #: The name belongs to core, and these entries are somebody else's.
    reserved: bool = False

    @property
    def entry(self) -> InstalledPlugin:
        """The entry that counts; the first of this very name when there are several."""
        return next(entry for entry in self.entries if entry.name == self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What came of one candidate; ``backend`` and ``detection`` stand where it got that far."""

    candidate: Candidate
    state: FindingState
    #: One line.
    reason: str
    backend: Backend | None = None
    detection: Detection | None = None
    #: What is raised when this backend is asked for by name; None when it can be used.
    error: PluginError | None = None
    api: str | None = None
    #: None when nothing was imported.
    import_seconds: float | None = None
    heavy_modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.candidate.name


def find_candidates() -> tuple[Candidate, ...]:
    """Return all installed backends, core's own first, then by name; nothing is imported."""
    builtin = builtin_entries()
    reserved = {AUTOMATIC, *(entry.name for entry in builtin)}
    claims: dict[str, dict[tuple[str, str, str, str], InstalledPlugin]] = {}
    for entry in find_entries(BACKEND_GROUP):
        # The same plugin seen in two folders is one plugin: whichever the path puts first, it is the same.
        # Names that differ only in case are one name to people, so those plugins rival each other.
        rivals = claims.setdefault(entry.name.casefold(), {})
        rivals.setdefault((entry.name, *entry.identity), entry)
    return (
        *(Candidate(name=entry.name, entries=(entry,)) for entry in builtin),
        *(
            Candidate(name=name, entries=tuple(entries.values()), reserved=folded in reserved)
            for folded, entries in sorted(claims.items())
            for name in sorted({entry.name for entry in entries.values()})
        ),
    )


def survey(environment: Mapping[str, str], probe: Probe, only: str | None = None) -> tuple[Finding, ...]:
    """Examine every candidate that the allow-list permits; with ``only``, import no other."""
    allow_list = read_allow_list(environment)
    return tuple(
        examine(candidate, allow_list, probe)
        if only is None or candidate.name == only
        else Finding(
            candidate=candidate,
            state=FindingState.NOT_LOADED,
            reason=f"{only!r} was asked for by name",
        )
        for candidate in find_candidates()
    )


def examine(candidate: Candidate, allow_list: AllowList, probe: Probe) -> Finding:
    """Load one candidate and let it look for its device; only `KeyboardInterrupt` leaves here."""
    refusal = _refuse_unseen(candidate, allow_list)
    if refusal is not None:
        return refusal
    loaded = try_load(candidate.entry)
    if loaded.backend is None:
        error = loaded.error or BackendLoadError(f"{candidate.entry.subject} did not load")
        return Finding(
            candidate=candidate,
            state=_state_of(error),
            reason=candidate.entry.without_subject(str(error)),
            error=error,
            api=loaded.api,
            import_seconds=loaded.import_seconds,
            heavy_modules=loaded.heavy_modules,
        )
    detection: Detection | None = None
    problem: PluginError | None = None
    try:
        detection = loaded.backend.detect(probe)
    except Exception as failure:  # the façade lets out nothing else but KeyboardInterrupt
        problem = as_plugin_error(candidate.entry, failure)
        broken = isinstance(problem, ContractError)
        state = FindingState.CONTRACT_BROKEN if broken else FindingState.DETECT_FAILED
    else:
        state = FindingState(detection.state.value)
        if detection.state is DetectionState.UNAVAILABLE:
            problem = BackendUnavailable(
                f"{candidate.entry.subject} cannot be used here: {one_line(detection.reason)}"
            )
    return Finding(
        candidate=candidate,
        state=state,
        reason=one_line(detection.reason) if detection else candidate.entry.without_subject(str(problem)),
        backend=loaded.backend,
        detection=detection,
        error=problem,
        api=loaded.api,
        import_seconds=loaded.import_seconds,
        heavy_modules=loaded.heavy_modules,
    )


def _refuse_unseen(candidate: Candidate, allow_list: AllowList) -> Finding | None:
    """Return the finding for a candidate that must not even be imported, or None."""
    name = candidate.name
    error: PluginError
    if candidate.entry.builtin:
        return None
    if not allow_list.permits(name):
        state = FindingState.BLOCKED
        reason = f"{PLUGINS_VARIABLE}={allow_list} does not list it"
        error = BackendBlocked(
            f"backend {name!r} was asked for, but {reason}: add {name!r} to {PLUGINS_VARIABLE}, or ask "
            f"for another backend with --backend or CORE_ENGINE_BACKEND"
        )
    elif candidate.reserved:
        state = FindingState.NAME_RESERVED
        owner = "the automatic choice" if name.casefold() == AUTOMATIC else "core-engine's own backend"
        reason = f"the name {name!r} belongs to {owner}; the plugin must take another"
        error = ContractError(f"{candidate.entry.subject} is refused: {reason}")
    elif not _NAME.fullmatch(name):
        state = FindingState.CONTRACT_BROKEN
        reason = (
            f"{name!r} is no name that a flag or a variable could hold: use letters, digits and "
            "'.', '_', '-' between them"
        )
        error = ContractError(f"{candidate.entry.subject} is refused: {reason}")
    elif len(candidate.entries) > 1:
        state = FindingState.DUPLICATE
        in_any_case = "" if len({entry.name for entry in candidate.entries}) == 1 else ", but for case"
        reason = (
            f"{len(candidate.entries)} installed plugins claim the name {name!r}{in_any_case}: "
            f"{describe_entries(candidate.entries)}; uninstall all but one"
        )
        error = AmbiguousBackend(f"backend {name!r} cannot be used: {reason}")
    else:
        return None
    return Finding(candidate=candidate, state=state, reason=reason, error=error)


def _state_of(error: PluginError) -> FindingState:
    if isinstance(error, ApiVersionError):
        return FindingState.API_REFUSED
    if isinstance(error, ContractError):
        return FindingState.CONTRACT_BROKEN
    return FindingState.LOAD_FAILED
