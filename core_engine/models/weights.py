"""Reads weights into a model through transformers' ``from_pretrained`` and its conversion mapping.

The model class is subclassed on the fly: the subclass's ``__init__`` builds the model and then applies
the engine's layer transforms while all parameters still lie on the meta device, so that weights are read
into the transformed model. After loading the object is of the original class again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core_engine._text import error_line
from core_engine.errors import CoreEngineError, ModelLoadError
from core_engine.models._quiet import quiet_transformers
from core_engine.models.attention_hook import ATTENTION_NAME
from core_engine.models.causal_lm import require_gguf
from core_engine.models.locate import WEIGHT_PATTERNS, fetch_weights
from core_engine.models.shards import check_shards
from core_engine.parallel.reading import expect_whole, keep_shares, one_by_one

__all__ = ["WeightSource", "read_weights", "transforming_class"]

#: Where multimodal checkpoints keep their language model, and where its own class looks for it.
_TEXT_PART_NAMES = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
    r"^model\.text_model\.": "model.",
}
_MAX_NAMES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """Where the weights are."""

    directory: Path
    gguf_file: str | None = None
    #: Set when ``directory`` is a hub snapshot whose weights may still have to be fetched.
    hub_id: str | None = None
    revision: str | None = None
    allow_pickled: bool = False
    #: The checkpoint holds more than the text model that is loaded from it.
    is_part_of_multimodal: bool = False


def read_weights(
    model_class: Any,
    config: Any,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: str,
    experts: str | None,
    transform: Callable[[torch.nn.Module], None],
    progress: bool,
    is_divided: bool = False,
) -> Any:
    """Return the loaded model: eval mode, no gradients, nothing left on the meta device.

    With ``is_divided`` the transform leaves shares of parameters, and whole ones are read one by one, into
    host memory, for these to be cut from (`core_engine.parallel.reading`).

    Raises `ModelLoadError` naming the weights that are missing, unexpected or of another shape, or the
    file that is damaged.
    """
    keywords = _source_keywords(source)
    if device != "cpu" and not is_divided:
        keywords["device_map"] = {"": device}

    def prepare(model: torch.nn.Module) -> None:
        transform(model)
        if is_divided:
            expect_whole(model, device)

    with quiet_transformers(progress=progress), one_by_one() if is_divided else nullcontext():
        try:
            model, report = transforming_class(model_class, prepare).from_pretrained(
                source.directory,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                experts_implementation=experts,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
                **keywords,
            )
        except CoreEngineError:  # of a layer transform
            raise
        # transformers, torch and the readers of the formats raise many kinds, by the kind of damage.
        except Exception as error:
            raise ModelLoadError(
                f"cannot load the weights in {str(source.directory)!r}: {error_line(error)}"
            ) from error
    model.__class__ = model_class
    if is_divided:
        keep_shares(model, device)
    _check_report(report, source)
    _check_complete(model, source)
    return model.requires_grad_(False).eval()


def transforming_class(model_class: Any, transform: Callable[[torch.nn.Module], None]) -> Any:
    """Return a subclass of ``model_class`` whose instances are transformed as soon as they are built."""

    def build(self: Any, *args: Any, **keywords: Any) -> None:
        model_class.__init__(self, *args, **keywords)
        transform(self)

    # Without generation, from_pretrained looks for no generation files and no code beside the weights.
    namespace = {
        "__init__": build,
        "__module__": model_class.__module__,
        "can_generate": classmethod(lambda _: False),
    }
    return type(model_class.__name__, (model_class,), namespace)


def _source_keywords(source: WeightSource) -> dict[str, Any]:
    if source.gguf_file is not None:
        require_gguf()
        from transformers import GgufConfig

        quantization = GgufConfig(dequantize=True, gguf_file=source.gguf_file)
        return {"gguf_file": source.gguf_file, "quantization_config": quantization}
    kind = "pickle" if source.allow_pickled and not _files(source.directory, "safetensors") else "safetensors"
    if source.hub_id is not None:
        fetch_weights(source.hub_id, source.revision, kind)
    shards = check_shards(source.directory, kind)
    if kind == "safetensors":
        _check_safetensors(source.directory, shards or _files(source.directory, kind))
    keywords: dict[str, Any] = {"use_safetensors": kind == "safetensors"}
    if source.is_part_of_multimodal:
        keywords["key_mapping"] = _TEXT_PART_NAMES
    return keywords


def _files(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.glob(WEIGHT_PATTERNS[kind]))


def _check_safetensors(directory: Path, paths: Sequence[Path]) -> None:
    """Raise `ModelLoadError` naming the first file that is cut off or damaged, and when there is none."""
    from safetensors import SafetensorError, safe_open

    if not paths:
        raise ModelLoadError(f"{str(directory)!r} holds no safetensors weights")
    for path in paths:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"the weight file {str(path)!r} is damaged: {error_line(error)}") from error


def _check_report(report: dict[str, Any], source: WeightSource) -> None:
    where = str(source.directory)
    if report["mismatched_keys"]:
        texts = [
            f"{name} (file {list(stored)}, model {list(wanted)})"
            for name, stored, wanted in report["mismatched_keys"]
        ]
        raise ModelLoadError(f"weights in {where!r} have another shape than config.json says: {_some(texts)}")
    if report["missing_keys"]:
        raise ModelLoadError(f"weights are missing in {where!r}: {_some(report['missing_keys'])}")
    if report["unexpected_keys"] and not source.is_part_of_multimodal:
        raise ModelLoadError(
            f"{where!r} holds weights that the model does not have: {_some(report['unexpected_keys'])}; "
            "config.json and the weights do not belong together"
        )


def _check_complete(model: torch.nn.Module, source: WeightSource) -> None:
    tensors = (*model.named_parameters(), *model.named_buffers())
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise ModelLoadError(f"no weights in {str(source.directory)!r} for: {_some(empty)}")


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = len(listed) - _MAX_NAMES
    return ", ".join(listed[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
