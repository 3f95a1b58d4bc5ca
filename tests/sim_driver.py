"""Drives a simulated accelerator's worker and runner by hand, without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from core_engine_sim import backend
from core_engine_sim.device import SimDevice

from core_engine._ragged import Ragged
from core_engine.config import EngineConfig
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.models.config_reader import read_model_config
from core_engine.plugin import Probe
from core_engine.plugin.runtime import (
    CaptureReport,
    MemoryBudget,
    ModelRunnerOutput,
    NewRequest,
    RunnerContext,
    SchedulerOutput,
    WorkerBase,
    WorkerContext,
)
from core_engine.sampling.params import SamplingParams
from core_engine.worker.facade import ModelRunnerFacade
from core_engine.worker.hook_manager import runner_hooks

BLOCK_SIZE = 16


@dataclass
class Request:
    """What a scheduler knows of a request, as far as these tests need it."""

    tokens: list[int]
    params: SamplingParams
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    is_new: bool = True


class SimDriver:
    """A started worker on the simulated device and just enough scheduling to use it."""

    def __init__(self, model: Path, *, options: Mapping[str, Any] | None = None, **settings: Any) -> None:
        settings = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, **settings}
        config = EngineConfig(model=str(model), max_num_batched_tokens=64, block_size=BLOCK_SIZE)
        config = replace(config, **settings)
        facts = read_model_config(config)
        devices = backend.detect(Probe(environment={})).devices
        parsed = {option.name: option.default for option in backend.option_schema()} | dict(options or {})
        (plan,) = backend.plan_workers(config, devices, parsed)
        context = WorkerContext(
            config=config,
            model=facts,
            capabilities=backend.capabilities(config, facts, parsed),
            plan=plan,
            devices=tuple(devices[index] for index in plan.device_indices),
            options=parsed,
        )
        self.worker: WorkerBase = backend.create_worker(context)
        report = self.worker.init_device()
        self.device: SimDevice = self.worker.device
        runner = backend.create_model_runner(
            RunnerContext(worker=context, capabilities=report.capabilities, device=self.device)
        )
        self.programs = runner.seams.programs
        self.worker.attach_model_runner(ModelRunnerFacade(runner_hooks(runner, {})))
        self.config = config
        self.requests: dict[str, Request] = {}
        self.next_step = 0
        self.next_block = 1

    def start(self, *, num_blocks: int = 65) -> tuple[MemoryBudget, CaptureReport]:
        """Load, profile, allocate and warm up."""
        self.worker.load_model()
        budget = self.worker.determine_available_memory()
        self.allocate(num_blocks)
        return budget, self.worker.compile_or_warm_up_model()

    def allocate(self, num_blocks: int) -> int:
        """Give the worker a pool of ``num_blocks`` and forget all requests."""
        specs = self.worker.get_kv_cache_spec()
        owners = {name: spec for name, spec in specs.items() if isinstance(spec, KVCacheSpec)}
        shared = {name: owner for name, owner in specs.items() if isinstance(owner, str)}
        self.requests, self.next_block = {}, 1
        return self.worker.initialize_cache(
            KVCacheConfig(
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_model_len=self.config.max_model_len or 0,
                groups=(KVCacheGroup(layers=owners, shared=shared),),
            )
        )

    def add(self, request_id: str, prompt: Sequence[int], **params: Any) -> None:
        """Queue a request; greedy unless ``params`` say otherwise."""
        self.requests[request_id] = Request(list(prompt), SamplingParams(**{"temperature": 0.0, **params}))

    def step(self, scheduled: Mapping[str, int], *, finished: Sequence[str] = ()) -> ModelRunnerOutput:
        """Compute ``scheduled`` (request id → number of tokens) and append what was sampled."""
        rows = [self.requests[request_id] for request_id in scheduled]
        new_blocks = [self._grow(row, size) for row, size in zip(rows, scheduled.values(), strict=True)]
        message = SchedulerOutput(
            step_id=self.next_step,
            request_ids=tuple(scheduled),
            num_scheduled_tokens=np.array(list(scheduled.values()), dtype=np.int32),
            num_computed_tokens=np.array([row.num_computed for row in rows], dtype=np.int32),
            new_block_ids=(Ragged.from_rows(new_blocks),),
            new_requests=tuple(
                NewRequest(
                    request_id=request_id,
                    prompt_token_ids=np.array(row.tokens, dtype=np.int32),
                    sampling_params=row.params,
                    seed=row.params.seed or 0,
                )
                for request_id, row in zip(scheduled, rows, strict=True)
                if row.is_new
            ),
            finished_request_ids=tuple(finished),
        )
        output = self.worker.execute_model(message).result()
        self.next_step += 1
        for row, size in zip(rows, scheduled.values(), strict=True):
            row.num_computed += size
            row.is_new = False
        for index, request_id in enumerate(output.request_ids):
            self.requests[request_id].tokens.extend(output.sampled_token_ids.row(index).tolist())
        return output

    def generate(self, request_id: str, num_tokens: int) -> list[int]:
        """Decode one started request alone until it has ``num_tokens`` more tokens; return them."""
        row = self.requests[request_id]
        end = len(row.tokens) + num_tokens
        while len(row.tokens) < end:
            self.step({request_id: len(row.tokens) - row.num_computed})
        return row.tokens[-num_tokens:]

    def _grow(self, row: Request, size: int) -> list[int]:
        needed = -(-(row.num_computed + size) // BLOCK_SIZE) - len(row.blocks)
        new = list(range(self.next_block, self.next_block + needed))
        self.next_block += needed
        row.blocks += new
        return new


@contextmanager
def started(model: Path, **arguments: Any) -> Iterator[SimDriver]:
    """A driver that is ready for steps and gives its device back at the end."""
    driver = SimDriver(model, **arguments)
    try:
        driver.start()
        yield driver
    finally:
        driver.worker.shutdown()
