"""Does a step's time depend on the size of the KV cache? It must not: donated caches are written in place.

    PJRT_DEVICE=CPU .venv/bin/python benchmarks/cache_size.py MODEL

Two engines, one with ten times the cache, answer in turn; the ratio of the fastest answers is printed.
"""

from __future__ import annotations

import argparse
import time

from core_engine import LLM, SamplingParams

SMALL_BYTES = 100 << 20
NUM_TOKENS = 40
ROUNDS = 7


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="directory of a small model")
    model = parser.parse_args().model
    engines = {factor: start(model, factor * SMALL_BYTES) for factor in (1, 10)}
    fastest = {factor: min(times) for factor, times in zip(engines, measure(engines), strict=True)}
    for factor, seconds in fastest.items():
        print(f"{factor * SMALL_BYTES >> 20:5} MiB: {seconds * 1e3:.2f} ms a step")
    print(f"ratio {fastest[10] / fastest[1]:.2f} (bound 1.5)")


def start(model: str, kv_cache_bytes: int) -> LLM:
    """Start an engine with few graphs."""
    return LLM(
        model,
        backend="tpu",
        dtype="float32",
        max_num_seqs=2,
        max_model_len=96,
        max_num_batched_tokens=16,
        kv_cache_bytes=kv_cache_bytes,
        backend_options={"token_buckets": "16", "recompilation": "error"},
    )


def measure(engines: dict[int, LLM]) -> list[list[float]]:
    """Return the seconds a step of each round, for each engine."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(ROUNDS):
        for engine, own in zip(engines.values(), times, strict=True):
            started = time.perf_counter()
            engine.generate([[1, 2, 3]], params)
            own.append((time.perf_counter() - started) / NUM_TOKENS)
    return times


if __name__ == "__main__":
    main()
