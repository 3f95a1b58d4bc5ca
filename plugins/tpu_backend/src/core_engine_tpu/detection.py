"""Finds TPUs on the PCI bus and says why one cannot be used; starts no runtime, imports no torch."""

from __future__ import annotations

from core_engine.plugin import Detection, DetectionState, DeviceInfo, Probe
from core_engine_tpu.chips import CHIPS

__all__ = ["HOST_DEVICE", "detect_tpus", "missing_for_compile_check"]

#: Google's number in the PCI register; its virtual network cards have it too, so the device counts as well.
GOOGLE_PCI_VENDOR = "0x1ae0"
#: Device number → kind, as JAX's own start-up check lists them.
TPU_PCI_DEVICES = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}
#: Each core of the oldest chips is a device of its own.
TWO_CORE_CHIPS = frozenset({"0x0027"})
#: What the host is called where it stands for a TPU.
HOST_DEVICE = "PJRT CPU device"
#: What a TPU needs beside torch_xla: its driver library, and the compiler front end of its attention kernel.
TPU_SOFTWARE = ("libtpu", "jax", "jaxlib")


def detect_tpus(probe: Probe) -> Detection:
    """Look for chips, and for a torch that torch_xla can be loaded into.

    ``PJRT_DEVICE=CPU`` runs the same graphs on the host; that is served when it is asked for by name only.
    ``TPU_VISIBLE_CHIPS`` limits the chips, as it does for the driver library.
    """
    if (refusal := _missing_torch(probe)) is not None:
        return _unavailable(refusal)
    wanted = probe.environment.get("PJRT_DEVICE", "").upper() or "TPU"
    if wanted == "CPU":
        return _detect_host(probe)
    if wanted != "TPU":
        return _unavailable(f"PJRT_DEVICE={wanted}: this backend knows TPU, and CPU for trying it out")
    kinds = [kind for kind in (_kinds_of(vendor, device) for vendor, device in probe.pci_devices) if kind]
    devices = tuple(_device(index, kind) for index, kind in enumerate(sum(kinds, ())))
    if not devices:
        return _unavailable("no TPU on the PCI bus; PJRT_DEVICE=CPU runs its graphs on the host")
    missing = [name for name in TPU_SOFTWARE if probe.distribution_version(name) is None]
    if missing:
        return _unavailable(
            f"{len(devices)} x {devices[0].name}, but {' and '.join(missing)} are missing: "
            "pip install 'core-engine[tpu]'"
        )
    return _visible(devices, probe)


def missing_for_compile_check(probe: Probe) -> str | None:
    """Say what is missing for compiling for absent TPUs, and how to get it; None where all is there."""
    if (refusal := _missing_torch(probe)) is not None:
        return f"the compile check {refusal}" if refusal.startswith("needs") else refusal
    missing = [name for name in TPU_SOFTWARE if probe.distribution_version(name) is None]
    if not missing:
        return None
    return (
        f"the compile check needs {' and '.join(missing)}, not installed here: "
        "pip install 'core-engine-tpu[compile-check]'"
    )


def _kinds_of(vendor: str, device: str) -> tuple[str, ...]:
    """Return the kinds of the devices on one PCI function: none, one, or two."""
    if vendor != GOOGLE_PCI_VENDOR or device not in TPU_PCI_DEVICES:
        return ()
    return (TPU_PCI_DEVICES[device],) * (2 if device in TWO_CORE_CHIPS else 1)


def _device(index: int, kind: str) -> DeviceInfo:
    """Describe one device, with the memory that programs may use where its kind is known for it."""
    chip = CHIPS.get(kind)
    memory_bytes = None if chip is None else chip.usable_mib << 20
    return DeviceInfo(index=index, name=f"TPU {kind}", memory_bytes=memory_bytes)


def _visible(devices: tuple[DeviceInfo, ...], probe: Probe) -> Detection:
    text = probe.environment.get("TPU_VISIBLE_CHIPS", "").strip()
    if not text:
        reason = f"{len(devices)} x {devices[0].name}"
        return Detection(state=DetectionState.AVAILABLE, reason=reason, devices=devices)
    chips = text.split(",")
    known = {str(device.index) for device in devices}
    if not set(map(str.strip, chips)) <= known:
        return _unavailable(f"TPU_VISIBLE_CHIPS={text!r} names chips other than {', '.join(sorted(known))}")
    # The driver library numbers the chips that it is shown anew.
    visible = devices[: len(chips)]
    reason = f"{len(visible)} x {visible[0].name}, by TPU_VISIBLE_CHIPS={text}"
    return Detection(state=DetectionState.AVAILABLE, reason=reason, devices=visible)


def _detect_host(probe: Probe) -> Detection:
    text = probe.environment.get("CPU_NUM_DEVICES", "").strip() or "1"
    if not text.isdecimal() or len(text) > 3 or int(text) < 1:
        return _unavailable(f"CPU_NUM_DEVICES={text!r} is no number of devices from 1 to 999")
    return Detection(
        state=DetectionState.BY_NAME_ONLY,
        reason="PJRT_DEVICE=CPU: the TPU's graphs run on the host",
        devices=tuple(DeviceInfo(index=i, name=f"{HOST_DEVICE} {i}") for i in range(int(text))),
    )


def _missing_torch(probe: Probe) -> str | None:
    torch, torch_xla = probe.distribution_version("torch"), probe.distribution_version("torch_xla")
    if torch is None or not torch.startswith("2.9."):
        found = torch or "not installed"
        return f"needs torch 2.9, the only one that torch_xla 2.9 can be loaded into; torch here is {found}"
    if torch_xla is None:
        return "torch_xla is not installed: pip install 'core-engine[tpu]'"
    return None


def _unavailable(reason: str) -> Detection:
    return Detection(state=DetectionState.UNAVAILABLE, reason=reason)
