"""The kernels are held to the formula, in every kind of step, layer, dtype and block size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_run import DTYPES, assert_right, backend_for, io, make_case, needs_of, run, write_past
from core_engine_cuda.attention import BLOCK_SIZES, TritonPagedAttention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core_engine.plugin import EngineError
from core_engine.plugin.runtime import AttentionNeeds

STEPS = {
    "decodes": [(0, 1), (15, 1), (16, 1), (70, 1)],
    "prefill": [(0, 75)],
    "chunk": [(61, 19)],
    "mixed": [(90, 1), (0, 20), (5, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "one head each": {"num_heads": 2},
    "three heads a group": {"num_heads": 3, "num_kv_heads": 1},
    "eight heads a group": {"num_heads": 8, "num_kv_heads": 1},
    "heads of 64": {"head_dim": 64},
    "heads of 96": {"head_dim": 96},
    "heads of 128": {"head_dim": 128},
    "heads of 256": {"head_dim": 256, "num_kv_heads": 1},
    "narrow values": {"head_dim_v": 16},
    "window": {"sliding_window": 9},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "all at once": {"sliding_window": 21, "soft_cap": 1.5, "sinks": True},
}


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_formula(requests: list[tuple[int, int]], layer: dict[str, Any], dtype: str) -> None:
    case = make_case(requests, dtype=dtype, **layer)
    assert_right(case, run(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_more_heads_than_a_tile_has_rows_make_several_tiles(name: str, dtype: str) -> None:
    case = make_case(STEPS[name], num_heads=19, num_kv_heads=1, head_dim=16, dtype=dtype)
    assert_right(case, run(case))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_every_block_size(name: str, block_size: int, window: int | None) -> None:
    case = make_case(STEPS[name], block_size=block_size, sliding_window=window, dtype="float16")
    assert_right(case, run(case))


@pytest.mark.parametrize("layer", ["one head each", "three heads a group", "sinks", "all at once"])
def test_a_long_context_is_divided_among_programs_and_joined(layer: str) -> None:
    # In float32: a sink that counted in every span would not show in half precision.
    case = make_case([(599, 1), (3, 1), (300, 1)], **LAYERS[layer])
    assert_right(case, run(case, num_sms=8))


@pytest.mark.parametrize("layer", ["three heads a group", "all at once"])
def test_a_long_past_of_a_few_tokens_is_divided_too(layer: str) -> None:
    case = make_case([(700, 5), (500, 1)], dtype="float16", **LAYERS[layer])
    assert_right(case, run(case, num_sms=8))


@pytest.mark.parametrize("name", ["decodes", "mixed", "prefill"])
def test_padding_rows_are_zero(name: str) -> None:
    case = make_case(STEPS[name], pad=(96, 8), sinks=True, dtype="float16")
    output = run(case)
    assert_right(case, output)
    assert not output[len(case.expected()) :].any()


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_what_no_request_wrote_does_not_matter(name: str, window: int | None) -> None:
    case = make_case(STEPS[name], sliding_window=window, pad=(64, 6), dtype="float16")
    backend = backend_for(case)
    cache = case.allocate(backend, io)
    for tensor in cache:
        tensor.fill_(torch.nan)
    write_past(case, cache)
    assert_right(case, case.run_step(backend, io, cache))


@pytest.mark.parametrize("window", [1, 6, 40])
@pytest.mark.parametrize("name", ["decodes", "mixed", "chunk"])
def test_case_15_what_lies_behind_the_window_is_never_read(name: str, window: int) -> None:
    case = make_case(STEPS[name], sliding_window=window, dtype="float16")
    backend = backend_for(case)
    cache = case.allocate(backend, io)
    write_past(case, cache)
    behind = case.blocks_behind_window()
    assert behind
    for tensor in cache:
        tensor[behind] = torch.nan
    assert_right(case, case.run_step(backend, io, cache))


def test_a_layer_that_shares_a_cache_reads_it_and_writes_nothing() -> None:
    case = make_case(STEPS["mixed"], dtype="float16")
    backend = backend_for(case)
    cache = case.allocate(backend, io)
    write_past(case, cache)
    owner = case.run_step(backend, io, cache)
    before = [tensor.clone() for tensor in cache]
    sharer = case.run_step(backend, io, cache, shares_cache=True)
    assert torch.equal(owner, sharer)
    assert all(torch.equal(old, new) for old, new in zip(before, cache, strict=True))


def test_inputs_may_be_views_of_larger_tensors() -> None:
    case = make_case(STEPS["mixed"], dtype="float16")
    plain = run(case)
    for tensors in (case.queries, case.keys, case.values):
        # Every second number of a row, as no model has it.
        tensors[:] = [torch.stack([tensor, tensor], dim=-1).flatten(2)[..., ::2] for tensor in tensors]
    assert torch.equal(run(case), plain)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_steps(data: st.DataObject) -> None:
    draw = data.draw
    only_decodes = draw(st.booleans(), "only decodes")
    new = st.just(1) if only_decodes else st.integers(1, 40)
    requests = draw(st.lists(st.tuples(st.integers(0, 90), new), min_size=1, max_size=4), "requests")
    num_kv_heads = draw(st.integers(1, 2), "K/V heads")
    num_tokens = sum(tokens for _, tokens in requests)
    case = make_case(
        requests,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * draw(st.sampled_from([1, 3, 4, 8]), "group"),
        head_dim=draw(st.sampled_from([8, 24, 64, 80]), "head size"),
        dtype=draw(st.sampled_from(sorted(DTYPES)), "dtype"),
        block_size=draw(st.sampled_from(BLOCK_SIZES), "block size"),
        sliding_window=draw(st.none() | st.integers(1, 120), "window"),
        soft_cap=draw(st.none() | st.floats(0.5, 30.0), "soft cap"),
        sinks=draw(st.booleans(), "sinks"),
        pad=(num_tokens + draw(st.integers(0, 20)), len(requests) + draw(st.integers(0, 3))),
    )
    assert_right(case, run(case, num_sms=draw(st.integers(1, 6), "multiprocessors")))


def test_a_layer_that_was_not_announced_is_an_error() -> None:
    case = make_case(STEPS["decodes"])
    backend = backend_for(case)
    cache = case.allocate(backend, io)
    other = make_case(STEPS["decodes"], num_heads=6)
    with pytest.raises(EngineError, match=r"supports\(\) was never asked about layer 'layers.0'"):
        other.run_step(backend, io, cache)


def test_a_page_is_counted_as_it_is_allocated() -> None:
    case = make_case([(0, 1)], dtype="bfloat16", head_dim_v=16)
    backend = backend_for(case)
    cache = case.allocate(backend, io)
    allocated = sum(tensor.numel() * tensor.itemsize for tensor in cache)
    assert allocated == case.num_blocks * backend.page_bytes(case.layer.spec, case.block_size)


def test_scratch_memory_is_taken_once_for_all_layers() -> None:
    case = make_case([(0, 1)])
    backend = backend_for(case)
    assert backend.supports(needs_of(make_case([(0, 1)], head_dim=256))) is None
    taken = []
    counted = type(io)()
    counted.allocate = lambda shape, dtype: taken.append(shape) or torch.zeros(shape, dtype=dtype)  # type: ignore[method-assign]
    for _ in range(3):
        case.allocate(backend, counted)
    scratch = [shape for shape in taken if len(shape) == 1]
    assert [4 * shape[0] for shape in scratch] == [backend.scratch_bytes]


REFERENCE_SERVES = "--backend-option attention=reference serves every layer"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float64"}, "dtype 'float64' is none of float16, bfloat16, float32"),
        ({"num_heads": 5}, "5 query heads do not divide among 2 K/V heads"),
        ({"head_dim": 36}, "head size 36 is not a multiple of 8 up to 256; " + REFERENCE_SERVES),
        ({"head_dim_v": 264}, "head size 264 is not a multiple of 8 up to 256; " + REFERENCE_SERVES),
        ({"block_size": 8}, "block size 8 is none of 16, 32, 64, 128"),
    ],
)
def test_what_the_kernels_cannot_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    needs: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "head_dim_v": 64,
        "dtype": "bfloat16",
        "block_size": 16,
    }
    backend = TritonPagedAttention(num_sms=2, major=9)
    assert backend.supports(AttentionNeeds(**needs)) is None
    assert backend.supports(AttentionNeeds(**{**needs, **change})) == reason
