"""Adapters through the engine: by name and content, in the cache, beside errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_adapter import make_adapter

from core_engine import LLM, LoRARequest, SamplingParams
from core_engine.engine.loras import extra_keys
from core_engine.errors import AdapterError, InvalidRequest, UnsupportedFeature
from core_engine.testing.oracle import Oracle

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = "a prompt that fills several blocks of sixteen tokens and is asked more than once"
OPTIONS: dict[str, Any] = {"backend": "cpu", "dtype": "float32", "kv_cache_bytes": 4 << 20, "block_size": 16}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> torch.nn.Module:
    module: torch.nn.Module = Oracle(tiny_model).model
    return module


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), max_loras=2, max_lora_rank=8, **OPTIONS) as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, model: torch.nn.Module) -> Any:
    def build(
        name: str = "adapter", targets: tuple[str, ...] = ("q_proj", "v_proj"), **settings: Any
    ) -> Path:
        return make_adapter(tmp_path / name, model, targets, **settings)

    return build


def lora_of(folder: Path, name: str | None = None) -> LoRARequest:
    return LoRARequest(name or folder.name, str(folder))


def tokens(llm: LLM, prompt: str = LONG, **options: Any) -> list[int]:
    return llm.generate(prompt, GREEDY, **options)[0].outputs[0].token_ids


def num_cached(llm: LLM, **options: Any) -> int:
    return llm.generate(LONG, GREEDY, **options)[0].num_cached_tokens


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Rewrite the tensors whose names end so; None takes one away."""
    tensors = load_file(folder / "adapter_model.safetensors")
    for end, tensor in changes.items():
        for name in [name for name in tensors if name.endswith(f"{end}.weight")]:
            tensors.pop(name)
            if tensor is not None:
                tensors[name] = tensor
    save_file(tensors, folder / "adapter_model.safetensors")


def test_case_11_the_cache_goes_by_content_not_by_name_or_path(llm: LLM, make: Any, tmp_path: Path) -> None:
    first, second = make("first", seed=1), make("second", seed=2)
    llm.engine.core.scheduler.reset_prefix_cache()
    assert num_cached(llm, lora=lora_of(first, "mine")) == 0
    assert num_cached(llm, lora=lora_of(first, "mine")) > 0
    # The same name at another path, then the same path with another content: nothing of the old is read.
    assert num_cached(llm, lora=lora_of(second, "mine")) == 0
    shutil.rmtree(first)
    make("first", seed=3)
    assert num_cached(llm, lora=lora_of(first, "mine")) == 0
    # The same content under another name and path is the same adapter.
    copy = shutil.copytree(second, tmp_path / "copy")
    assert num_cached(llm, lora=lora_of(copy, "other")) > 0


def test_an_adapter_reloaded_under_its_name_answers_as_a_new_one(llm: LLM, make: Any) -> None:
    folder = make("reloaded", seed=1)
    before = tokens(llm, lora=lora_of(folder))
    make("reloaded", seed=2)
    after = tokens(llm, lora=lora_of(folder))
    assert after == tokens(llm, lora=lora_of(make("same", seed=2)))
    assert after != before


def test_case_11_an_adapters_name_and_an_equal_salt_are_distinct(llm: LLM, make: Any) -> None:
    folder = make("tenant")
    llm.engine.core.scheduler.reset_prefix_cache()
    assert num_cached(llm, lora=lora_of(folder, "tenant")) == 0
    assert num_cached(llm, cache_salt="tenant") == 0
    assert num_cached(llm) == 0
    assert num_cached(llm, cache_salt="tenant") > 0
    assert num_cached(llm, cache_salt="other") == 0
    assert num_cached(llm, lora=lora_of(folder, "tenant"), cache_salt="tenant") == 0


def test_case_11_a_salt_of_the_bytes_of_a_digest_is_another_key() -> None:
    assert extra_keys((b"a" * 32).hex(), None) != extra_keys(None, "a" * 32)


@pytest.mark.parametrize("salt", ["", 7, b"x"])
def test_a_salt_is_a_text(llm: LLM, salt: Any) -> None:
    with pytest.raises(InvalidRequest, match="cache_salt"):
        llm.generate("hello", GREEDY, cache_salt=salt)


def test_more_adapters_than_slots_take_turns(llm: LLM, make: Any) -> None:
    loras = [None, *(lora_of(make(f"turn-{n}", seed=n)) for n in range(4))]
    alone = [tokens(llm, lora=lora) for lora in loras]
    outputs = llm.generate([LONG] * 5, GREEDY, lora=loras)
    assert [output.outputs[0].token_ids for output in outputs] == alone
    assert len({tuple(ids) for ids in alone}) == 5


