"""``--lora``: one adapter for everything that a command computes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_engine.cli.options import Container, add_option
from core_engine.errors import AdapterError

if TYPE_CHECKING:
    from core_engine import LoRARequest

__all__ = ["add_lora_flag", "lora_options", "lora_request"]


def add_lora_flag(container: Container) -> None:
    """Add the flag."""
    add_option(container, "--lora", help="folder of a LoRA adapter in PEFT's format", metavar="PATH")


def lora_request(args: argparse.Namespace) -> LoRARequest | None:
    """Return the adapter that was named. Raises `AdapterError` for one that no engine would take."""
    from core_engine.lora.adapter import AdapterFiles
    from core_engine.lora.request import LoRARequest

    if args.lora is None:
        return None
    rank = AdapterFiles.read(args.lora).config().max_rank
    if rank > args.max_lora_rank:
        raise AdapterError(
            f"adapter {args.lora!r} has rank {rank}: start with --max-lora-rank {rank}", "lora"
        )
    return LoRARequest(Path(args.lora).resolve().name, args.lora)


def lora_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's option that makes room for the adapter; none without one."""
    return {} if args.lora is None else {"max_loras": max(1, args.max_loras)}
