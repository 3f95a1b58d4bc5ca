"""``core-engine bench``: throughput and latency of a model, and the scheduler's own time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from core_engine.cli.engine_flags import add_engine_flags, engine_options, model_of
from core_engine.cli.options import add_option, add_switch
from core_engine.cli.results import Results
from core_engine.errors import ConfigError, did_you_mean

__all__ = ["add_arguments", "run"]

_MODES = ("throughput", "latency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "mode",
        metavar="throughput|latency",
        help="throughput: all requests at once; latency: --num-prompts requests one after another",
    )
    add_engine_flags(parser)
    add_option(parser, "--input-len", help="tokens per prompt", convert=int, default=128)
    add_option(parser, "--output-len", help="tokens per answer", convert=int, default=128)
    add_option(parser, "--num-prompts", help="how many requests", convert=int, default=64)
    add_switch(parser, "--json", help="print one JSON object and nothing else on stdout")


def run(args: argparse.Namespace, results: Results) -> int:
    """Measure after one warm-up request and print the figures."""
    if args.mode not in _MODES:
        raise ConfigError(
            f"bench measures {' or '.join(_MODES)}, not {args.mode!r}.{did_you_mean(args.mode, _MODES)}"
        )
    from core_engine import LLM
    from core_engine.bench.figures import draft_figures, latency_figures, render, throughput_figures
    from core_engine.bench.measure import measure
    from core_engine.bench.workload import Workload
    from core_engine.scheduler.measure import measure_scheduler

    model = model_of(args)
    options = engine_options(args)
    # Equal random prompts must not answer each other from the cache.
    if options["enable_prefix_caching"] is None:
        options["enable_prefix_caching"] = False
    with LLM(model, **options) as llm:
        engine = llm.engine
        vocab_size = engine.started.model.vocab_size
        work = Workload(args.num_prompts, args.input_len, args.output_len, vocab_size)
        warm_up = Workload(1, args.input_len, min(args.output_len, 8), vocab_size, seed=1)
        measure(engine, warm_up.prompts, warm_up.params)
        figures: dict[str, Any] = {
            "mode": args.mode,
            "model": model,
            "backend": engine.started.selection.backend.name,
            "dtype": engine.config.dtype,
            "input_len": args.input_len,
            "output_len": args.output_len,
        }
        if args.mode == "throughput":
            figures |= throughput_figures(measure(engine, work.prompts, work.params), args.input_len)
        else:
            runs = [measure(engine, [prompt], work.params) for prompt in work.prompts]
            figures |= latency_figures(runs, args.input_len)
        if engine.config.num_draft_tokens:
            figures |= draft_figures(engine.core.scheduler.stats())
    print("measuring the scheduler alone", file=sys.stderr)
    times = measure_scheduler((1, 64, 256, 512))
    figures["scheduler_us_per_step"] = {str(count): step_us for count, step_us in times.step_us.items()}
    figures["scheduler_us_per_request"] = times.per_request_us
    print(json.dumps(figures, indent=2) if args.json else render(figures), file=results)
    return 0
