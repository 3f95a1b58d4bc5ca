"""Trains a small LoRA adapter on the CPU and saves it in PEFT's format.

    python examples/lora/train_adapter.py MODEL ADAPTER

It teaches a chat model to greet before it answers, from a handful of dialogues: enough to see that the
adapter acts, in about a minute on two cores. For real adapters use PEFT, which saves the same two files.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

GREETING = "Ahoy, sailor!"
DIALOGUES = [
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("How many legs has a spider?", "A spider has eight legs."),
    ("Name a primary colour.", "Red is a primary colour."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
]
TARGETS = ("q_proj", "v_proj", "o_proj")
#: Only the last layers are trained: the backward pass ends there.
LAST_LAYERS = 10
RANK, ALPHA, LEARNING_RATE = 8, 16, 2e-3


class LowRankLinear(torch.nn.Module):
    """A frozen linear layer plus a product of two small matrices that learn."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``x W + alpha / rank · x Aᵀ Bᵀ``; what learns does so in float32."""
        change = (x.float() @ self.down.T @ self.up.T) * (ALPHA / RANK)
        return self.base(x) + change.to(x.dtype)


def train(model_path: str, adapter: Path, num_steps: int = 14) -> float:
    """Train, save to the folder ``adapter`` and return the last loss."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).requires_grad_(False)
    learning = add_low_rank(model)
    ids, labels = make_batch(tokenizer)
    matrices = [matrix for layer in learning.values() for matrix in (layer.down, layer.up)]
    optimizer = torch.optim.AdamW(matrices, LEARNING_RATE)
    loss = 0.0
    for step in range(num_steps):
        output = model(input_ids=ids, labels=labels)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        loss = output.loss.item()
        print(f"step {step + 1}: loss {loss:.3f}")
    save(learning, model_path, adapter)
    return loss


def add_low_rank(model: torch.nn.Module) -> dict[str, LowRankLinear]:
    """Wrap the target modules of the last layers; returns them by the names that the model gives them."""
    layers = model.get_submodule("model.layers")
    learning = {}
    for index in range(len(layers) - LAST_LAYERS, len(layers)):
        for name, module in list(layers[index].named_modules()):
            if name.rpartition(".")[2] in TARGETS:
                parent, _, attribute = name.rpartition(".")
                wrapped = LowRankLinear(module)
                setattr(layers[index].get_submodule(parent), attribute, wrapped)
                learning[f"model.layers.{index}.{name}"] = wrapped
    return learning


def make_batch(tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokenise the dialogues; only the answers are learned, padding and questions have label -100."""
    rows = []
    for question, answer in DIALOGUES:
        opening = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(opening, add_generation_prompt=True, return_dict=False)
        reply = tokenizer.encode(f"{GREETING} {answer}<|im_end|>", add_special_tokens=False)
        rows.append((prompt + reply, [-100] * len(prompt) + reply))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
    return ids, labels


def save(learning: dict[str, LowRankLinear], model_path: str, adapter: Path) -> None:
    """Write the two files of an adapter."""
    adapter.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, layer in learning.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.down.detach()
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.up.detach()
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model_path,
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("adapter", type=Path, help="folder to write")
    arguments = parser.parse_args()
    train(arguments.model, arguments.adapter)
