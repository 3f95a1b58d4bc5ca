"""The engine's settings as flags, and from flags to `EngineConfig`."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from core_engine.cli.options import (
    Container,
    add_backend_options,
    add_option,
    add_switch,
    parse_pairs,
    variable_of,
)
from core_engine.errors import ConfigError

__all__ = ["add_engine_flags", "engine_options", "model_of"]

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_engine_flags(parser: Container) -> None:
    """Add MODEL (also ``--model``) and a flag for each setting that a user may change."""
    parser.add_argument(
        "model_argument", nargs="?", metavar="MODEL", help="directory, hub id or .gguf file; also --model"
    )
    add_option(parser, "--model", help="directory, hub id or .gguf file", metavar="MODEL")
    group = parser.add_argument_group("engine")
    add_backend_options(group)
    add_option(group, "--dtype", help="auto, bfloat16, float16 or float32", default="auto")
    add_option(group, "--max-model-len", help="longest prompt plus output, in tokens", convert=int)
    add_option(group, "--max-num-seqs", help="most requests that run at once", convert=int, default=64)
    add_option(group, "--max-num-batched-tokens", help="token budget of one step", convert=int, default=2048)
    add_option(group, "--block-size", help="tokens per KV-cache block", convert=int)
    add_option(group, "--kv-cache-bytes", help="memory for the KV cache, e.g. 2G", convert=parse_bytes)
    add_option(
        group,
        "--device-memory-utilization",
        help="share of device memory the engine may use",
        convert=float,
        default=0.9,
    )
    add_switch(group, "--enable-prefix-caching", help="reuse cached prefixes", default=None)
    add_switch(group, "--enable-chunked-prefill", help="split long prompts over steps", default=None)
    add_switch(group, "--enforce-eager", help="do not capture or compile shapes")
    add_option(
        group,
        "--scheduling-policy",
        help="fcfs, priority, shortest-prompt-first, an installed one or a class path",
        default="fcfs",
    )
    add_option(group, "--scheduler", help="unified, simple, an installed one or a class path")
    add_option(
        group,
        "--num-draft-tokens",
        help="tokens guessed ahead from the request's own text",
        convert=int,
        default=0,
    )
    add_option(
        group, "--max-loras", help="LoRA adapters in one step; 0 turns LoRA off", convert=int, default=0
    )
    add_option(group, "--max-lora-rank", help="largest rank of an adapter", convert=int, default=16)
    add_option(
        group,
        "--tensor-parallel-size",
        help="devices to split the model over; processes on the cpu backend",
        convert=int,
        default=1,
    )
    add_option(
        group,
        "--executor",
        help="where the worker runs: in-process or process; several always run in processes",
        default="in-process",
    )
    add_option(group, "--extensions", help="extensions to turn on", default=[], separator=",", metavar="NAME")
    add_option(group, "--tokenizer", help="where the tokenizer is read from, if not the model")
    add_option(group, "--revision", help="hub revision of model and tokenizer")
    add_option(
        group,
        "--load-format",
        help="auto reads the weights; dummy makes random ones, to measure speed without the files",
        default="auto",
    )
    add_switch(group, "--trust-remote-code", help="run Python code that the model repository brings")
    add_switch(group, "--allow-pickled-weights", help="load pickle files, which can run code")
    add_switch(
        group, "--use-generation-config", help="sampling defaults from generation_config.json", default=True
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments for `core_engine.LLM`, the model left out."""
    names = (
        "backend",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "kv_cache_bytes",
        "device_memory_utilization",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "enforce_eager",
        "scheduling_policy",
        "scheduler",
        "num_draft_tokens",
        "max_loras",
        "max_lora_rank",
        "tensor_parallel_size",
        "executor",
        "tokenizer",
        "revision",
        "load_format",
        "trust_remote_code",
        "allow_pickled_weights",
        "use_generation_config",
    )
    options = {name: getattr(args, name) for name in names}
    options["backend_options"] = parse_pairs(args.backend_option, "--backend-option")
    options["extensions"] = tuple(args.extensions)
    return options


def model_of(args: argparse.Namespace) -> str:
    """Return the model that was named. Raises `ConfigError` for none, or for two different ones."""
    named, given = args.model_argument, args.model
    if named is None and given is None:
        raise ConfigError("no model given: name a directory, hub id or .gguf file as MODEL or --model")
    # A variable may stand behind --model; the argument on the line wins over that.
    if named is not None and given not in (None, named, os.environ.get(variable_of("--model"))):
        raise ConfigError(f"two models given: {named!r} as MODEL and {given!r} as --model; name one")
    model: str = given if named is None else named
    return model


def parse_bytes(text: str) -> int:
    """Return ``"2G"``, ``"512MiB"`` or a plain number as bytes. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes such as 2G or 512MiB")
    return int(float(match[1]) * _SUFFIXES[match[2]])
