from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from core_engine.errors import EngineError, UnsupportedFeature
from core_engine.parallel.torch_communicator import TorchCommunicator

#: Runs one function of the ranks, each in a thread of its own, and returns what they return.
Together = Callable[[Callable[[TorchCommunicator], Any]], list[Any]]


def open_ranks(folder: Path, size: int) -> list[TorchCommunicator]:
    with ThreadPoolExecutor(size) as pool:
        opened = [
            pool.submit(TorchCommunicator, "gloo", str(folder / "ranks"), rank, size, arrival_s=60)
            for rank in range(size)
        ]
        return [one.result() for one in opened]


@pytest.fixture(params=[2, 3])
def ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[TorchCommunicator]]:
    opened = open_ranks(tmp_path, request.param)
    yield opened
    for rank in opened:
        rank.close()


@pytest.fixture
def together(ranks: list[TorchCommunicator]) -> Together:
    def run(function: Callable[[TorchCommunicator], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(function, ranks))

    return run


def random(rank: TorchCommunicator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank.rank)
    return torch.randn(*shape, generator=generator).to(dtype)


def test_ranks_know_their_number_and_how_many_they_are(ranks: list[TorchCommunicator]) -> None:
    assert [(rank.rank, rank.size) for rank in ranks] == [(n, len(ranks)) for n in range(len(ranks))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 5), (7, 33), (64, 576), (0, 8)])
def test_a_sum_is_the_sum_of_all_ranks_in_the_same_bits(
    ranks: list[TorchCommunicator], together: Together, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    sums = together(lambda rank: rank.all_reduce(random(rank, *shape, dtype=dtype)))
    expected = torch.stack([random(rank, *shape, dtype=dtype).double() for rank in ranks]).sum(0)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}[dtype]
    assert torch.allclose(sums[0].double(), expected, atol=tolerance)
    for other in sums[1:]:
        assert torch.equal(other, sums[0])


def test_a_sum_is_computed_in_place(together: Together) -> None:
    def reduce(rank: TorchCommunicator) -> bool:
        tensor = random(rank, 4, 8)
        return rank.all_reduce(tensor).data_ptr() == tensor.data_ptr()

    assert all(together(reduce))


def test_a_view_of_a_larger_tensor_can_be_summed(ranks: list[TorchCommunicator], together: Together) -> None:
    sums = together(lambda rank: rank.all_reduce(random(rank, 6, 4).t()))
    expected = torch.stack([random(rank, 6, 4).t() for rank in ranks]).sum(0)
    for one in sums:
        torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("shape", [(3,), (1, 5), (7, 5), (2, 3, 4), (0, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_gathered_tensors_are_joined_along_the_last_dimension(
    ranks: list[TorchCommunicator], together: Together, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    joined = together(lambda rank: rank.all_gather(random(rank, *shape).mul(9).to(dtype)))
    expected = torch.cat([random(rank, *shape).mul(9).to(dtype) for rank in ranks], dim=-1)
    for one in joined:
        assert torch.equal(one, expected)


def test_a_view_of_a_larger_tensor_can_be_gathered(
    ranks: list[TorchCommunicator], together: Together
) -> None:
    joined = together(lambda rank: rank.all_gather(random(rank, 4, 6)[:, 1:3]))
    assert torch.equal(joined[0], torch.cat([random(rank, 4, 6)[:, 1:3] for rank in ranks], dim=-1))


def test_a_closed_communicator_says_so_and_closes_again(tmp_path: Path) -> None:
    for rank in open_ranks(tmp_path, 2):
        rank.close()
        rank.close()
        with pytest.raises(EngineError, match="closed"):
            rank.all_reduce(torch.zeros(1))


def test_several_groups_live_in_one_process(tmp_path: Path) -> None:
    groups = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        groups.append(open_ranks(tmp_path / name, 2))
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda rank: rank.all_reduce(torch.ones(3)), [*groups[0], *groups[1]]))
    assert all(torch.equal(one, torch.full((3,), 2.0)) for one in sums)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(TorchCommunicator, "gloo", str(tmp_path / "ranks"), rank, 3, arrival_s=0.5)
            for rank in (0, 2)
        ]
        for one in waiting:
            with pytest.raises(EngineError, match=r"rank 1 did not arrive within 0\.5 s"):
                one.result()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="its folder does not exist"):
        TorchCommunicator("gloo", str(tmp_path / "none" / "ranks"), 0, 2)


def test_an_unknown_kind_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match=r"no collectives of kind 'carrier-pigeon'; it has: .*gloo"):
        TorchCommunicator("carrier-pigeon", str(tmp_path / "ranks"), 0, 2)


RANK = """
import sys
import torch
from core_engine.parallel.torch_communicator import TorchCommunicator

rank, path, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if kind == "acme":
    def create(store, rank, size, timeout):
        options = torch.distributed.ProcessGroupGloo._Options()
        options._devices = [torch.distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return torch.distributed.ProcessGroupGloo(store, rank, size, options)

    torch.distributed.Backend.register_backend("acme", create, devices=["cpu"])
with open("/proc/net/tcp") as table:
    before = set(line.split()[1] for line in table if line.split()[3] == "0A")
group = TorchCommunicator(kind, path, rank, 2)
with open("/proc/net/tcp") as table:
    new = set(line.split()[1] for line in table if line.split()[3] == "0A") - before
print(group.all_gather(torch.tensor([rank])).tolist(), group.all_reduce(torch.ones(2)).tolist())
print(sorted({address.partition(":")[0] for address in new}))
group.close()
group.close()
"""


@pytest.mark.parametrize("kind", ["gloo", "acme"])
def test_processes_meet_at_a_file(tmp_path: Path, kind: str) -> None:
    """A kind that a vendor registers serves as torch's own do."""
    command = [sys.executable, "-W", "error", "-c", RANK]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "ranks"), kind], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in running:
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "[0, 1] [2.0, 2.0]" in printed
        # Whatever listens, listens on the loopback address alone (127.0.0.1 as the table shows it).
        assert printed.splitlines()[-1] in ("['0100007F']", "[]")


def test_a_rank_whose_peer_ends_is_not_kept_waiting(tmp_path: Path) -> None:
    first, second = open_ranks(tmp_path, 2)
    second.close()
    with pytest.raises(RuntimeError):
        first.all_reduce(torch.ones(1))
    first.close()
