"""Loads a model: meta model, layers, transforms, then weights through transformers' own machinery."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from core_engine.config import EngineConfig, ModelConfig
from core_engine.lora.layers import LoRATransform
from core_engine.models.attention_hook import AttentionObject, attach_attention
from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import read_transformers_config, text_causal_lm
from core_engine.models.finder import FoundLayer, find_layers
from core_engine.models.layer_transforms import LayerTransform
from core_engine.models.locate import locate_model
from core_engine.models.logits import LogitsFunction, make_logits_function
from core_engine.models.random_weights import random_weights
from core_engine.models.rotary import fix_longrope
from core_engine.models.signatures import accepted_arguments
from core_engine.models.weights import WeightSource, read_weights
from core_engine.parallel.communicator import Communicator
from core_engine.parallel.rank_layers import find_rank_layers
from core_engine.parallel.share import divided_share
from core_engine.parallel.transform import TensorParallel

__all__ = ["BackboneFunction", "LoadedModel", "load_model"]

BackboneFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model with its weights, ready to be bound to a KV cache."""

    #: The transformers model, in eval mode, without gradients.
    module: torch.nn.Module
    #: ``(token_ids int [T], positions int [T]) -> hidden rows [T, hidden_size]``
    backbone: BackboneFunction
    #: ``(hidden rows [R, hidden_size]) -> logits [R, vocab_size]``
    logits: LogitsFunction
    #: The attention layers in the order of the forward pass.
    layers: tuple[FoundLayer, ...]
    #: Bytes of all parameters and buffers, tied ones counted once.
    weight_bytes: int
    #: Which share of all parameters is divided over the ranks, from 0 to 1.
    divided_share: float
    #: How many modules each transform replaced, by its name.
    replaced: dict[str, int]
    #: Seconds that loading took.
    seconds: float

    def attach(self, layer_name: str, attention: AttentionObject) -> None:
        """Give the layer of that name its attention object; an earlier one is replaced."""
        attach_attention(self.module.get_submodule(layer_name), attention)


def load_model(
    config: EngineConfig,
    facts: ModelConfig,
    *,
    dtype: str,
    transforms: Sequence[LayerTransform] = (),
    weight_device: str = "cpu",
    experts: str | None = None,
    communicator: Communicator | None = None,
    progress: bool = True,
) -> LoadedModel:
    """Load the model that ``facts`` describe in ``dtype`` ("bfloat16", "float16", "float32").

    ``transforms`` are applied in order to the model on the meta device, behind the one that makes room
    for LoRA adapters where ``config.max_loras`` is not 0. ``experts`` names how
    transformers computes the experts of mixture models: "grouped_mm", "batched_mm" (static shapes) or
    "eager"; None takes grouped_mm where torch has it, which is the fastest on CPU, else eager.
    ``weight_device`` is where weights are read to; on "meta" none are read, and the model has shapes and
    data types only (its experts are computed by "batched_mm"). ``communicator`` joins this rank with those
    that hold the other shares of the model: it is then divided before ``transforms``, and the layers that
    are returned have this rank's heads. ``progress`` shows a bar on stderr for
    loads that take longer than a second.

    Raises `UnsupportedModel` before any weight is read (or fetched), `ModelLoadError` for weights that
    are missing, unexpected, of another shape or damaged.
    """
    begin = time.perf_counter()
    torch_dtype = cast(torch.dtype, getattr(torch, dtype))
    full = read_transformers_config(
        Path(facts.directory), facts.gguf_file, trust_remote_code=config.trust_remote_code
    )
    text = text_causal_lm(full)

    def build() -> Any:
        return build_meta_model(text, dtype=torch_dtype, trust_remote_code=config.trust_remote_code)

    meta_model = build()
    replaced: dict[str, int] = {}
    if communicator is None:
        findings = find_layers(meta_model)
    else:
        rank, size = communicator.rank, communicator.size
        findings = find_rank_layers(meta_model, config, facts, rank=rank, size=size)
        transforms = (TensorParallel(communicator), *transforms)
    if config.max_loras:
        transforms = (LoRATransform(findings.token_linears), *transforms)

    def transform(model: torch.nn.Module) -> None:
        for step in transforms:
            replaced[step.name] = step.apply(model, config, facts)

    if weight_device == "meta":
        model = (meta_model if communicator is None else build()).requires_grad_(False)
        transform(model)
    elif config.load_format == "dummy":
        model = random_weights(
            type(meta_model),
            meta_model.config,
            dtype=torch_dtype,
            device=weight_device,
            experts=experts,
            transform=transform,
            progress=progress,
        )
    else:
        source = WeightSource(
            directory=Path(facts.directory),
            gguf_file=facts.gguf_file,
            hub_id=locate_model(config.model, config.revision).hub_id,
            revision=config.revision,
            allow_pickled=config.allow_pickled_weights,
            is_part_of_multimodal=text is not full,
        )
        model = read_weights(
            type(meta_model),
            meta_model.config,
            source,
            dtype=torch_dtype,
            device=weight_device,
            experts=experts,
            transform=transform,
            progress=progress,
            is_divided=communicator is not None,
        )
    longest = config.max_model_len or facts.max_position_embeddings
    if longest is not None:
        fix_longrope(model, longest)
    return LoadedModel(
        module=model,
        backbone=_make_backbone(model, findings.backbone_name),
        logits=make_logits_function(model, findings.logits_backbone_name),
        layers=findings.layers,
        divided_share=divided_share(meta_model),
        weight_bytes=_weight_bytes(model),
        replaced=replaced,
        seconds=time.perf_counter() - begin,
    )


def _make_backbone(model: torch.nn.Module, backbone_name: str) -> BackboneFunction:
    module: Any = getattr(model, backbone_name)
    arguments = accepted_arguments(module, {"use_cache": False, "return_dict": True})

    def backbone(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # Some models index with positions in ways that take int64 only.
        output = module(input_ids=token_ids[None].long(), position_ids=positions[None].long(), **arguments)
        return cast(torch.Tensor, output.last_hidden_state)[0]

    return backbone


def _weight_bytes(model: torch.nn.Module) -> int:
    # Tensors without data have no address; those that are tied are one object.
    tensors = {
        id(tensor) if tensor.is_meta else tensor.data_ptr(): tensor
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
