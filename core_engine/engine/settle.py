"""Fill in what the user left open, from the model's facts and the backend's capabilities.

Asked for by name and not offered is an error; left open and not offered is degraded and logged.
"""

from __future__ import annotations

from dataclasses import replace

from core_engine.config import DTYPE_BYTES, EngineConfig, ModelConfig
from core_engine.errors import ConfigError, UnsupportedFeature, did_you_mean
from core_engine.plugin import Capabilities
from core_engine.scheduler.drafts import MAX_DRAFT_TOKENS
from core_engine.scheduler.plugins import load_policy

__all__ = ["settle_config"]

#: Counts travel in 32 bits, sizes in 64.
_MOST, _MOST_BYTES = 2**31 - 1, 2**63 - 1


def settle_config(
    config: EngineConfig, model: ModelConfig, capabilities: Capabilities, backend: str
) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return the config without open fields (``max_model_len`` excepted) and the lines to log.

    Raises `ConfigError` for impossible values and unknown names, `UnsupportedFeature` for an explicit
    wish that ``backend`` does not serve.
    """
    _check_numbers(config, model)
    load_policy(config.scheduling_policy)
    lines: list[str] = []
    dtype = _settle_dtype(config.dtype, model.dtype, capabilities, backend, lines)
    block_size = config.block_size or capabilities.block_sizes[0]
    if block_size not in capabilities.block_sizes:
        raise UnsupportedFeature(
            f"block_size {block_size} is not offered by backend {backend!r}; "
            f"possible: {', '.join(map(str, capabilities.block_sizes))}"
        )
    prefix_caching = _settle_switch(
        "enable_prefix_caching", config.enable_prefix_caching, capabilities.prefix_caching, backend, lines
    )
    chunked_prefill = _settle_switch(
        "enable_chunked_prefill", config.enable_chunked_prefill, capabilities.chunked_prefill, backend, lines
    )
    budget = config.max_num_batched_tokens
    longest = config.max_model_len or model.max_position_embeddings
    if not chunked_prefill and longest is not None and budget < longest:
        lines.append(f"max_num_batched_tokens {budget} → {longest}: prompts are computed whole")
        budget = longest
    max_num_seqs = config.max_num_seqs
    if capabilities.max_num_seqs is not None and max_num_seqs > capabilities.max_num_seqs:
        lines.append(
            f"max_num_seqs {max_num_seqs} → {capabilities.max_num_seqs}: the most that {backend} runs"
        )
        max_num_seqs = capabilities.max_num_seqs
    if max_num_seqs > budget:
        lines.append(f"max_num_seqs {max_num_seqs} → {budget}: a step has {budget} tokens, one per request")
        max_num_seqs = budget
    if config.tensor_parallel_size > capabilities.max_tensor_parallel_size:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size} is not offered by backend {backend!r}; "
            f"the most here is {capabilities.max_tensor_parallel_size}"
        )
    _check_drafts(config.num_draft_tokens, max_num_seqs, capabilities, backend)
    settled = replace(
        config,
        dtype=dtype,
        block_size=block_size,
        enable_prefix_caching=prefix_caching,
        enable_chunked_prefill=chunked_prefill,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
    )
    return settled, tuple(lines)


def _check_drafts(asked: int, max_num_seqs: int, capabilities: Capabilities, backend: str) -> None:
    if not asked:
        return
    if not capabilities.draft_tokens:
        raise UnsupportedFeature(
            f"num_draft_tokens {asked} is not offered by backend {backend!r}; leave it at 0"
        )
    if asked >= max_num_seqs:
        raise ConfigError(
            f"num_draft_tokens {asked} needs max_num_seqs of at least {asked + 1}, got {max_num_seqs}: "
            "drafts take rows that running requests leave free; raise max_num_seqs or lower num_draft_tokens"
        )


def _settle_dtype(
    asked: str, checkpoint: str, capabilities: Capabilities, backend: str, lines: list[str]
) -> str:
    if asked != "auto":
        if asked not in DTYPE_BYTES:
            known = ("auto", *DTYPE_BYTES)
            raise ConfigError(
                f"unknown dtype {asked!r}; possible: {', '.join(known)}.{did_you_mean(asked, known)}"
            )
        if asked not in capabilities.dtypes:
            raise UnsupportedFeature(
                f"dtype {asked!r} is not offered by backend {backend!r}; "
                f"possible: {', '.join(capabilities.dtypes)}"
            )
        return asked
    if checkpoint in capabilities.dtypes:
        return checkpoint
    lines.append(f"dtype {checkpoint} → {capabilities.dtypes[0]}: {backend} has no {checkpoint}")
    return capabilities.dtypes[0]


def _settle_switch(field: str, asked: bool | None, offered: bool, backend: str, lines: list[str]) -> bool:
    if asked and not offered:
        raise UnsupportedFeature(f"{field} is not offered by backend {backend!r}; leave it off")
    if asked is None and not offered:
        lines.append(f"{field} off: {backend} does not offer it")
    return offered if asked is None else asked


def _check_numbers(config: EngineConfig, model: ModelConfig) -> None:
    for field, least in (
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("tensor_parallel_size", 1),
        ("max_model_len", 2),
        ("block_size", 1),
        ("kv_cache_bytes", 1),
    ):
        value = getattr(config, field)
        if value is not None and value < least:
            raise ConfigError(f"{field} must be at least {least}, got {value}")
        most = _MOST_BYTES if field == "kv_cache_bytes" else _MOST
        if value is not None and value > most:
            raise ConfigError(f"{field} must be at most {most}, got {value}")
    if not 0 <= config.num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise ConfigError(
            f"num_draft_tokens must be between 0 and {MAX_DRAFT_TOKENS}, got {config.num_draft_tokens}"
        )
    if not 0.0 < config.device_memory_utilization <= 1.0:
        raise ConfigError(
            f"device_memory_utilization must lie between 0 and 1, got {config.device_memory_utilization}"
        )
    if config.seed is not None and not 0 <= config.seed < 2**64:
        raise ConfigError(f"seed must be between 0 and 2**64 - 1, got {config.seed}")
    possible = model.max_position_embeddings
    if config.max_model_len is not None and possible is not None and config.max_model_len > possible:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is longer than the {possible} positions "
            f"that {model.path} was made for; use {possible} or less"
        )
