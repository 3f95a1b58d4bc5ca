"""The contexts that a fake backend is built from. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.plugin import Capabilities, DeviceInfo, WorkerPlan
from core_engine.testing.fake_backend import FAKE_CAPABILITIES
from core_engine.worker.context import WorkerContext

__all__ = ["fake_engine_config", "fake_model_config", "fake_worker_context"]


def fake_model_config(**changes: Any) -> ModelConfig:
    """Return the facts of a model with 97 tokens and two layers; ``changes`` replace fields."""
    config = ModelConfig(
        path="fake",
        directory="fake",
        model_type="fake",
        architecture="FakeForCausalLM",
        dtype="float32",
        vocab_size=97,
        hidden_size=8,
        num_layers=2,
        num_attention_heads=1,
        max_position_embeddings=256,
    )
    return dataclasses.replace(config, **changes)


def fake_worker_context(
    config: EngineConfig | None = None,
    *,
    capabilities: Capabilities = FAKE_CAPABILITIES,
    options: Mapping[str, str | int | float | bool | None] | None = None,
) -> WorkerContext:
    """Return the context of one worker on the fake backend's only device.

    ``config`` is by default the resolved configuration of a small engine.
    """
    return WorkerContext(
        config=config or fake_engine_config(),
        model=fake_model_config(),
        capabilities=capabilities,
        plan=WorkerPlan(rank=0, device_indices=(0,)),
        devices=(DeviceInfo(index=0, name="nothing"),),
        options=options or {},
    )


def fake_engine_config(**changes: Any) -> EngineConfig:
    """Return the resolved settings of a small engine on the fake backend; ``changes`` replace fields."""
    config = EngineConfig(
        model="fake",
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        block_size=16,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        seed=0,
        backend="fake",
    )
    return dataclasses.replace(config, **changes)
