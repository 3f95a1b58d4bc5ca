"""The pluggy markers: one project for discovery, one each for the worker's and the runner's API.

The worker and the model runner share method names (``load_model``, ``execute_model`` …), so each
API has its own project, its own marker and, in a worker process, its own plugin manager.
"""

from __future__ import annotations

import pluggy

BACKEND_PROJECT = "core_engine_backend"
WORKER_PROJECT = "core_engine_worker"
RUNNER_PROJECT = "core_engine_runner"

#: Marks a discovery hook of a backend's light module; see `core_engine.hookspecs.BackendSpec`.
hookimpl = pluggy.HookimplMarker(BACKEND_PROJECT)
#: Marks an extension's wrapper around a worker hook (``wrapper=True`` is required).
worker_hookimpl = pluggy.HookimplMarker(WORKER_PROJECT)
#: Marks an extension's wrapper around a model-runner hook (``wrapper=True`` is required).
runner_hookimpl = pluggy.HookimplMarker(RUNNER_PROJECT)

backend_hookspec = pluggy.HookspecMarker(BACKEND_PROJECT)
worker_hookspec = pluggy.HookspecMarker(WORKER_PROJECT)
runner_hookspec = pluggy.HookspecMarker(RUNNER_PROJECT)
