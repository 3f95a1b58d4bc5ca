"""What the LoRA hooks take and return; numbers and strings only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoRAAdapter", "LoRAInfo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRAAdapter:
    """An adapter that a runner is asked to load."""

    #: The engine's number for this content, from 1; never used for another content.
    lora_id: int
    name: str
    #: Folder in PEFT's format.
    path: str
    #: sha256 of the two files, in hexadecimal; a runner refuses files of another digest.
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRAInfo:
    """An adapter that a runner holds."""

    lora_id: int
    name: str
    #: The largest rank among its modules.
    rank: int
    #: How many modules of the model it changes.
    num_modules: int
    #: Bytes that its weights take in host memory.
    num_bytes: int
    #: Its slot on the device; -1 while it has none.
    slot: int = -1
