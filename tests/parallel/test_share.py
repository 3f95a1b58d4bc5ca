from __future__ import annotations

import torch

from core_engine.parallel.share import Share, divided_share, mark_share, share_of

WHOLE = torch.arange(48.0).view(6, 8)


def shares(dim: int, size: int, num_packed: int = 1) -> list[Share]:
    return [Share.of(WHOLE.shape, dim, rank=rank, size=size, num_packed=num_packed) for rank in range(size)]


def test_the_ranks_shares_are_the_whole() -> None:
    rows = [share.take(WHOLE, "cpu") for share in shares(0, 3)]
    assert torch.equal(torch.cat(rows), WHOLE)
    columns = [share.take(WHOLE, "cpu") for share in shares(1, 2)]
    assert torch.equal(torch.cat(columns, 1), WHOLE)


def test_packed_matrices_are_divided_each_by_itself() -> None:
    first, second = (share.take(WHOLE, "cpu") for share in shares(1, 2, num_packed=2))
    assert torch.equal(first, WHOLE[:, [0, 1, 4, 5]])
    assert torch.equal(second, WHOLE[:, [2, 3, 6, 7]])


def test_shares_are_of_one_length_and_end_in_zeros_where_the_whole_does_not_divide() -> None:
    parts = [share.take(WHOLE, "cpu") for share in shares(0, 4)]
    assert [share.shape for share in shares(0, 4)] == [(2, 8)] * 4
    assert torch.equal(torch.cat(parts[:3]), WHOLE)
    assert torch.equal(parts[3], torch.zeros(2, 8))


def test_a_share_is_a_copy_that_keeps_nothing_of_the_whole() -> None:
    part = shares(0, 2)[1].take(WHOLE, "cpu")
    assert part.untyped_storage().nbytes() == WHOLE.nbytes // 2
    part.zero_()
    assert WHOLE[5, 7] == 47.0


def test_the_divided_share_counts_elements_of_the_whole_and_what_is_tied_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 9, bias=False), torch.nn.Linear(28, 1, bias=False))
    assert divided_share(model) == 0.0
    share = Share.of(torch.Size((9, 8)), 0, rank=0, size=3)
    mark_share(model[0].weight, share)
    assert share_of(model[0].weight) == share
    model.append(torch.nn.Linear(8, 9, bias=False))
    model[2].weight = model[0].weight
    assert divided_share(model) == 0.72
