"""The version of the plugin API and the rule that decides which plugins load."""

from __future__ import annotations

import re

from core_engine.errors import ApiVersionError

#: The API this core serves, ``MAJOR.MINOR``. A backend's module states the one it was written for in
#: a constant of the same name, ``CORE_ENGINE_API``.
API_VERSION = "0.1"

_FORM = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


def check_api_version(stated: object, host: str = API_VERSION) -> None:
    """Raise `ApiVersionError` unless a plugin that states ``stated`` may load under ``host``.

    The same major with the same or an older minor loads; a newer minor needs a newer core; another
    major never loads.
    """
    match = _FORM.fullmatch(stated) if isinstance(stated, str) else None
    if match is None:
        raise ApiVersionError(
            f"it states no plugin API version (CORE_ENGINE_API is {stated!r}); this core serves "
            f'{host}. Set CORE_ENGINE_API = "{host}" in the module that its entry point names'
        )
    major, minor = int(match[1]), int(match[2])
    host_major, host_minor = (int(part) for part in host.split("."))
    if major != host_major:
        raise ApiVersionError(
            f"it is written for plugin API {stated}, this core serves {host}: the major versions "
            f"differ. Install releases of core-engine and of the plugin that share API {major}.x "
            f"or {host_major}.x"
        )
    if minor > host_minor:
        raise ApiVersionError(
            f"it is written for plugin API {stated}, newer than this core's {host}: upgrade core-engine"
        )
