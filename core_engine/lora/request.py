"""LoRARequest: which adapter a request is computed with."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.errors import InvalidRequest

__all__ = ["LoRARequest"]


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """One adapter by a name of the caller's own and the folder that holds it.

    The folder is in PEFT's format: ``adapter_config.json`` and ``adapter_model.safetensors``. The name
    is a label; what an adapter is, and which cached blocks it may read, is decided by its content.
    Raises `InvalidRequest` for an empty name or path.
    """

    name: str
    path: str

    def __post_init__(self) -> None:
        for field in ("name", "path"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise InvalidRequest(f"the {field} of a LoRARequest is a text, got {value!r}", "lora")
