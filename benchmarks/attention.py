"""Times the CPU's compiled attention against torch's SDPA, per layer: ``python benchmarks/attention.py``.

Every row is measured in turns within one run, so compare the columns of a row rather than rows of
different runs. The best of many runs is shown: other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from core_engine.backends.cpu.attention import NumbaPagedAttention
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase

#: (name, requests as (cached, new)); several caches are used in turn, so that decodes read cold memory.
WORKLOADS: tuple[tuple[str, Sequence[tuple[int, int]]], ...] = (
    ("decode 1 x 200", [(199, 1)]),
    ("decode 1 x 4096", [(4095, 1)]),
    ("decode 8 x 200", [(199, 1)] * 8),
    ("decode 64 x 200", [(199, 1)] * 64),
    ("prefill 128", [(0, 128)]),
    ("prefill 1024", [(0, 1024)]),
    ("chunk 256 after 1024", [(1024, 256)]),
)
NUM_CACHES = 8


def main() -> None:
    """Print one row per workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=40)
    args = parser.parse_args()
    print(
        f"{args.heads}/{args.kv_heads} heads of {args.head_dim}, {args.dtype}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"{'':22}{'paged ms':>10}{'SDPA ms':>10}{'ratio':>8}{'GB/s':>8}{'GFLOP/s':>9}")
    for name, requests in WORKLOADS:
        case = AttentionCase(
            requests,
            num_heads=args.heads,
            num_kv_heads=args.kv_heads,
            head_dim=args.head_dim,
            dtype=args.dtype,
            block_size=args.block_size,
        )
        paged, dense = best_ms([paged_step(case), dense_step(case)], args.repeat)
        pairs = sum(new * cached + new * (new + 1) // 2 for cached, new in requests)
        read = sum(cached + new for cached, new in requests) * args.kv_heads * 2 * args.head_dim
        print(
            f"{name:22}{paged:10.3f}{dense:10.3f}{dense / paged:8.1f}"
            f"{read * case.dtype.itemsize / paged / 1e6:8.1f}"
            f"{4 * pairs * args.heads * args.head_dim / paged / 1e6:9.0f}"
        )


def paged_step(case: AttentionCase) -> Callable[[], object]:
    """Return a call of the compiled attention, over another cache each time."""
    backend, io = NumbaPagedAttention(), CpuIO()
    caches = [case.allocate(backend, io) for _ in range(NUM_CACHES)]
    for cache in caches:
        case.write_past(backend, io, cache)
    spans = {index: (cached, cached + new) for index, (cached, new) in enumerate(case.requests)}
    step = case.host_step(spans)
    metadata = io.upload(
        replace(step, attention=(backend.build_metadata(step, 0, case.block_size),))
    ).attention[0]
    query = torch.cat(case.queries)
    key = torch.cat([k[-len(q) :] for k, q in zip(case.keys, case.queries, strict=True)])
    value = torch.cat([v[-len(q) :] for v, q in zip(case.values, case.queries, strict=True)])
    turn = 0

    def call() -> object:
        nonlocal turn
        turn = (turn + 1) % NUM_CACHES
        return backend.forward(case.layer, query, key, value, caches[turn], metadata)

    return call


def dense_step(case: AttentionCase) -> Callable[[], object]:
    """Return a call of SDPA over keys and values that lie ready in one tensor, without any gathering."""
    group_size = case.layer.num_heads // case.layer.spec.num_kv_heads
    query = torch.stack(case.queries).transpose(1, 2)
    key, value = (
        torch.stack(rows).transpose(1, 2).repeat_interleave(group_size, dim=1).contiguous()
        for rows in (case.keys, case.values)
    )
    new, length = query.shape[2], key.shape[2]
    mask = torch.ones(new, length, dtype=torch.bool).tril(length - new) if 1 < new < length else None
    is_causal = new == length

    def call() -> object:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)

    return call


@torch.inference_mode()
def best_ms(calls: Sequence[Callable[[], object]], repeat: int) -> list[float]:
    """Return each call's shortest time in milliseconds; the calls take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(repeat):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return [seconds * 1e3 for seconds in best]


if __name__ == "__main__":
    main()
