"""StepModelRunner: the template that computes a step over six seams."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from core_engine._ragged import Ragged
from core_engine.attention.base import AttentionNeeds
from core_engine.attention.context import ContextHolder, ForwardContext
from core_engine.attention.layer import PagedAttention
from core_engine.errors import EngineError, UnsupportedFeature
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.lora.messages import LoRAAdapter, LoRAInfo
from core_engine.lora.store import LoRAStore
from core_engine.models.loader import LoadedModel, load_model
from core_engine.worker.dummy_step import dummy_step
from core_engine.worker.input_batch import InputBatch
from core_engine.worker.model_runner import ModelRunnerBase
from core_engine.worker.output import FinishedStep, ModelRunnerOutput
from core_engine.worker.program_times import ProgramTimes
from core_engine.worker.reports import CaptureReport, LoadReport, ProfileReport
from core_engine.worker.shape_policy import SamplingKind, StepKind, StepShape
from core_engine.worker.step_in_flight import StepInFlight
from core_engine.worker.sub_steps import SubSteps, split_by_kind

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheConfig
    from core_engine.models.finder import FoundLayer
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.context import RunnerContext
    from core_engine.worker.output import StepHandle
    from core_engine.worker.seams import Seams
    from core_engine.worker.step import DeviceStep, HostStep

__all__ = ["StepModelRunner"]

Tensors = dict[str, torch.Tensor]


class StepModelRunner(ModelRunnerBase):
    """Persistent batch, numpy preparation, cache binding, profiling, warm-up and output building.

    A backend returns its parts from ``build_seams``; everything else here is common. A step runs
    through four functions of device tensors: backbone, logits, sample and, where requests want
    log-probabilities of sampled tokens or of their prompts, score.
    """

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self.seams = self.build_seams()
        self.forward_context = ContextHolder()
        self.layers: dict[str, PagedAttention] = {}
        self._loaded: LoadedModel | None = None
        self._loras: LoRAStore | None = None
        self._kv: KVCacheConfig | None = None
        self._batch: InputBatch | None = None
        self._in_flight: StepHandle | None = None
        self._program_times = ProgramTimes(self.seams.programs)
        compile_program = self._program_times.compile
        self._backbone = compile_program("backbone", self._run_backbone)
        self._logits = compile_program("logits", self._run_logits)
        self._sample = compile_program("sample", self.seams.sampler.sample)
        self._score = compile_program("score", self._run_score)

    @abstractmethod
    def build_seams(self) -> Seams:
        """Return this device's parts; called once, from the constructor, with ``self.device`` set."""

    def load_model(self) -> LoadReport:
        """Load the model, give each attention layer its `PagedAttention` and place it on the device."""
        config, facts = self.config, self.context.model
        loaded = load_model(
            config,
            facts,
            dtype=config.dtype,
            transforms=self.seams.layer_transforms,
            weight_device=self.seams.io.weight_device,
            experts=self.seams.experts,
            communicator=self.seams.communicator,
            progress=self._shows_progress,
        )
        self._loaded = loaded
        for layer in loaded.layers:
            self._check(layer)
        for layer in loaded.layers:
            self._attach(layer, loaded)
        self.model = self.seams.io.place_model(loaded.module)
        weight_bytes = loaded.weight_bytes
        if config.max_loras:
            self._loras = LoRAStore(self.model, self.seams.io, config, self.forward_context)
            weight_bytes += self._loras.num_bytes
        return LoadReport(
            weight_bytes=weight_bytes, seconds=loaded.seconds, divided_share=loaded.divided_share
        )

    def profile_run(self) -> ProfileReport:
        """Measure the largest step with nothing bound: attention returns zeros and touches no cache."""
        num_reqs = min(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        shape = self.seams.shapes.pad(self.config.max_num_batched_tokens, num_reqs, StepKind.MIXED)
        everything = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
        kind = self.seams.shapes.widen(everything)
        step = dummy_step(
            shape,
            kind,
            num_groups=0,
            max_blocks_per_request=1,
            vocab_size=self.context.model.vocab_size,
            max_length=self.config.max_model_len or self.context.model.max_position_embeddings,
            num_logprobs=self._max_logprobs or None,
            lora=self._loras is not None,
        )

        def run() -> None:
            self._compute(step, is_profile_run=True)
            self.seams.io.synchronize()

        return ProfileReport(activation_bytes=self.seams.io.measure_peak(run))

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate and bind the caches, one for the i-th layers of all groups, and start an empty batch."""
        for attention in self.layers.values():
            attention.bind(None, 0)
        self._batch = None
        caches: list[Any] = []
        num_bytes = 0
        backend, io, block_size = self.seams.attention, self.seams.io, kv_cache_config.block_size
        for index, group in enumerate(kv_cache_config.groups):
            for place, (name, spec) in enumerate(group.layers.items()):
                if place == len(caches):
                    caches.append(backend.allocate(spec, kv_cache_config.num_blocks, block_size, io))
                    num_bytes += backend.page_bytes(spec, block_size) * kv_cache_config.num_blocks
                self.layers[name].bind(caches[place], index)
            for name, owner in group.shared.items():
                self.layers[name].bind(self.layers[owner].cache, index)
        self._kv = kv_cache_config
        self._batch = InputBatch(
            kv_cache_config,
            self.seams.shapes,
            max_num_seqs=self.config.max_num_seqs,
            vocab_size=self.context.model.vocab_size,
            loras=None if self._loras is None else self._loras.empty_slots(),
        )
        return num_bytes

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Run one padded step of invented tokens; returns the padded number of tokens."""
        kind = StepKind.DECODE if num_tokens == num_reqs else StepKind.MIXED
        shape = self.seams.shapes.pad(num_tokens, num_reqs, kind)
        self._dummy(shape, self.seams.shapes.widen(SamplingKind(all_greedy=True)))
        return shape.num_tokens

    def capture_model(self) -> CaptureReport:
        """Run every shape with the first sampler, and every request count with every program of its own.

        A bar on stderr shows the shapes of warm-ups that take longer than a second.
        """
        started = time.perf_counter()
        shapes = self.seams.shapes.warm_up_shapes() or (
            StepShape(1, 1, StepKind.DECODE),
            StepShape(min(32, self.config.max_num_batched_tokens), 1, StepKind.MIXED),
        )
        kinds = self.seams.shapes.warm_up_sampling_kinds() or (SamplingKind(all_greedy=True),)
        warmed: set[int] = set()
        for shape in tqdm(
            shapes,
            desc="warm-up",
            unit="shape",
            delay=1.0,
            leave=False,
            file=sys.stderr,
            disable=not self._shows_progress,
        ):
            is_new = shape.num_reqs not in warmed
            self._dummy(shape, kinds[0], num_logprobs=(self._max_logprobs or None) if is_new else None)
            for kind in kinds[1:] if is_new else ():
                self._dummy(shape, kind)
            warmed.add(shape.num_reqs)
        self.seams.io.synchronize()
        self.seams.programs.seal()
        return CaptureReport(
            num_programs=self.seams.programs.num_programs(),
            seconds=time.perf_counter() - started,
            groups=self._program_times.stop(),
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step; waits for the step before it, whose tokens this one may read."""
        if self._batch is None:
            raise EngineError("the KV cache is not initialised: call initialize_kv_cache first")
        before, self._in_flight = self._in_flight, None
        if before is not None:
            with suppress(Exception):  # its own handle tells of its failure
                before.result()
        self._batch.apply(scheduler_output)
        if not scheduler_output.request_ids:
            empty = Ragged.from_rows([])
            return FinishedStep(ModelRunnerOutput(step_id=scheduler_output.step_id, sampled_token_ids=empty))
        parts = split_by_kind(scheduler_output) if self.seams.splits_mixed_steps else (scheduler_output,)
        handles = [self._start(part, self._batch) for part in parts]
        self._in_flight = handles[0] if len(handles) == 1 else SubSteps(scheduler_output, handles)
        return self._in_flight

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Read an adapter into host memory; it gets a slot with its first request."""
        return self._lora_store.add(adapter)

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that are computed with it now go on."""
        return self._lora_store.remove(lora_id)

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """List the adapters by number."""
        return self._lora_store.infos()

    def _start(self, step: SchedulerOutput, batch: InputBatch) -> StepHandle:
        prepared = batch.prepare(step)
        tensors = self._compute(prepared.host, sample=len(prepared.sampling) > 0)
        return StepInFlight(step, prepared, self.seams.io.download(tensors), batch.commit)

    def _check(self, layer: FoundLayer) -> None:
        """Ask the attention backend whether it serves the layer. Raises `UnsupportedFeature`."""
        params = layer.params(self.config.dtype)
        spec, backend = params.spec, self.seams.attention
        needs = AttentionNeeds(
            num_heads=params.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            head_dim_v=spec.head_dim_v,
            dtype=spec.dtype,
            block_size=self._block_size,
            sliding_window=spec.sliding_window,
            soft_cap=params.soft_cap,
            sinks=layer.sinks,
        )
        if needs.sliding_window is not None and not self.capabilities.sliding_window:
            reason: str | None = "its sliding window is a feature that this backend does not declare"
        else:
            reason = backend.supports(needs)
        if reason is not None:
            raise UnsupportedFeature(
                f"attention backend {backend.name!r} cannot serve layer {layer.name!r} of "
                f"{self.context.model.architecture}: {reason}"
            )

    def _attach(self, layer: FoundLayer, loaded: LoadedModel) -> None:
        """Give one layer its attention object and note its cache."""
        params = layer.params(self.config.dtype)
        spec, backend = params.spec, self.seams.attention
        attention = PagedAttention(
            params, backend, self.forward_context, shares_cache_of=layer.shares_cache_of
        )
        loaded.attach(layer.name, attention)
        self.layers[layer.name] = attention
        page_bytes = backend.page_bytes(spec, self._block_size)
        if layer.shares_cache_of is None:
            self.kv_cache_spec[layer.name] = replace(spec, page_bytes=page_bytes)
        else:
            self.kv_cache_spec[layer.name] = layer.shares_cache_of
            self._keep_for(layer.shares_cache_of, spec.sliding_window)

    def _keep_for(self, owner: str, window: int | None) -> None:
        """Let a cache keep what a layer that reuses it sees, where that is more than its own layer does."""
        spec = self.kv_cache_spec[owner]
        if isinstance(spec, KVCacheSpec) and spec.sliding_window is not None:
            kept = None if window is None else max(window, spec.sliding_window)
            self.kv_cache_spec[owner] = replace(spec, sliding_window=kept)

    @property
    def _shows_progress(self) -> bool:
        """Say whether bars are this rank's to show: all ranks are about as far."""
        return self.context.worker.plan.rank == 0

    @property
    def _block_size(self) -> int:
        return self.config.block_size or self.capabilities.block_sizes[0]

    @property
    def _max_logprobs(self) -> int:
        return min(self.capabilities.max_logprobs, self.context.model.vocab_size)

    def _dummy(self, shape: StepShape, kind: SamplingKind, *, num_logprobs: int | None = None) -> None:
        if self._kv is None:
            raise EngineError("the KV cache is not initialised: call initialize_kv_cache first")
        self._compute(
            dummy_step(
                shape,
                kind,
                num_groups=len(self._kv.groups),
                max_blocks_per_request=self._kv.max_blocks_per_request,
                vocab_size=self.context.model.vocab_size,
                max_length=self._kv.max_model_len,
                num_logprobs=num_logprobs,
                lora=self._loras is not None,
            )
        )

    def _compute(self, step: HostStep, *, sample: bool = True, is_profile_run: bool = False) -> Tensors:
        with self.seams.programs.without_gradients():
            return self._run(step, sample=sample, is_profile_run=is_profile_run)

    def _run(self, step: HostStep, *, sample: bool, is_profile_run: bool) -> Tensors:
        if not is_profile_run:
            step = self._with_attention_metadata(step)
        device = self.seams.io.upload(step)
        hidden = self._backbone(
            device.token_ids, device.positions, device.attention, is_profile_run, device.lora_slots
        )
        tensors: Tensors = {}
        if sample:
            logits = self._logits(hidden, device.logits_rows)
            token_ids = self._sample(logits, device.sampling, device.sampling_kind)
            tensors["token_ids"] = token_ids
            if step.num_logprobs is not None:
                tensors.update(self._score_rows(logits, token_ids, step.num_logprobs))
        if device.prompt_rows:
            tensors.update(self._score_prompts(hidden, device))
        return tensors

    def _with_attention_metadata(self, step: HostStep) -> HostStep:
        assert self._kv is not None  # both callers checked
        block_size = self._kv.block_size
        build = self.seams.attention.build_metadata
        groups = range(len(self._kv.groups))
        return replace(step, attention=tuple(build(step, group, block_size) for group in groups))

    def _run_backbone(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: tuple[Mapping[str, torch.Tensor], ...],
        is_profile_run: bool,
        lora_slots: torch.Tensor | None,
    ) -> torch.Tensor:
        mask = None if lora_slots is None else self._lora_store.mask(lora_slots)
        with self.forward_context.activate(ForwardContext(attention, is_profile_run, mask)):
            return self._model.backbone(token_ids, positions)

    def _run_logits(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden.index_select(0, rows))

    def _run_score(self, logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int) -> Tensors:
        # A row without a token has -1, and its numbers mean nothing.
        return self.seams.sampler.logprobs(logits, torch.clamp(token_ids, min=0), num_logprobs)

    def _score_rows(self, logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int) -> Tensors:
        return self._score(logits, token_ids, self.seams.shapes.widen_logprobs(num_logprobs))

    def _score_prompts(self, hidden: torch.Tensor, device: DeviceStep) -> Tensors:
        tensors: Tensors = {}
        for chunk, (rows, targets) in enumerate(zip(device.prompt_rows, device.prompt_targets, strict=True)):
            # One column count for all requests of the step keeps the number of programs small.
            scored = self._score_rows(self._logits(hidden, rows), targets, self._max_logprobs)
            # The host joins the chunks: on the device every number of them would be one more program.
            tensors.update({f"prompt_{name}_{chunk}": tensor for name, tensor in scored.items()})
        return tensors

    @property
    def _lora_store(self) -> LoRAStore:
        if self._loras is None:
            raise UnsupportedFeature("LoRA is off: start the engine with max_loras of at least 1")
        return self._loras

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise EngineError("no model is loaded yet: call load_model first")
        return self._loaded
