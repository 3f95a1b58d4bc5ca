"""The real model gains from every core that no other test process has; other tests run on one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def all_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    num_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // num_processes))
    try:
        yield
    finally:
        torch.set_num_threads(before)
