"""What is made of the answers of several ranks; no process is needed."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from core_engine.errors import CoreEngineError, DeviceLost, InvalidRequest, OutOfDeviceMemory, WorkerDied
from core_engine.executor import worker_group
from core_engine.executor.worker_group import GroupCall


class Ranks:
    """The futures of some ranks, and the call that waits for them."""

    def __init__(self, size: int) -> None:
        self.futures: list[Future[bytes]] = [Future() for _ in range(size)]
        self.ended: list[CoreEngineError] = []
        self.call = GroupCall("execute_model", self.futures, self.ended.append)

    def answer(self, rank: int, answer: bytes | Exception) -> None:
        if isinstance(answer, bytes):
            self.futures[rank].set_result(answer)
        else:
            self.futures[rank].set_exception(answer)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "_OUT_OF_STEP_S", 0.05)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_results_stand_in_the_order_of_the_ranks_whoever_answers_first(order: tuple[int, ...]) -> None:
    ranks = Ranks(3)
    for rank in order:
        ranks.answer(rank, b"of rank %d" % rank)
    assert ranks.call.results() == [b"of rank 0", b"of rank 1", b"of rank 2"]
    assert ranks.call.results() == [b"of rank 0", b"of rank 1", b"of rank 2"]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_call_is_done_when_every_rank_has_answered(missing: int) -> None:
    ranks = Ranks(2)
    ranks.answer(1 - missing, b"")
    with pytest.raises(TimeoutError):
        ranks.call.results(0)
    assert ranks.call.unanswered() == [missing]
    ranks.answer(missing, b"")
    assert ranks.call.results(0) == [b"", b""]
    assert not ranks.ended


def test_an_error_of_one_rank_names_it_and_keeps_its_type_and_its_field() -> None:
    ranks = Ranks(2)
    ranks.answer(0, b"")
    ranks.answer(1, InvalidRequest("odd", "prompt"))
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"^rank 1: odd$") as caught:
            ranks.call.results()
        assert caught.value.param == "prompt"
    assert not ranks.ended


def test_an_error_that_all_ranks_tell_needs_no_rank() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.answer(rank, OutOfDeviceMemory("no room"))
    with pytest.raises(OutOfDeviceMemory, match=r"^no room$"):
        ranks.call.results()
    assert not ranks.ended


def test_different_errors_of_all_ranks_are_told_by_the_first() -> None:
    ranks = Ranks(2)
    ranks.answer(1, OutOfDeviceMemory("1 GiB"))
    ranks.answer(0, OutOfDeviceMemory("2 GiB"))
    with pytest.raises(OutOfDeviceMemory, match=r"^rank 0: 2 GiB$"):
        ranks.call.results()


@pytest.mark.parametrize("failed", [0, 1])
def test_ranks_that_wait_for_one_that_failed_are_ended(failed: int) -> None:
    ranks = Ranks(2)
    ranks.answer(failed, DeviceLost("no link"))
    with pytest.raises(DeviceLost, match=f"^rank {failed}: no link$"):
        ranks.call.results()
    (reason,) = ranks.ended
    assert isinstance(reason, WorkerDied)
    assert f"rank {failed} failed in execute_model while rank {1 - failed} waited" in str(reason)
    assert f"DeviceLost: rank {failed}: no link" in str(reason)


def test_a_death_explains_what_the_others_tell() -> None:
    ranks = Ranks(2)
    ranks.answer(0, RuntimeError("Connection closed by peer"))
    ranks.answer(1, WorkerDied("worker process 7 (rank 1 of 2) ended by signal 9"))
    with pytest.raises(WorkerDied, match="signal 9"):
        ranks.call.results()
