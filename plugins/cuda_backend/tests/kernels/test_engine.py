"""A whole tiny engine whose attention and sampler are the Triton kernels, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_engine import make_engine, tokens
from host_plugin import HostWorker
from host_runtime import HostRuntime
from tiny_chat_model import make_tiny_chat_model

from core_engine import SamplingParams

PROMPTS = [[7, 3, 100, 42], list(range(20, 41))]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=3, ignore_eos=True),
]
KERNELS = {"attention": "triton", "sampler": "triton", "graph_sizes": "2"}


def test_tokens_are_those_of_the_cpu_backend(
    fake_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_chat_model(tmp_path / "tiny", num_hidden_layers=1)
    with make_engine(model, "cpu") as cpu:
        expected = [tokens(cpu, params, PROMPTS) for params in PARAMS]

    runtime = HostRuntime()
    runtime.reruns_python = True
    monkeypatch.setattr(HostWorker, "open_runtime", lambda self: runtime)
    # The longer prompt takes two steps, the second of them beside the other's decode.
    with make_engine(model, max_num_seqs=2, max_num_batched_tokens=16, backend_options=KERNELS) as llm:
        assert [tokens(llm, params, PROMPTS) for params in PARAMS] == expected
