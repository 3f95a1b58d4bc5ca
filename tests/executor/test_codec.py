from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from core_engine._ragged import Ragged
from core_engine.errors import ContractError, EngineError
from core_engine.executor.codec import WORKER_CALLS, Call, Reply, Start, decode, encode
from core_engine.hookspecs import WorkerApi
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.testing.fake_context import fake_worker_context
from core_engine.worker.context import WorkerContext
from core_engine.worker.hook_manager import hook_names
from core_engine.worker.output import LogprobRows, ModelRunnerOutput
from core_engine.worker.reports import DeviceReport, MemoryInfo

ids = st.integers(0, 2**31 - 1)
rows = st.lists(st.lists(ids, max_size=4), max_size=4)
raggeds = st.builds(Ragged.from_rows, rows)
columns = hnp.arrays(np.int32, st.integers(0, 5))
params = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(1, 100),
    temperature=st.floats(0, 2),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple),
    logit_bias=st.none() | st.dictionaries(ids, st.floats(-100, 100), max_size=2),
)
new_requests = st.builds(
    NewRequest,
    request_id=st.text(),
    prompt_token_ids=columns,
    sampling_params=params,
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 9),
    eos_token_ids=st.lists(ids, max_size=2).map(tuple),
)
names = st.lists(st.text(), max_size=3).map(tuple)
steps = st.builds(
    SchedulerOutput,
    step_id=st.integers(0, 2**40),
    request_ids=names,
    num_scheduled_tokens=columns,
    num_computed_tokens=columns,
    new_block_ids=st.lists(raggeds, max_size=2).map(tuple),
    new_requests=st.lists(new_requests, max_size=2).map(tuple),
    resumed_request_ids=names,
    preempted_request_ids=names,
    finished_request_ids=names,
    draft_token_ids=st.none() | raggeds,
)
floats = hnp.arrays(np.float32, (2, 3))
logprobs = st.builds(
    LogprobRows,
    token_ids=hnp.arrays(np.int32, (2, 3)),
    logprobs=floats,
    ranks=hnp.arrays(np.int32, 2),
)
outputs = st.builds(
    ModelRunnerOutput,
    step_id=st.integers(0, 2**40),
    request_ids=names,
    sampled_token_ids=raggeds,
    logprobs=st.none() | logprobs,
    prompt_logprobs=st.dictionaries(st.text(), logprobs, max_size=2),
)


def same(left: Any, right: Any) -> bool:
    """Compare messages, arrays by dtype, shape and bits."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        fields = [field.name for field in dataclasses.fields(left)]
        return type(left) is type(right) and all(same(getattr(left, n), getattr(right, n)) for n in fields)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and left == right


@given(steps)
def test_a_step_survives_the_round_trip(step: SchedulerOutput) -> None:
    assert same(decode(encode(step), SchedulerOutput), step)


@given(outputs)
def test_a_steps_output_survives_the_round_trip(output: ModelRunnerOutput) -> None:
    assert same(decode(encode(output), ModelRunnerOutput), output)


def test_the_start_messages_survive_the_round_trip() -> None:
    context = fake_worker_context(options={"a": 1, "b": "x", "c": 0.5, "d": True, "e": None})
    assert same(decode(encode(context), WorkerContext), context)
    spec = KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")
    group = KVCacheGroup(layers={"a": spec}, shared={"b": "a"})
    config = KVCacheConfig(num_blocks=3, block_size=4, max_model_len=8, groups=(group,))
    assert same(decode(encode(config), KVCacheConfig), config)
    specs: dict[str, KVCacheSpec | str] = {"a": spec, "b": "a"}
    assert same(decode(encode(specs), dict[str, KVCacheSpec | str]), specs)
    memory = MemoryInfo(total_bytes=None, free_bytes=5)
    report = DeviceReport(device="x", capabilities=Capabilities(max_logprobs=3), memory=memory)
    assert same(decode(encode(report), DeviceReport), report)


def test_a_decoded_array_is_writable_and_its_own() -> None:
    message = Ragged.from_rows([[1, 2]])
    data = encode(message)
    first, second = decode(data, Ragged), decode(data, Ragged)
    first.values[0] = 9
    assert second.values.tolist() == [1, 2]


def test_every_method_of_the_worker_crosses_but_the_model() -> None:
    assert set(WORKER_CALLS) == set(hook_names(WorkerApi)) - {"get_model"}
    for name, spec in WORKER_CALLS.items():
        arguments = list(inspect.signature(getattr(WorkerApi, name)).parameters)[1:]
        assert arguments == ([] if spec.argument is None else [spec.argument])


@given(st.binary())
@pytest.mark.parametrize("message_type", [Start, Call, Reply, SchedulerOutput, ModelRunnerOutput])
def test_arbitrary_bytes_are_a_clean_error(message_type: type[Any], data: bytes) -> None:
    with pytest.raises(EngineError, match=f"are no {message_type.__name__}"):
        decode(data, message_type)


@given(steps, st.data())
def test_a_damaged_step_is_a_clean_error_or_a_step(step: SchedulerOutput, data: st.DataObject) -> None:
    frame = bytearray(encode(step))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(frame), SchedulerOutput)
    except EngineError:
        return
    assert isinstance(decoded, SchedulerOutput)


@pytest.mark.parametrize(
    "array",
    [
        ("<i4", (2,), bytes(4)),
        ("<i4", (-1, -1), bytes(4)),
        ("<i8", (1,), bytes(8)),
        ("|O", (1,), bytes(8)),
        ("nonsense", (1,), bytes(4)),
        ("<i4", (1,)),
        7,
    ],
)
def test_an_array_that_does_not_fit_is_refused(array: Any) -> None:
    data = msgspec.msgpack.encode({"values": array, "offsets": ("<i4", (0,), b"")})
    with pytest.raises(EngineError, match="are no Ragged"):
        decode(data, Ragged)


@pytest.mark.parametrize(
    "value",
    [torch.zeros(2), object(), np.array([object()]), np.array(["text"])],
    ids=["tensor", "object", "object array", "text array"],
)
def test_what_is_neither_number_nor_text_is_not_sent(value: Any) -> None:
    with pytest.raises(ContractError, match="cannot be sent between processes"):
        encode(value)
