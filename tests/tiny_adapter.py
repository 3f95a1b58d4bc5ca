"""Random LoRA adapters in PEFT's format, and the same changes merged into a model's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def linear_shapes(model: torch.nn.Module, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """(in_features, out_features) of the linear layers whose names end with one of ``targets``."""
    shapes = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if name.rpartition(".")[2] in targets and isinstance(weight, torch.Tensor) and weight.dim() == 2:
            rows, columns = weight.shape
            is_conv1d = type(module).__name__ == "Conv1D"
            shapes[name] = (rows, columns) if is_conv1d else (columns, rows)
    return shapes


def make_adapter(
    folder: Path,
    model: torch.nn.Module,
    targets: Sequence[str],
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    size: float = 1.0,
    ranks: dict[str, int] | None = None,
    **settings: Any,
) -> Path:
    """Save an adapter with random weights for ``targets``; ``settings`` go into its config as they are.

    ``ranks`` gives modules (by the end of their names) another rank, and the same to rank_pattern.
    """
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (columns, rows) in linear_shapes(model, targets).items():
        r = next((r for end, r in (ranks or {}).items() if name.endswith(end)), rank)
        # About as large as the weights of `randomize`, so that every module's change shows.
        down = torch.randn(r, columns, generator=generator) / columns**0.5
        up = torch.randn(rows, r, generator=generator) * (size / r**0.5)
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.1,
        "target_modules": list(targets),
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": ranks or {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "qalora_group_size": 16,
        "megatron_core": "megatron.core",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return folder


@torch.no_grad()
def merge_adapter(model: torch.nn.Module, folder: Path) -> None:
    """Add ``scale · B A`` to the weights that the adapter changes, written out by hand."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        up = tensors[name.replace(".lora_A.", ".lora_B.")]
        module: Any = model.get_submodule(
            name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        )
        scale = config["lora_alpha"] / (math.sqrt(len(down)) if config["use_rslora"] else len(down))
        change = scale * (up @ down)
        module.weight += change.t() if type(module).__name__ == "Conv1D" else change
