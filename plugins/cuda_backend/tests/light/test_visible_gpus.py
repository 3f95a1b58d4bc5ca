"""CUDA_VISIBLE_DEVICES as the driver reads it."""

from __future__ import annotations

import pytest
from core_engine_cuda.nvml import Gpu, NoGpus
from core_engine_cuda.visible_gpus import visible_gpus
from fake_nvml import gpu

INSTANCES = (Gpu(uuid="MIG-aaa1", name="half"), Gpu(uuid="MIG-bbb2", name="half"))
GPUS = (gpu(0), gpu(1), gpu(2, instances=INSTANCES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["GPU-0", "GPU-1", "MIG-a"]),
        ("1", ["GPU-1"]),
        ("1,0", ["GPU-1", "GPU-0"]),
        (" 1 , 0 ", ["GPU-1", "GPU-0"]),
        ("GPU-1", ["GPU-1"]),
        ("GPU-10000000-aaaa,0", ["GPU-1", "GPU-0"]),
        # A divided GPU shows its first instance, or the one that is named.
        ("2", ["MIG-a"]),
        ("MIG-bbb2", ["MIG-b"]),
        # What follows an entry that names nothing is hidden.
        ("0,9,1", ["GPU-0"]),
        ("1,-1,0", ["GPU-1"]),
        ("0,,1", ["GPU-0"]),
        # The beginning of several UUIDs names none.
        ("0,GPU-", ["GPU-0"]),
        ("0,MIG-", ["GPU-0"]),
    ],
)
def test_entries_choose_gpus_in_their_order(text: str | None, expected: list[str]) -> None:
    assert [gpu.uuid[:5] for gpu in visible_gpus(GPUS, text)] == expected


@pytest.mark.parametrize("text", ["", "-1", "-1,0", "none", "NoDevFiles"])
def test_nothing_visible_is_told(text: str) -> None:
    with pytest.raises(NoGpus, match="hides every GPU"):
        visible_gpus(GPUS, text)


@pytest.mark.parametrize("text", ["3", "GPU-9", "MIG-c", "first", "²"])
def test_an_entry_that_names_nothing_is_told(text: str) -> None:
    with pytest.raises(NoGpus, match="names none of the GPUs 0 to 2"):
        visible_gpus(GPUS, text)


def test_a_gpu_named_twice_is_told() -> None:
    with pytest.raises(NoGpus, match="twice"):
        visible_gpus(GPUS, "1,GPU-1")
