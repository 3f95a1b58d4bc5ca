"""A backend without a device, for tests of whatever runs above one; also the shortest example of one.

This is the light module. `load_fake_backend` loads it in this process; to be found by name, or by a
worker process, a distribution must name it in its entry points::

    [project.entry-points."core_engine.backends"]
    fake = "core_engine.testing.fake_backend"

Its model is `core_engine.testing.fake_model.FakeModel`, and its runner checks every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_engine.plugin import (
    BackendInfo,
    BackendOption,
    Capabilities,
    Detection,
    DetectionState,
    DeviceInfo,
    EngineConfig,
    Probe,
    WorkerPlan,
    hookimpl,
    load_class,
)

if TYPE_CHECKING:
    from core_engine.backends.backend import Backend
    from core_engine.worker.context import RunnerContext, WorkerContext

CORE_ENGINE_API = "0.1"

FAKE_CAPABILITIES = Capabilities(
    dtypes=("float32", "bfloat16", "float16"),
    block_sizes=(16, 4),
    chunked_prefill=True,
    mixed_batches=True,
    prefix_caching=True,
    sliding_window=True,
    max_logprobs=20,
    prompt_logprobs=True,
)


def load_fake_backend() -> Backend:
    """Return the fake backend, loaded and checked as any vendor's, though no distribution names it."""
    import core_engine
    from core_engine.backends.installed import BACKEND_GROUP, InstalledPlugin
    from core_engine.backends.loading import load_backend

    return load_backend(
        InstalledPlugin(
            group=BACKEND_GROUP,
            name="fake",
            value=__name__,
            distribution="core-engine",
            version=core_engine.__version__,
        )
    )


@hookimpl
def backend_info() -> BackendInfo:
    """Say who the backend is."""
    return BackendInfo(name="fake", priority=1, description="No device: for tests")


@hookimpl
def detect(probe: Probe) -> Detection:
    """Report one device that only a test asks for."""
    device = DeviceInfo(index=0, name="nothing", memory_bytes=1 << 20)
    return Detection(state=DetectionState.BY_NAME_ONLY, reason="for tests only", devices=(device,))


@hookimpl
def capabilities() -> Capabilities:
    """Declare what `FakeRunner` can do."""
    return FAKE_CAPABILITIES


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """Offer one option that makes a step fail."""
    help_text = "the step that fails with OutOfDeviceMemory; -1 for none"
    return (BackendOption(name="fail_at_step", type="int", default=-1, help=help_text),)


@hookimpl
def plan_workers(config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[WorkerPlan, ...]:
    """Plan one worker on the first device."""
    return (WorkerPlan(rank=0, device_indices=(devices[0].index,)),)


@hookimpl
def create_worker(context: WorkerContext) -> Any:
    """Build `FakeWorker`."""
    return load_class("core_engine.testing.fake_worker:FakeWorker")(context)


@hookimpl
def create_model_runner(context: RunnerContext) -> Any:
    """Build `FakeModelRunner`."""
    return load_class("core_engine.testing.fake_worker:FakeModelRunner")(context)
