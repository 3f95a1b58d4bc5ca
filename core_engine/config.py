"""What an engine is configured with: one frozen object for the settings, one for the model's facts.

Both are torch-free and hold only numbers, strings and tuples, so that they cross process boundaries
as msgpack. ``None`` means "let the engine decide"; after `core_engine.engine.settle` no field that
the worker reads is None any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DTYPE_BYTES", "LOAD_FORMATS", "EngineConfig", "ModelConfig"]

#: Bytes of one element of each data type that the engine knows by name.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
#: What ``load_format`` may be.
LOAD_FORMATS = ("auto", "dummy")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """What the model's own files say, read before any weight."""

    #: Directory, hub id or ``.gguf`` file, as the user gave it.
    path: str
    #: Directory on this machine that holds the files.
    directory: str
    #: File name of the GGUF weights within ``directory``, or None for safetensors.
    gguf_file: str | None = None
    model_type: str
    #: The class in transformers that computes logits, e.g. "LlamaForCausalLM".
    architecture: str
    #: The data type of the checkpoint: "bfloat16", "float16" or "float32".
    dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    #: Heads of keys and values; None where the config names no number that holds for all layers.
    num_kv_heads: int | None = None
    #: The longest sequence the model was made for, in tokens; None where its config does not say.
    max_position_embeddings: int | None = None
    #: Token ids that end a sequence.
    eos_token_ids: tuple[int, ...] = ()
    #: Bytes of the weight files.
    weight_file_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """All settings of one engine; each is a flag of the shell and has a variable, ``seed`` excepted."""

    #: Directory, hub id or ``.gguf`` file.
    model: str
    #: Where the tokenizer is read from; the model's own by default.
    tokenizer: str | None = None
    #: Hub revision of the model and the tokenizer.
    revision: str | None = None
    #: "auto" (the checkpoint's, or the nearest the device has), "bfloat16", "float16", "float32".
    dtype: str = "auto"
    #: The longest prompt plus output in tokens; by default the model's, or the largest that fits.
    max_model_len: int | None = None
    #: The most requests that run at once.
    max_num_seqs: int = 64
    #: The token budget of one step.
    max_num_batched_tokens: int = 2048
    #: Who runs first: "fcfs" (in order of arrival), "priority" (smaller priority first, then arrival),
    #: "shortest-prompt-first", an installed policy or a class path.
    scheduling_policy: str = "fcfs"
    #: Name or class path of the scheduler; by default the backend's preference, else "unified" where the
    #: backend mixes prefill and decode, else "simple".
    scheduler: str | None = None
    #: Guess up to this many tokens ahead per request from its own text (n-gram look-up) and verify them in
    #: one step; outputs stay the same. 0 is off.
    num_draft_tokens: int = 0
    #: How many LoRA adapters may take part in one step; 0 turns LoRA off.
    max_loras: int = 0
    #: The largest rank of an adapter.
    max_lora_rank: int = 16
    #: Tokens per KV-cache block; the backend's preferred size by default.
    block_size: int | None = None
    #: Bytes for the KV cache; by default what the backend finds free (the CPU backend takes half of the free
    #: memory, at most 8 GiB).
    kv_cache_bytes: int | None = None
    #: Share of the device's memory that the engine may use, where a backend sizes by share.
    device_memory_utilization: float = 0.9
    #: Reuse cached blocks of equal prefixes; on by default where the backend can.
    enable_prefix_caching: bool | None = None
    #: Split long prompts over steps; on by default where the backend can.
    enable_chunked_prefill: bool | None = None
    #: Do not capture or compile shapes.
    enforce_eager: bool = False
    #: Where requests without a seed draw theirs from; by default from the system. The shell's ``--seed`` is
    #: the requests' own.
    seed: int | None = None
    #: Over how many devices each weight matrix is split; on the CPU backend over how many processes.
    tensor_parallel_size: int = 1
    #: Name of the backend; None chooses automatically.
    backend: str | None = None
    #: Options of the backend's own, by name, as text.
    backend_options: Mapping[str, str] = field(default_factory=dict)
    #: Names of installed extensions to turn on.
    extensions: tuple[str, ...] = ()
    #: Run the worker in this process or in one of its own ("in-process", "process"); several workers
    #: have one each.
    executor: str = "in-process"
    #: Where weights come from: "auto" (the model's files), or "dummy" (random numbers, so that speed and
    #: memory can be measured without the files; the answers mean nothing).
    load_format: str = "auto"
    #: Run Python code that a model repository brings.
    trust_remote_code: bool = False
    #: Load weights from pickle files, which can run code.
    allow_pickled_weights: bool = False
    #: Take sampling defaults from the model's generation_config.json.
    use_generation_config: bool = True
