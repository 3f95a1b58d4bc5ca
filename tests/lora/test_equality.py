"""Computing with an adapter equals computing with weights into which it was merged, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_adapter import make_adapter, merge_adapter
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, LoRARequest, RequestOutput, SamplingParams
from core_engine.testing.oracle import Oracle

#: The low-rank product is rounded elsewhere than merged weights are; log-probabilities of these models
#: (standard deviation of their logits about 1) differ by less than this.
TOLERANCE = 1e-4
PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18]
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "kv_cache_bytes": 8 << 20,
    "max_loras": 2,
    "max_lora_rank": 8,
}
#: The linear layers of each model type's backbone: plain ones, transformers' Conv1D, merged ones, and
#: those beside the experts of a mixture.
TARGETS = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "mixtral": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
EACH = [(kind, target) for kind, targets in TARGETS.items() for target in targets]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=5)


class Bench:
    """Engines on both backends and the models behind them, started when first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._engines: dict[tuple[str, str], LLM] = {}
        self._oracles: dict[tuple[str, str | None], Oracle] = {}

    def model(self, kind: str) -> Path:
        folder = self._folder / kind
        return folder if folder.exists() else make_tiny_chat_model(folder, kind)

    def engine(self, backend: str, kind: str) -> LLM:
        if (backend, kind) not in self._engines:
            name, _, attention = backend.partition(" ")
            options = {"backend_options": {"attention": attention}} if attention else {}
            llm = LLM(str(self.model(kind)), backend=name, **SETTINGS, **options)
            self._engines[backend, kind] = self._stack.enter_context(llm)
        return self._engines[backend, kind]

    def adapter(self, kind: str, name: str, targets: tuple[str, ...], **settings: Any) -> LoRARequest:
        folder = self._folder / f"{kind}-{name}"
        if not folder.exists():
            make_adapter(folder, Oracle(self.model(kind)).model, targets, **settings)
        return LoRARequest(name, str(folder))

    def merged(self, kind: str, lora: LoRARequest | None) -> Oracle:
        key = (kind, lora and lora.name)
        if key not in self._oracles:
            self._oracles[key] = Oracle(self.model(kind))
            if lora is not None:
                merge_adapter(self._oracles[key].model, Path(lora.path))
        return self._oracles[key]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, sim_site: Path) -> Iterator[Bench]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(sim_site)
        yield Bench(tmp_path_factory.mktemp("lora"), stack)


def assert_equal(output: RequestOutput, oracle: Oracle) -> None:
    """Compare the prompt's log-probabilities and the greedy continuation."""
    __tracebackhide__ = True
    prompt, (sequence,) = output.prompt_token_ids, output.outputs
    whole = torch.log_softmax(oracle.logits([*prompt, *sequence.token_ids]), dim=-1)
    assert output.prompt_logprobs is not None
    assert sequence.logprobs is not None
    rows = [*output.prompt_logprobs[1:], *sequence.logprobs]
    for expected, row in zip(whole, rows, strict=False):
        for token_id, logprob in (row or {}).items():
            assert logprob.logprob == pytest.approx(float(expected[token_id]), abs=TOLERANCE)
    wanted, margin = oracle.greedy(prompt, len(sequence.token_ids))
    assert sequence.token_ids == wanted or margin < TOLERANCE


def differs(output: RequestOutput, oracle: Oracle) -> bool:
    """Whether the model without the adapter would have answered otherwise."""
    prompt, (sequence,) = output.prompt_token_ids, output.outputs
    plain = torch.log_softmax(oracle.logits(prompt)[-1], dim=-1)
    assert sequence.logprobs is not None
    first = sequence.logprobs[0]
    return any(abs(row.logprob - float(plain[token_id])) > 100 * TOLERANCE for token_id, row in first.items())


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize(("kind", "target"), EACH)
def test_an_adapter_of_one_kind_of_layer(bench: Bench, backend: str, kind: str, target: str) -> None:
    lora = bench.adapter(kind, target, (target,))
    outputs = bench.engine(backend, kind).generate(PROMPTS, GREEDY, lora=lora)
    for output in outputs:
        assert_equal(output, bench.merged(kind, lora))
    assert differs(outputs[1], bench.merged(kind, None))


@pytest.mark.parametrize("backend", ["cpu", "sim", "sim dense"])
@pytest.mark.parametrize("kind", TARGETS)
def test_two_adapters_and_none_in_one_batch(bench: Bench, backend: str, kind: str) -> None:
    full = bench.adapter(kind, "full", TARGETS[kind], rank=8, seed=1, size=0.3)
    part = bench.adapter(kind, "part", TARGETS[kind][:2], rank=2, seed=2)
    each = [full, None, part]
    outputs = bench.engine(backend, kind).generate(PROMPTS, GREEDY, lora=each)
    for output, lora in zip(outputs, each, strict=True):
        assert_equal(output, bench.merged(kind, lora))


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_ranks_and_scales_of_single_modules_count(bench: Bench, backend: str) -> None:
    lora = bench.adapter(
        "llama",
        "patterns",
        ("q_proj", "v_proj"),
        rank=4,
        alpha=6,
        ranks={"layers.1.self_attn.q_proj": 8, "layers.2.self_attn.v_proj": 1},
        use_rslora=True,
    )
    for output in bench.engine(backend, "llama").generate(PROMPTS, GREEDY, lora=lora):
        assert_equal(output, bench.merged("llama", lora))


def test_no_adapter_causes_a_compilation_after_warm_up(bench: Bench) -> None:
    # The simulated device refuses to compile once it is warm (strict_shapes); the count says it again.
    llm = bench.engine("sim", "llama")
    programs = llm.engine.core.executor._worker.model_runner._hooks._owner.seams.programs  # type: ignore[attr-defined]
    before = programs.num_programs()
    for seed in range(3):
        lora = bench.adapter("llama", f"new-{seed}", ("q_proj",), seed=10 + seed)
        assert len(llm.generate(PROMPTS, GREEDY, lora=[lora, None, lora])) == 3
    assert programs.num_programs() == before


def test_the_experts_of_a_mixture_take_no_adapter(bench: Bench) -> None:
    lora = bench.adapter("mixtral", "gate", ("gate",))
    llm = bench.engine("cpu", "mixtral")
    with pytest.raises(Exception, match="gate"):
        llm.generate(PROMPTS, GREEDY, lora=lora)
