"""Detection: the state and its reason, from the PCI register, installed distributions and variables alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_engine_tpu.detection import detect_tpus, missing_for_compile_check

from core_engine.plugin import DetectionState, Probe

SOFTWARE = {"torch": "2.9.1", "torch_xla": "2.9.0", "libtpu": "0.0.21", "jax": "0.7.1", "jaxlib": "0.7.1"}
V5E, GVNIC, NVIDIA = ("0x1ae0", "0x0063"), ("0x1ae0", "0x0042"), ("0x10de", "0x2330")


class Machine(Probe):
    """A machine of which the test says what is installed and what is on the bus."""

    def __init__(
        self,
        root: Path,
        cards: list[tuple[str, str]],
        software: dict[str, str] | None = None,
        **environment: str,
    ) -> None:
        super().__init__(environment, root)
        self._software = SOFTWARE if software is None else software
        for index, (vendor, device) in enumerate(cards):
            folder = root / "sys" / "bus" / "pci" / "devices" / f"0000:00:{index:02}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "device").write_text(f"{device}\n")

    def distribution_version(self, distribution: str) -> str | None:
        return self._software.get(distribution)


def test_chips_are_found_on_the_bus(tmp_path: Path) -> None:
    detection = detect_tpus(Machine(tmp_path, [NVIDIA, V5E, GVNIC, V5E]))
    assert (detection.state, detection.reason) == (DetectionState.AVAILABLE, "2 x TPU v5e")
    assert [device.index for device in detection.devices] == [0, 1]
    assert [device.memory_bytes for device in detection.devices] == [16_128 << 20] * 2


def test_googles_network_card_is_no_tpu(tmp_path: Path) -> None:
    detection = detect_tpus(Machine(tmp_path, [GVNIC]))
    assert detection.state is DetectionState.UNAVAILABLE
    assert detection.reason == "no TPU on the PCI bus; PJRT_DEVICE=CPU runs its graphs on the host"


def test_each_core_of_the_oldest_chips_is_a_device(tmp_path: Path) -> None:
    assert len(detect_tpus(Machine(tmp_path, [("0x1ae0", "0x0027")])).devices) == 2


def test_visible_chips_limit_the_devices(tmp_path: Path) -> None:
    detection = detect_tpus(Machine(tmp_path, [V5E] * 4, TPU_VISIBLE_CHIPS="2,3"))
    assert [device.index for device in detection.devices] == [0, 1]
    assert detection.reason == "2 x TPU v5e, by TPU_VISIBLE_CHIPS=2,3"


@pytest.mark.parametrize("text", ["4", "0,x", "-1"])
def test_visible_chips_that_are_not_there_are_told(tmp_path: Path, text: str) -> None:
    detection = detect_tpus(Machine(tmp_path, [V5E] * 4, TPU_VISIBLE_CHIPS=text))
    assert detection.state is DetectionState.UNAVAILABLE
    assert "names chips other than 0, 1, 2, 3" in detection.reason


@pytest.mark.parametrize(("variable", "count"), [({}, 1), ({"CPU_NUM_DEVICES": "4"}, 4)])
def test_the_host_is_served_by_name_only(tmp_path: Path, variable: dict[str, str], count: int) -> None:
    detection = detect_tpus(Machine(tmp_path, [], PJRT_DEVICE="CPU", **variable))
    assert detection.state is DetectionState.BY_NAME_ONLY
    assert len(detection.devices) == count


@pytest.mark.parametrize("text", ["0", "many", "-2", "100000000"])
def test_a_number_of_host_devices_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    detection = detect_tpus(Machine(tmp_path, [], PJRT_DEVICE="CPU", CPU_NUM_DEVICES=text))
    assert detection.state is DetectionState.UNAVAILABLE
    assert text in detection.reason


def test_another_pjrt_device_is_not_ours(tmp_path: Path) -> None:
    detection = detect_tpus(Machine(tmp_path, [V5E], PJRT_DEVICE="CUDA"))
    assert detection.state is DetectionState.UNAVAILABLE
    assert detection.reason.startswith("PJRT_DEVICE=CUDA")


@pytest.mark.parametrize("torch", ["2.8.0", "2.10.0+cpu", "2.13.0+cpu"])
def test_case_14_another_torch_is_told(tmp_path: Path, torch: str) -> None:
    detection = detect_tpus(Machine(tmp_path, [V5E], {**SOFTWARE, "torch": torch}))
    assert detection.state is DetectionState.UNAVAILABLE
    assert "needs torch 2.9" in detection.reason
    assert torch in detection.reason


def test_a_missing_torch_xla_is_told_with_the_line_to_type(tmp_path: Path) -> None:
    detection = detect_tpus(Machine(tmp_path, [V5E], {"torch": "2.9.1"}))
    assert detection.reason == "torch_xla is not installed: pip install 'core-engine[tpu]'"


def test_chips_without_their_driver_library_are_told(tmp_path: Path) -> None:
    installed = {"torch": "2.9.1", "torch_xla": "2.9.0", "jax": "0.7.1"}
    detection = detect_tpus(Machine(tmp_path, [V5E], installed))
    assert detection.state is DetectionState.UNAVAILABLE
    expected = "1 x TPU v5e, but libtpu and jaxlib are missing: pip install 'core-engine[tpu]'"
    assert detection.reason == expected


def test_a_torch_that_is_missing_altogether_is_told(tmp_path: Path) -> None:
    assert "torch here is not installed" in detect_tpus(Machine(tmp_path, [V5E], {})).reason


def test_the_compile_check_needs_no_tpu(tmp_path: Path) -> None:
    assert missing_for_compile_check(Machine(tmp_path, [])) is None


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("libtpu",), "needs libtpu, not installed here"),
        (("libtpu", "jax"), "needs libtpu and jax, not installed here"),
        (("torch_xla",), "torch_xla is not installed"),
        (("torch",), "the compile check needs torch 2.9"),
    ],
)
def test_what_the_compile_check_lacks_is_named(tmp_path: Path, missing: tuple[str, ...], told: str) -> None:
    software = {name: version for name, version in SOFTWARE.items() if name not in missing}
    refusal = missing_for_compile_check(Machine(tmp_path, [], software))
    assert refusal is not None
    assert told in refusal
    if "libtpu" in missing:
        assert "pip install 'core-engine-tpu[compile-check]'" in refusal
