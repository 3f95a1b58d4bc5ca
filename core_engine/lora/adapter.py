"""An adapter's folder: its files, their digest, and what ``adapter_config.json`` says. Torch-free.

The format is that of PEFT's ``save_pretrained``. What core-engine would compute differently from PEFT
is refused, settings that it does not know included.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from core_engine._text import error_line
from core_engine.errors import AdapterError

__all__ = ["CONFIG_FILE", "WEIGHTS_FILE", "AdapterConfig", "AdapterFiles", "FileStamp", "read_stamp"]

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

T = TypeVar("T")

#: Size, time of change and inode of both files: other contents have another stamp.
FileStamp = tuple[tuple[int, int, int], ...]

#: Settings that matter in training only, that say where things came from, or that this module reads itself.
_NEUTRAL = frozenset(
    {"alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "eva_config",
     "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
     "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "megatron_core", "peft_type",
     "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config",
     "target_modules", "task_type", "use_rslora"}
)  # fmt: skip
#: What a setting that is refused would mean.
_REFUSED = {
    "use_dora": "DoRA scales whole weights, which is more than a low-rank sum",
    "lora_bias": "it adds a bias to each low-rank product",
    "modules_to_save": "it replaces whole modules of the model",
    "trainable_token_indices": "it changes rows of the embeddings",
    "target_parameters": "it changes parameters that are no linear layers",
    "layer_replication": "it builds a model of other layers",
    "megatron_config": "it is made for Megatron's layers",
    "alora_invocation_tokens": "it acts only after certain tokens (aLoRA)",
}
#: Ways to start training that leave the base model's weights as they are.
_NEUTRAL_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """Ranks and scales of an adapter's modules."""

    rank: int
    alpha: float
    use_rslora: bool = False
    #: Regular expressions of module names (or their ends) with another rank; the first that matches counts.
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    #: Names (or their ends) of the modules it was made for; empty where the config gives an expression.
    target_modules: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """The largest rank of any module."""
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    def rank_of(self, module: str) -> int:
        """Return the rank of the module called ``module``."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return what the module's low-rank product is multiplied with."""
        alpha, rank = _by_pattern(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The bytes of an adapter's two files, read once, so that all that is told of them agrees."""

    folder: str
    config_bytes: bytes
    weight_bytes: bytes

    @classmethod
    def read(cls, folder: str) -> AdapterFiles:
        """Read the files. Raises `AdapterError` naming the one that is missing."""
        path = Path(folder)
        try:
            is_there = path.is_dir()
        except (OSError, ValueError) as error:  # no path of this system: too long, or with a NUL
            raise AdapterError(f"{folder[:80]!r} is no path: {error_line(error)[:80]}", "lora") from None
        if not is_there:
            raise AdapterError(
                f"there is no adapter at {folder!r}: give the folder with {CONFIG_FILE} and {WEIGHTS_FILE}",
                "lora",
            )
        contents = []
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            try:
                contents.append((path / name).read_bytes())
            except FileNotFoundError:
                pickled = " Pickle files (adapter_model.bin) are not read: save it as safetensors."
                hint = pickled if (path / "adapter_model.bin").exists() and name == WEIGHTS_FILE else ""
                raise AdapterError(f"adapter {folder!r} has no {name}.{hint}", "lora") from None
            except OSError as error:
                raise AdapterError(f"cannot read {str(path / name)!r}: {error_line(error)}", "lora") from None
        return cls(folder, *contents)

    def digest(self) -> str:
        """Return the sha256 of both files in hexadecimal."""
        digest = sha256()
        for content in (self.config_bytes, self.weight_bytes):
            # The length in front keeps the border between the files.
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        return digest.hexdigest()

    def config(self) -> AdapterConfig:
        """Return what the config says. Raises `AdapterError` for what core-engine does not serve."""
        subject = f"adapter {self.folder!r}"
        try:
            settings = json.loads(self.config_bytes)
        except (ValueError, RecursionError) as error:
            raise AdapterError(f"{subject}: {CONFIG_FILE} is no JSON ({error_line(error)})", "lora") from None
        if not isinstance(settings, dict):
            raise AdapterError(f"{subject}: {CONFIG_FILE} does not hold a JSON object", "lora")
        reason = _refusal(settings)
        if reason is not None:
            raise AdapterError(f"{subject} cannot be served: {reason}", "lora")
        return _parse(settings, subject)


def read_stamp(folder: str) -> FileStamp | None:
    """Return the stamp of an adapter's files; None where they cannot be seen."""
    try:
        stats = [(Path(folder) / name).stat() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except (OSError, ValueError):
        return None
    return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)


def _refusal(settings: dict[str, Any]) -> str | None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        return f"its peft_type is {kind!r}; only LORA is served"
    if settings.get("bias", "none") != "none":
        return f"its bias is {settings['bias']!r}: it changes biases of the model; only 'none' is served"
    start = settings.get("init_lora_weights")
    if start not in _NEUTRAL_STARTS:
        return (
            f"its init_lora_weights is {start!r}, which trains on changed base weights; save it with PEFT's "
            "path_initial_model_for_weight_conversion"
        )
    for name, value in settings.items():
        if name in _NEUTRAL or not value:
            continue
        if name in _REFUSED:
            return f"it sets {name}: {_REFUSED[name]}"
        return f"it sets {name} = {value!r}, which this version of core-engine does not know"
    return None


def _parse(settings: dict[str, Any], subject: str) -> AdapterConfig:
    targets = settings.get("target_modules")
    config = AdapterConfig(
        rank=_number(settings.get("r", 8), "r", subject, whole=True),
        alpha=_number(settings.get("lora_alpha", 8), "lora_alpha", subject),
        use_rslora=bool(settings.get("use_rslora")),
        rank_pattern=_pattern(settings, "rank_pattern", subject, whole=True),
        alpha_pattern=_pattern(settings, "alpha_pattern", subject),
        target_modules=tuple(targets) if isinstance(targets, list) else (),
    )
    if not all(isinstance(target, str) for target in config.target_modules):
        raise AdapterError(f"{subject}: target_modules holds something that is no name", "lora")
    return config


def _pattern(settings: dict[str, Any], name: str, subject: str, *, whole: bool = False) -> dict[str, Any]:
    pattern = settings.get(name) or {}
    if not isinstance(pattern, dict):
        raise AdapterError(f"{subject}: {name} must map names to numbers, got {pattern!r}", "lora")
    for key in pattern:
        try:
            re.compile(key)
        except re.error as error:
            raise AdapterError(f"{subject}: {name} holds {key!r}, no expression: {error}", "lora") from None
    return {key: _number(value, f"{name}[{key!r}]", subject, whole=whole) for key, value in pattern.items()}


def _number(value: Any, name: str, subject: str, *, whole: bool = False) -> Any:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or (whole and value < 1):
        wanted = "a whole number of at least 1" if whole else "a number"
        raise AdapterError(f"{subject}: {name} must be {wanted}, got {value!r}", "lora")
    return value


def _by_pattern(pattern: Mapping[str, T], module: str, default: T) -> T:
    # PEFT matches a whole name, or its end after a dot.
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)
