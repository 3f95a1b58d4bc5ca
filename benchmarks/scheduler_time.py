"""Print the scheduler's own time per step: ``python benchmarks/scheduler_time.py [--profile] [--json]``."""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FrameType

from core_engine.scheduler.contract import Scheduler
from core_engine.scheduler.measure import SteadyDecode, measure_scheduler
from core_engine.scheduler.plugins import load_scheduler

NUM_WINDOWS = 24
#: Of a profile: how often the windows are run, and seconds from one sample to the next.
PROFILED_RUNS, SAMPLE_S = 10, 0.0002
NUM_FUNCTIONS = 12


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--profile", action="store_true", help="show where the time of the largest count goes"
    )
    parser.add_argument("--scheduler", default="unified", help="name or class path (default: unified)")
    parser.add_argument(
        "--num-running",
        type=int,
        nargs="+",
        default=[1, 64, 256, 512],
        help="two or more counts of running requests",
    )
    arguments = parser.parse_args()
    scheduler = load_scheduler(arguments.scheduler)
    times = measure_scheduler(arguments.num_running, NUM_WINDOWS, scheduler)
    if arguments.json:
        print(json.dumps(asdict(times)))
        return
    print("running requests   µs per step   µs of its check")
    for count, step_us in times.step_us.items():
        print(f"{count:>16}   {step_us:>11.1f}   {times.check_us[count]:>15.1f}")
    print(f"{times.base_us:.1f} µs + {times.per_request_us:.2f} µs per running request, and the check")
    if arguments.profile:
        most = max(arguments.num_running)
        print_profile(most, scheduler, times.step_us[most] + times.check_us[most])


def print_profile(num_running: int, scheduler: type[Scheduler], step_us: float) -> None:
    """Print the functions in which most of a step's ``step_us`` is spent, with what they call in C.

    The program is interrupted many times and asked where it is. A profiler that hooks every call does not
    leave the shares as they are: under one the same steps took seven times as long.
    """
    samples: Counter[CodeType] = Counter()

    def take_sample(number: int, frame: FrameType | None) -> None:
        if frame is not None:
            samples[frame.f_code] += 1

    before = signal.signal(signal.SIGALRM, take_sample)
    try:
        for _ in range(PROFILED_RUNS):
            load = SteadyDecode(num_running, NUM_WINDOWS, scheduler)
            signal.setitimer(signal.ITIMER_REAL, SAMPLE_S, SAMPLE_S)
            for _ in range(NUM_WINDOWS):
                load.window()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    own = {code: count for code, count in samples.items() if "/scheduler/measure.py" not in code.co_filename}
    total = sum(own.values())
    print(f"\n{num_running} running requests, {step_us:.0f} µs per step with its check, {total} samples")
    print("   share   µs per step   function")
    for code, count in Counter(own).most_common(NUM_FUNCTIONS):
        place = "/".join(Path(code.co_filename).parts[-2:])
        print(f"{count / total:>8.1%}   {count / total * step_us:>11.1f}   {place}  {code.co_qualname}")


if __name__ == "__main__":
    main()
