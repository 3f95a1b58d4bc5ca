"""Print the scheduler's own time per step: ``python benchmarks/scheduler.py [--json]``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from core_engine.scheduler.measure import measure_scheduler


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--num-running",
        type=int,
        nargs="+",
        default=[1, 64, 256, 512],
        help="two or more counts of running requests",
    )
    arguments = parser.parse_args()
    times = measure_scheduler(arguments.num_running)
    if arguments.json:
        print(json.dumps(asdict(times)))
        return
    print("running requests   µs per step")
    for count, step_us in times.step_us.items():
        print(f"{count:>16}   {step_us:>11.1f}")
    print(f"{times.base_us:.1f} µs + {times.per_request_us:.2f} µs per running request")


if __name__ == "__main__":
    main()
