"""What a backend can do, declared once and consulted by the engine and the conformance kit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a backend offers on the detected devices under the given configuration.

    Declared means it must work; undeclared means that asking for it raises `UnsupportedFeature`.
    Every field has a default that promises nothing, so that the class can grow. The object is
    computed in the light module (`BackendSpec.capabilities`) and narrowed once after
    `WorkerApi.init_device`, before the scheduler is built; it never changes afterwards.
    """

    #: Data types for weights and activations, best first: "bfloat16", "float16", "float32".
    dtypes: tuple[str, ...] = ("float32",)
    #: KV-cache block sizes in tokens, the preferred one first.
    block_sizes: tuple[int, ...] = (16,)
    #: A prompt may be computed over several steps.
    chunked_prefill: bool = False
    #: Prefill and decode tokens may share one step.
    mixed_batches: bool = False
    #: Blocks written for one request may be read by another.
    prefix_caching: bool = False
    #: Attention over a sliding window.
    sliding_window: bool = False
    #: Log-probabilities of sampled tokens: the most that one request may ask for.
    max_logprobs: int = 0
    #: Log-probabilities of prompt tokens.
    prompt_logprobs: bool = False
    #: Steps are captured or compiled for fixed shapes; ``enforce_eager`` turns that off.
    graph_capture: bool = False
    #: LoRA adapters in one batch.
    lora: bool = False
    #: Several sampled positions of one request in one step (speculative decoding).
    draft_tokens: bool = False
    #: The numbers of tokens to which a step is padded, in rising order; empty where shapes are free. A
    #: scheduler counts a step's cost by them.
    token_buckets: tuple[int, ...] = ()
    #: Name of the scheduler that suits the device best; None leaves the choice to the engine.
    preferred_scheduler: str | None = None
    #: The most devices over which one model may be split.
    max_tensor_parallel_size: int = 1
    #: The most requests in one step, or None for no limit of the device's.
    max_num_seqs: int | None = None
