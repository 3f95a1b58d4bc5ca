"""What core asks before anything heavy is imported."""

from core_engine.plugin import (
    BackendInfo,
    Capabilities,
    Detection,
    DetectionState,
    DeviceInfo,
    WorkerPlan,
    hookimpl,
    load_class,
)

CORE_ENGINE_API = "0.1"


@hookimpl
def backend_info():
    return BackendInfo(name="acme", priority=100, description="Acme NPU")


@hookimpl
def detect(probe):
    nodes = probe.glob("/dev/acme*")
    if not nodes and probe.environment.get("ACME_PRETEND") == "1":
        nodes = ("pretended",)  # so that you can follow without an Acme
    if not nodes:
        return Detection(state=DetectionState.UNAVAILABLE, reason="no /dev/acme* device node")
    devices = tuple(DeviceInfo(index=i, name=node) for i, node in enumerate(nodes))
    return Detection(state=DetectionState.AVAILABLE, reason=f"found {', '.join(nodes)}", devices=devices)


@hookimpl
def capabilities(devices, config, model):
    return Capabilities(dtypes=("bfloat16", "float32"), chunked_prefill=True, mixed_batches=True)


@hookimpl
def plan_workers(config, devices):
    return (WorkerPlan(rank=0, device_indices=(0,)),)


@hookimpl
def create_worker(context):
    return load_class("core_engine_acme.worker:AcmeWorker")(context)


@hookimpl
def create_model_runner(context):
    return load_class("core_engine_acme.runner:AcmeModelRunner")(context)