def test_preempted_requests_keep_their_adapters(tiny_model: Path, llm: LLM, make: Any) -> None:
    loras = [lora_of(make("one", seed=1)), None, lora_of(make("two", seed=2)), None]
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    prompts = [[n + 3] * 20 for n in range(4)]
    roomy = [o.outputs[0].token_ids for o in llm.generate(prompts, params, lora=loras)]
    per_block = OPTIONS["kv_cache_bytes"] // (llm.engine.core.scheduler.stats().num_total_blocks + 1)
    options = OPTIONS | {"kv_cache_bytes": 11 * per_block, "max_model_len": 128}
    with LLM(str(tiny_model), max_loras=2, max_lora_rank=8, **options) as tight:
        assert [o.outputs[0].token_ids for o in tight.generate(prompts, params, lora=loras)] == roomy
        assert tight.engine.core.scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("options", [{"scheduler": "simple"}, {"num_draft_tokens": 3}])
def test_tokens_do_not_depend_on_the_scheduler_or_on_drafts(
    tiny_model: Path, llm: LLM, make: Any, options: dict[str, Any]
) -> None:
    loras = [lora_of(make("one", seed=1)), None, lora_of(make("two", seed=2)), lora_of(make("three", seed=3))]
    prompts = [[7, 8] * 9, [7, 8] * 9, [9] * 30, [3, 4, 5]]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    expected = [o.outputs[0].token_ids for o in llm.generate(prompts, params, lora=loras)]
    with LLM(str(tiny_model), max_loras=2, max_lora_rank=8, **OPTIONS | options) as other:
        assert [o.outputs[0].token_ids for o in other.generate(prompts, params, lora=loras)] == expected


def test_a_worker_in_its_own_process_serves_adapters(tiny_model: Path, llm: LLM, make: Any) -> None:
    good, bad = lora_of(make("good")), lora_of(make("bad", rank=16))
    expected = tokens(llm, lora=good)
    with LLM(str(tiny_model), max_loras=1, max_lora_rank=8, executor="process", **OPTIONS) as remote:
        with pytest.raises(AdapterError, match="rank 16"):
            tokens(remote, lora=bad)
        assert tokens(remote, lora=good) == expected
        assert [(info.name, info.slot) for info in remote.list_loras()] == [("good", 0)]


@pytest.mark.parametrize("door", ["stream", "chat", "stream_chat"])
def test_every_door_takes_an_adapter(llm: LLM, make: Any, door: str) -> None:
    lora = lora_of(make("door"))
    chat = [{"role": "user", "content": "hi"}]
    if door == "chat":
        with_lora, without = (llm.chat(chat, GREEDY, lora=x)[0].outputs[0].token_ids for x in (lora, None))
    else:
        call: Any = getattr(llm, door)
        prompt = "hello" if door == "stream" else chat
        with_lora, without = (
            [token for chunk in call(prompt, GREEDY, lora=x) for token in chunk.token_ids]
            for x in (lora, None)
        )
    assert with_lora != without


def test_wrong_rank(llm: LLM, make: Any) -> None:
    refuse(llm, make("large", rank=32), "rank 32, but max_lora_rank is 8")
    refuse(llm, make("other-rank", r=2), r"lora_A of 'model.layers.0.self_attn.q_proj'.*with the rank 2")


def test_missing_target(llm: LLM, make: Any) -> None:
    refuse(
        llm, make("target", target_modules=["q_proj", "w1"]), "made for modules 'w1'.*modules are down_proj"
    )
    folder = make("module")
    change(folder, **{"layers.1.self_attn.q_proj.lora_B": None})
    refuse(llm, folder, "lacks model.layers.1.self_attn.q_proj.lora_B")
    folder = make("foreign")
    path = folder / "adapter_model.safetensors"
    save_file({k.replace("layers.3", "layers.30"): v for k, v in load_file(path).items()}, path)
    refuse(llm, folder, "no such module. Did you mean 'model.layers.3.self_attn.[qv]_proj'")
    refuse(llm, make("head", ("q_proj", "lm_head")), "'lm_head': only linear layers of the backbone")


def test_wrong_shape_of_the_base(llm: LLM, make: Any) -> None:
    folder = make("narrow")
    change(folder, **{"layers.0.self_attn.v_proj.lora_B": torch.zeros(31, 4)})
    refuse(llm, folder, r"lora_B of .*v_proj' is float32 \[31, 4\]; .* must be floating-point \[32, 4\]")


def test_damaged_weights(llm: LLM, make: Any) -> None:
    folder = make("cut")
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    refuse(llm, folder, "adapter_model.safetensors is damaged")
    folder = make("nan")
    change(folder, **{"layers.0.self_attn.q_proj.lora_A": torch.full((4, 64), torch.nan)})
    refuse(llm, folder, "not finite")
    folder = make("embedding")
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.zeros(4, 64)
    save_file(tensors, folder / "adapter_model.safetensors")
    refuse(llm, folder, "no low-rank pair of a linear layer: .*embed_tokens")


