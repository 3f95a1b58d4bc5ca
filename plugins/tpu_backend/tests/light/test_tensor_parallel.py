from __future__ import annotations

from dataclasses import replace

import pytest
from core_engine_tpu import plugin
from core_engine_tpu.tensor_parallel import check_devices

from core_engine.plugin import DeviceInfo, UnsupportedFeature
from core_engine.testing.fake_context import fake_engine_config, fake_model_config

CONFIG = fake_engine_config()
MODEL = fake_model_config()
DEVICES = tuple(DeviceInfo(index=index, name=f"device {index}") for index in range(4))


def test_one_device_or_all_are_used() -> None:
    assert check_devices(CONFIG, DEVICES) == DEVICES[:1]
    assert check_devices(replace(CONFIG, tensor_parallel_size=4), DEVICES) == DEVICES


def test_some_of_the_devices_are_refused_with_what_to_set() -> None:
    expected = r"size 2 of 4 devices: .* to 4 or 1, or show .* CPU_NUM_DEVICES=2 .* TPU_VISIBLE_CHIPS=0,1 "
    with pytest.raises(UnsupportedFeature, match=expected):
        check_devices(replace(CONFIG, tensor_parallel_size=2), DEVICES)


def test_more_devices_than_there_are_is_refused_with_both_numbers() -> None:
    with pytest.raises(UnsupportedFeature, match="needs 8 devices of one host, and the tpu backend sees 4"):
        check_devices(replace(CONFIG, tensor_parallel_size=8), DEVICES)


def test_one_worker_owns_all_devices_and_the_capabilities_count_them() -> None:
    config = replace(CONFIG, tensor_parallel_size=4)
    (plan,) = plugin.plan_workers(config, DEVICES)
    assert plan.device_indices == (0, 1, 2, 3)
    options = {option.name: option.default for option in plugin.option_schema()}
    assert plugin.capabilities(DEVICES, config, MODEL, options).max_tensor_parallel_size == 4
