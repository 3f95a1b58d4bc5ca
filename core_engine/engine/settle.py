"""Fill in what the user left open, from the model's facts and the backend's capabilities.

Asked for by name and not offered is an error; left open and not offered is degraded, and stands with
its reason in one table of all features.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from core_engine.config import DTYPE_BYTES, EngineConfig, ModelConfig
from core_engine.engine.feature_rows import feature_rows
from core_engine.engine.feature_table import FeatureRow, FeatureTable
from core_engine.errors import ConfigError, UnsupportedFeature, did_you_mean
from core_engine.parallel.heads import check_heads
from core_engine.plugin import Capabilities
from core_engine.scheduler.drafts import MAX_DRAFT_TOKENS
from core_engine.scheduler.features import is_on
from core_engine.scheduler.limits import largest_step
from core_engine.scheduler.plugins import load_policy
from core_engine.scheduler.selection import choose_scheduler

__all__ = ["longest_sequence", "longest_sequence_rows", "settle_config"]

#: Counts travel in 32 bits, sizes in 64.
_MOST, _MOST_BYTES = 2**31 - 1, 2**63 - 1


def settle_config(
    config: EngineConfig, model: ModelConfig, capabilities: Capabilities, backend: str
) -> tuple[EngineConfig, FeatureTable]:
    """Return the config without open fields (``max_model_len`` excepted) and the table of its features.

    Raises `ConfigError` for impossible values and unknown names, `UnsupportedFeature` for an explicit
    wish that ``backend`` does not serve, and what loading a scheduler or a policy raises.
    """
    _check_numbers(config, model)
    load_policy(config.scheduling_policy)
    if config.max_loras and config.tensor_parallel_size > 1 and not capabilities.lora:
        raise UnsupportedFeature(
            f"max_loras {config.max_loras} with tensor_parallel_size {config.tensor_parallel_size}: backend "
            f"{backend!r} does not divide adapters among ranks; ask for one of the two"
        )
    choice = choose_scheduler(config, capabilities, backend)
    rows = feature_rows(config, choice, capabilities, backend)
    block_size = config.block_size or capabilities.block_sizes[0]
    if block_size not in capabilities.block_sizes:
        raise UnsupportedFeature(
            f"block_size {block_size} is not offered by backend {backend!r}; "
            f"possible: {', '.join(map(str, capabilities.block_sizes))}"
        )
    if config.tensor_parallel_size > capabilities.max_tensor_parallel_size:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size} is not offered by backend {backend!r}; "
            f"the most here is {capabilities.max_tensor_parallel_size}"
        )
    check_heads(config, model, [(model.num_attention_heads, model.num_kv_heads or model.num_attention_heads)])
    settled = replace(
        config,
        scheduler=choice.name,
        dtype=_settle_dtype(config.dtype, model.dtype, capabilities, backend, rows),
        block_size=block_size,
        enable_prefix_caching=is_on("prefix_caching", choice.scheduler, config, capabilities),
        enable_chunked_prefill=is_on("chunked_prefill", choice.scheduler, config, capabilities),
    )
    budget = _settle_budget(settled, model, capabilities, rows)
    max_num_seqs = _settle_num_seqs(config.max_num_seqs, budget, capabilities, backend, rows)
    _check_drafts(config.num_draft_tokens, max_num_seqs)
    settled = replace(settled, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    return settled, FeatureTable(tuple(rows))


def longest_sequence(config: EngineConfig, model: ModelConfig, capabilities: Capabilities) -> int | None:
    """Return the longest sequence, in tokens, that the settled ``config`` has room for; None for any.

    It is the model's, or where prompts are computed whole what fits into one step. Raises `ConfigError`
    for a ``max_model_len`` that is longer.
    """
    longest = model.max_position_embeddings
    if config.enable_chunked_prefill:
        return longest
    step = largest_step(config.max_num_batched_tokens, capabilities.token_buckets)
    if config.max_model_len is not None and config.max_model_len > step:
        raise ConfigError(
            f"max_model_len {config.max_model_len}: without chunked prefill a step holds a whole sequence, "
            f"and the largest step here has {step} tokens; lower max_model_len to {step}"
        )
    return step if longest is None else min(longest, step)


def _check_drafts(asked: int, max_num_seqs: int) -> None:
    if asked and asked >= max_num_seqs:
        raise ConfigError(
            f"num_draft_tokens {asked} needs max_num_seqs of at least {asked + 1}, got {max_num_seqs}: "
            "drafts take rows that running requests leave free; raise max_num_seqs or lower num_draft_tokens"
        )


def longest_sequence_rows(
    config: EngineConfig, model: ModelConfig, capabilities: Capabilities
) -> tuple[FeatureRow, ...]:
    """Return the row that tells of a `longest_sequence` below the model's own; none where it is that."""
    longest, limit = model.max_position_embeddings, longest_sequence(config, model, capabilities)
    if config.max_model_len is not None or limit == longest:
        return ()
    reason = f"{longest or 'any'} → {limit}: prompts are computed whole, in one step"
    return (FeatureRow("max_model_len", str(limit), reason),)


def _settle_dtype(
    asked: str, checkpoint: str, capabilities: Capabilities, backend: str, rows: list[FeatureRow]
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
        dtype, reason = asked, "asked for"
    elif checkpoint in capabilities.dtypes:
        dtype, reason = checkpoint, "the checkpoint's"
    else:
        dtype, reason = capabilities.dtypes[0], f"the checkpoint has {checkpoint}, {backend} has not"
    rows.append(FeatureRow("dtype", dtype, reason))
    return dtype


def _settle_budget(
    config: EngineConfig, model: ModelConfig, capabilities: Capabilities, rows: list[FeatureRow]
) -> int:
    """Give whole prompts a step that holds the longest of them, as far as the device computes one."""
    budget, buckets = config.max_num_batched_tokens, capabilities.token_buckets
    longest = config.max_model_len or model.max_position_embeddings
    if config.enable_chunked_prefill or longest is None or largest_step(budget, buckets) >= longest:
        return budget
    needed = buckets[min(bisect_left(buckets, longest), len(buckets) - 1)] if buckets else longest
    if needed > budget:
        reason = f"{budget} → {needed}: prompts are computed whole"
        rows.append(FeatureRow("max_num_batched_tokens", str(needed), reason))
    return max(budget, needed)


def _settle_num_seqs(
    asked: int, budget: int, capabilities: Capabilities, backend: str, rows: list[FeatureRow]
) -> int:
    settled, reason = asked, ""
    if capabilities.max_num_seqs is not None and asked > capabilities.max_num_seqs:
        settled, reason = capabilities.max_num_seqs, f"the most that {backend} runs"
    if settled > budget:
        settled, reason = budget, f"a step has {budget} tokens, one per request"
    if settled != asked:
        rows.append(FeatureRow("max_num_seqs", str(settled), f"{asked} → {settled}: {reason}"))
    return settled


def _check_numbers(config: EngineConfig, model: ModelConfig) -> None:
    for field, least in (
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("tensor_parallel_size", 1),
        ("max_model_len", 2),
        ("block_size", 1),
        ("kv_cache_bytes", 1),
        ("max_loras", 0),
        ("max_lora_rank", 1),
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
