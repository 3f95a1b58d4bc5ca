from __future__ import annotations

import pytest
from scheduler.harness import request

from core_engine.errors import ConfigError
from core_engine.scheduler.policies import find_policy, in_order_of_arrival, in_order_of_priority


def test_first_come_first_served_ignores_priority() -> None:
    early, late = request("a", priority=9, arrival_s=1.0), request("b", priority=0, arrival_s=2.0)

    assert in_order_of_arrival(early, 1) < in_order_of_arrival(late, 0)


def test_smaller_priority_runs_first() -> None:
    early, late = request("a", priority=9, arrival_s=1.0), request("b", priority=0, arrival_s=2.0)

    assert in_order_of_priority(late, 1) < in_order_of_priority(early, 0)


@pytest.mark.parametrize("policy", [in_order_of_arrival, in_order_of_priority])
def test_requests_that_are_equal_in_all_else_are_ordered_by_sequence(policy: object) -> None:
    assert callable(policy)
    assert policy(request("a"), 0) < policy(request("a"), 1)


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'priorty'; possible: fcfs, priority. Did you mean 'priority'\?"):
        find_policy("priorty")
