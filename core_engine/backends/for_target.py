"""Selection of a backend that compiles for devices which are not here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core_engine.backends.discovery import survey
from core_engine.backends.selection import BACKEND_VARIABLE, Selection, choose, read_request
from core_engine.errors import ConfigError
from core_engine.plugin._backend_types import Detection, DetectionState
from core_engine.plugin._probe import Probe

__all__ = ["select_for_target"]


def select_for_target(
    flag: str | None,
    target: str,
    options: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    probe: Probe | None = None,
) -> Selection:
    """Choose the backend that ``flag``, else ``CORE_ENGINE_BACKEND``, names, with the devices of ``target``.

    It must load, but its devices need not be here. ``options`` are the backend's options as given.

    Raises `ConfigError` when no backend is named or the target is unknown, `UnsupportedFeature` for a
    backend without the compile check, and what `select_backend` raises for one that does not load.
    """
    environment = os.environ if environment is None else environment
    request = read_request(flag, environment)
    if request.name is None:
        raise ConfigError(
            f"target {target!r} is one backend's: name that backend with --backend or {BACKEND_VARIABLE}"
        )
    findings = survey(environment, probe or Probe(environment), only=request.name)
    named = next((finding for finding in findings if finding.name == request.name), None)
    # One that loads will do, whatever it says of the devices here.
    backend = named.backend if named is not None else None
    backend = backend or choose(request, findings, environment).backend
    detection = Detection(
        state=DetectionState.BY_NAME_ONLY,
        reason=f"compiles for {target}",
        devices=backend.compile_target(target, options),
    )
    return Selection(backend=backend, detection=detection, reason=f"asked for by {request}")