def refuse(llm: LLM, folder: Path, said: str) -> None:
    """The adapter is refused as one of two prompts', neither of which runs; the engine goes on."""
    __tracebackhide__ = True
    held = llm.list_loras()
    with pytest.raises(AdapterError, match=f"prompt 1: .*{said}") as refusal:
        llm.generate([LONG, LONG], GREEDY, lora=[None, lora_of(folder)])
    assert refusal.value.param == "lora"
    assert llm.list_loras() == held
    stats = llm.engine.core.scheduler.stats()
    assert (stats.num_waiting, stats.num_running) == (0, 0)
    assert len(tokens(llm)) == 8


def test_adapters_are_loaded_listed_and_unloaded_by_name(tiny_model: Path, make: Any) -> None:
    with LLM(str(tiny_model), max_loras=1, **OPTIONS) as llm:
        info = llm.load_lora(lora_of(make("first")))
        assert (info.name, info.rank, info.num_modules, info.slot) == ("first", 4, 8, -1)
        tokens(llm, lora=lora_of(make("second", seed=2)))
        assert [(i.name, i.slot) for i in llm.list_loras()] == [("first", -1), ("second", 0)]
        llm.unload_lora("second")
        assert [i.name for i in llm.list_loras()] == ["first"]
        with pytest.raises(InvalidRequest, match="no adapter is called 'second'; loaded are first"):
            llm.unload_lora("second")


def test_an_adapter_in_use_is_not_unloaded(llm: LLM, make: Any) -> None:
    lora = lora_of(make("busy", seed=77))
    stream = llm.stream("hello", GREEDY, lora=lora)
    next(stream)
    with pytest.raises(InvalidRequest, match="in use by unfinished requests"):
        llm.unload_lora("busy")
    assert len([token for chunk in stream for token in chunk.token_ids]) == 7
    llm.unload_lora("busy")


def test_requests_under_way_go_on_with_the_content_they_began_with(llm: LLM, make: Any) -> None:
    folder = make("live", seed=1)
    expected = tokens(llm, "hello", lora=lora_of(folder))
    stream = llm.stream("hello", GREEDY, lora=lora_of(folder))
    first = next(stream).token_ids
    make("live", seed=2)
    other = tokens(llm, "hello", lora=lora_of(folder))
    assert first + [token for chunk in stream for token in chunk.token_ids] == expected != other


def test_a_content_that_has_no_name_left_is_forgotten_with_its_last_request(
    tiny_model: Path, make: Any
) -> None:
    with LLM(str(tiny_model), max_loras=2, **OPTIONS) as llm:
        stream = llm.stream("hello", GREEDY, lora=lora_of(make("x", seed=1), "same"))
        next(stream)
        second = lora_of(make("y", seed=2), "same")
        tokens(llm, lora=second)
        assert [info.lora_id for info in llm.engine.core.executor.list_loras()] == [1, 2]
        list(stream)
        tokens(llm, lora=second)
        assert [info.lora_id for info in llm.engine.core.executor.list_loras()] == [2]


def test_two_contents_under_one_name_in_one_call(llm: LLM, make: Any) -> None:
    loras = [lora_of(make("x", seed=1), "same"), lora_of(make("y", seed=2), "same")]
    outputs = llm.generate([LONG, LONG], GREEDY, lora=loras)
    assert [o.outputs[0].token_ids for o in outputs] == [tokens(llm, lora=lora) for lora in loras]


def test_without_max_loras_an_adapter_is_refused_with_the_way_out(tiny_model: Path, make: Any) -> None:
    with LLM(str(tiny_model), **OPTIONS) as plain:
        with pytest.raises(UnsupportedFeature, match="max_loras of at least 1"):
            plain.generate("hello", GREEDY, lora=lora_of(make()))
        assert len(tokens(plain)) == 8


@pytest.mark.parametrize("lora", ["name", {"name": "x"}, [None, "x"], 3])
def test_an_adapter_of_another_type_is_refused(llm: LLM, lora: Any) -> None:
    with pytest.raises(InvalidRequest, match="lora must be a LoRARequest"):
        llm.generate(["a", "b"], GREEDY, lora=lora)


def test_adapters_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="1 entries in lora for 2 prompts"):
        llm.generate(["a", "b"], GREEDY, lora=[None])


@pytest.mark.parametrize(("name", "path"), [("", "x"), ("x", ""), ("x", Path("y")), (None, "x")])
def test_a_request_needs_a_name_and_a_path(name: Any, path: Any) -> None:
    with pytest.raises(InvalidRequest, match="of a LoRARequest is a text"):
        LoRARequest(name, path)
