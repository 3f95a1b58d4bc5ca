"""Features in combination change how requests are computed, never what they answer.

Schedulers, devices, drafts, adapters, windows, cached prefixes, policies and tight pools are combined so that
every pair of them meets; random requests come and go, and each answers what it answers alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from draft_oracle import draft_at_random, use_oracles
from engine.request_mix import (
    Asked,
    ask_alone,
    ask_together,
    assert_same,
    known_texts,
    make_requests,
    with_stops,
)
from tiny_adapter import make_adapter
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, LoRARequest, RequestOutput
from core_engine.scheduler.base import QueueScheduler
from core_engine.testing.oracle import Oracle

#: What is combined; each pair of values of two rows meets in at least one engine.
FACTORS: dict[str, tuple[Any, ...]] = {
    "model": ("llama", "gemma3_text"),  # full attention; windows and full attention
    "device": ("cpu numba", "cpu reference", "cpu dense", "sim paged", "sim dense"),
    "scheduler": ("unified", "simple"),
    "num_draft_tokens": (0, 2, 5),
    "enable_prefix_caching": (False, True),
    "max_loras": (1, 2),
    "max_num_batched_tokens": (16, 40),
    "max_num_seqs": (3, 8),
    "scheduling_policy": ("fcfs", "priority", "shortest-prompt-first"),
    "pool": ("roomy", "tight"),
}
SETTINGS: dict[str, Any] = {"dtype": "float32", "block_size": 16, "max_model_len": 128, "max_lora_rank": 4}
#: Blocks beside the null block; the tight ones hold little more than the longest sequence.
NUM_BLOCKS = {
    ("llama", "roomy"): 200,
    ("llama", "tight"): 9,
    ("gemma3_text", "roomy"): 400,
    ("gemma3_text", "tight"): 17,
}
#: A page of one layer: 16 tokens, 2 heads of 16 numbers, keys and values in float32.
PAGE_BYTES = 16 * 2 * (16 + 16) * 4
#: Layers that share a block: all four of llama, two of gemma's two kinds.
LAYERS_PER_GROUP = {"llama": 4, "gemma3_text": 2}
#: Whole prompts and decodes over attention in plain torch.
PLAINEST = {"device": "cpu reference", "scheduler": "simple", "max_loras": 1, "pool": "roomy"}
NUM_REQUESTS = 11
SEED = 0


def is_possible(choice: dict[str, Any]) -> bool:
    """``simple`` caches no prefix and verifies no drafts."""
    if choice["scheduler"] == "simple" and (choice["enable_prefix_caching"] or choice["num_draft_tokens"]):
        return False
    return bool(choice["num_draft_tokens"] < choice["max_num_seqs"])


def pairs_of(choice: dict[str, Any]) -> set[tuple[str, Any, str, Any]]:
    return {(a, choice[a], b, choice[b]) for a, b in combinations(FACTORS, 2)}


def choose(seed: int) -> list[dict[str, Any]]:
    """Return a few choices in which every possible pair of values meets."""
    draw = random.Random(seed)
    candidates = [{name: draw.choice(values) for name, values in FACTORS.items()} for _ in range(1000)]
    candidates = [choice for choice in candidates if is_possible(choice)]
    missing = set().union(*map(pairs_of, candidates))
    chosen: list[dict[str, Any]] = []
    while missing:
        best = max(candidates, key=lambda choice: len(pairs_of(choice) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen


@dataclass(frozen=True)
class Plain:
    """Requests to one model, and what each answers alone on the plainest engine."""

    directory: Path
    asked: list[Asked]
    answers: dict[str, RequestOutput]
    #: By the id in the engine core: prompt and answer beyond any stop, from which drafts are taken.
    texts: dict[str, list[int]]


def start(choice: dict[str, Any], directory: Path) -> LLM:
    settings = SETTINGS | {name: value for name, value in choice.items() if name in FACTORS}
    model, pool = settings.pop("model"), settings.pop("pool")
    backend, attention = settings.pop("device").split()
    options = {"threads": "1"} if backend == "cpu" else {}
    if attention != "paged":
        options["attention"] = attention
    num_pages = LAYERS_PER_GROUP[model] * (1 + NUM_BLOCKS[model, pool])
    return LLM(
        str(directory),
        backend=backend,
        backend_options=options,
        kv_cache_bytes=num_pages * PAGE_BYTES,
        **settings,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plain]:
    plain = {}
    for model in FACTORS["model"]:
        folder = tmp_path_factory.mktemp("models")
        directory = make_tiny_chat_model(folder / model, model)
        module = Oracle(directory).model
        targets = ("q_proj", "v_proj", "down_proj")
        adapters = [make_adapter(folder / f"lora-{i}", module, targets, rank=2 + i, seed=i) for i in range(3)]
        loras = [LoRARequest(adapter.name, str(adapter)) for adapter in adapters]
        asked = make_requests(SEED, loras, NUM_REQUESTS)
        with start(PLAINEST | {"model": model}, directory) as llm:
            endless = ask_alone(llm, asked)
            texts = known_texts(asked, endless)
            asked = with_stops(SEED, asked, endless)
            answers = {one.name: answer for one, answer in zip(asked, ask_alone(llm, asked), strict=True)}
        plain[model] = Plain(directory, asked, answers, texts)
    return plain


@pytest.fixture(scope="module")
def installed(sim_site: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(sim_site)
        yield


@pytest.mark.parametrize("choice", choose(SEED), ids=lambda choice: " ".join(map(str, choice.values())))
def test_answers_are_those_of_each_request_alone(
    choice: dict[str, Any], plain: dict[str, Plain], installed: None
) -> None:
    model = plain[choice["model"]]
    with start(choice, model.directory) as llm:
        scheduler = llm.engine.core.scheduler
        assert isinstance(scheduler, QueueScheduler)
        if choice["num_draft_tokens"]:
            use_oracles(scheduler, draft_at_random(SEED), lambda state: model.texts[state.request_id])
        for name, answer in ask_together(llm, model.asked).items():
            assert_same(answer, model.answers[name])
        stats = scheduler.stats()
        assert stats.num_free_blocks == stats.num_total_blocks
        assert (stats.num_running, stats.num_waiting) == (0, 0)
