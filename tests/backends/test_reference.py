from __future__ import annotations

import dataclasses

import pytest

from core_engine.backends.reference import BackendRef, decode_ref, encode_ref, make_refs, resolve_ref
from core_engine.backends.selection import select_backend
from core_engine.errors import BackendLoadError, PluginMismatch
from core_engine.plugin import DeviceInfo, WorkerPlan
from core_engine.testing.plugin_site import PluginSite, backend_source

DEVICES = (
    DeviceInfo(index=0, name="zero", memory_bytes=1 << 30, details={"arch": "9"}),
    DeviceInfo(index=1, name="one"),
)
PLANS = (
    WorkerPlan(rank=0, device_indices=(1,), environment={"VISIBLE": "1"}),
    WorkerPlan(rank=1, device_indices=(0,)),
)


def reference(name: str = "tpu") -> BackendRef:
    return make_refs(select_backend(name, {}).backend, PLANS, DEVICES, ("tracer",))[0]


def test_each_plan_gets_its_own_devices(site: PluginSite) -> None:
    site.add_backend("tpu")
    first, second = make_refs(select_backend("tpu", {}).backend, PLANS, DEVICES)
    assert (first.plan.rank, first.devices, first.world_size) == (0, (DEVICES[1],), 2)
    assert (second.plan.rank, second.devices) == (1, (DEVICES[0],))


def test_a_reference_survives_msgpack(site: PluginSite) -> None:
    site.add_backend("tpu")
    ref = reference()
    assert decode_ref(encode_ref(ref)) == ref


def test_a_message_of_another_shape_is_a_mismatch() -> None:
    with pytest.raises(PluginMismatch, match="cannot read"):
        decode_ref(b"\x81\xa7backend\xa3tpu")


def test_it_resolves_to_the_backend_that_the_parent_chose(site: PluginSite) -> None:
    site.add_backend("tpu")
    backend = resolve_ref(reference())
    assert (backend.name, backend.entry.version) == ("tpu", "1.0")


def test_a_backend_of_cores_own_resolves_the_same_way(site: PluginSite) -> None:
    assert resolve_ref(reference("cpu")).entry.builtin


def test_case_22_another_installed_version_is_a_mismatch(site: PluginSite) -> None:
    site.add_backend("tpu")
    ref = reference()
    site.uninstall("tpu")
    site.add_backend("tpu", version="1.1")
    with pytest.raises(PluginMismatch, match=r"core-engine-tpu 1\.0 .*sees core-engine-tpu 1\.1"):
        resolve_ref(ref)


def test_case_22_an_uninstalled_plugin_is_a_mismatch(site: PluginSite) -> None:
    site.add_backend("tpu")
    ref = reference()
    site.uninstall("tpu")
    with pytest.raises(PluginMismatch, match="sees nothing of that name"):
        resolve_ref(ref)


def test_case_22_another_core_is_a_mismatch(site: PluginSite) -> None:
    site.add_backend("tpu")
    with pytest.raises(PluginMismatch, match=r"runs core-engine 99\.0"):
        resolve_ref(dataclasses.replace(reference(), core_version="99.0"))


def test_case_22_a_second_claim_to_the_name_is_a_mismatch(site: PluginSite) -> None:
    site.add_backend("tpu")
    ref = reference()
    site.add_distribution("vendor-two", {"core_engine.backends": {"tpu": "two_plugin"}})
    with pytest.raises(PluginMismatch, match="vendor-two"):
        resolve_ref(ref)


def test_case_22_the_worker_never_detects_again(site: PluginSite) -> None:
    extra = """
    CALLS = []
    @hookimpl
    def detect(probe):
        CALLS.append("detect")
        return Detection(state=DetectionState.BY_NAME_ONLY, reason="")
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    ref = reference()
    code = f"""
    import tpu_plugin
    from core_engine.backends.reference import decode_ref, resolve_ref
    backend = resolve_ref(decode_ref({encode_ref(ref)!r}))
    print(backend.name, tpu_plugin.CALLS)
    """
    environment = {"CORE_ENGINE_BACKEND": "cpu", "CORE_ENGINE_PLUGINS": "none", "TPU_VISIBLE": "9"}
    assert site.run(code, environment=environment).stdout == "tpu []\n"


def test_a_plugin_that_fails_in_the_worker_is_a_load_error(site: PluginSite) -> None:
    site.add_backend("tpu")
    ref = reference()
    (site.folder / "tpu_plugin.py").write_text("raise OSError('no driver here')")
    code = f"""
    from core_engine.backends.reference import decode_ref, resolve_ref
    resolve_ref(decode_ref({encode_ref(ref)!r}))
    """
    finished = site.run(code)
    assert finished.returncode == 1
    assert BackendLoadError.__name__ in finished.stderr
    assert "no driver here" in finished.stderr
