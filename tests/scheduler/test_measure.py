from __future__ import annotations

import pytest

from core_engine.scheduler.measure import measure_scheduler
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.unified import UnifiedScheduler


@pytest.mark.parametrize("scheduler", [UnifiedScheduler, SimpleScheduler])
def test_every_count_is_measured_and_fitted(scheduler: type[UnifiedScheduler | SimpleScheduler]) -> None:
    times = measure_scheduler((1, 3), num_windows=2, scheduler=scheduler)

    assert list(times.step_us) == [1, 3]
    assert all(step_us > 0 for step_us in times.step_us.values())
    assert list(times.check_us) == [1, 3]
    assert all(check_us > 0 for check_us in times.check_us.values())
    fitted = {count: times.base_us + times.per_request_us * count for count in times.step_us}
    assert all(abs(fitted[count] - step_us) < 1e-6 for count, step_us in times.step_us.items())
