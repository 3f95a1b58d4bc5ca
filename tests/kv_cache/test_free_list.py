from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from core_engine.kv_cache.free_list import FreeList


def free_list(*items: int) -> FreeList:
    result = FreeList(8)
    for item in items:
        result.append(item)
    return result


def test_the_least_recently_freed_is_reused_first() -> None:
    items = free_list(3, 1, 2)

    assert [items.pop(), items.pop(), items.pop()] == [3, 1, 2]
    assert len(items) == 0


def test_an_id_can_be_taken_out_of_the_middle_and_from_both_ends() -> None:
    items = free_list(0, 1, 2, 3, 4)

    for item in (2, 0, 4):
        items.remove(item)

    assert list(items) == [1, 3]


def test_an_id_that_comes_back_stands_at_the_tail() -> None:
    items = free_list(0, 1, 2)
    items.remove(0)

    items.append(0)

    assert list(items) == [1, 2, 0]


@given(st.lists(st.integers(0, 7)))
def test_it_behaves_like_an_ordered_set(toggled: list[int]) -> None:
    items, model = FreeList(8), OrderedDict[int, None]()
    for item in toggled:
        if item in model:
            items.remove(item)
            del model[item]
        else:
            items.append(item)
            model[item] = None

        assert list(items) == list(model)
        assert len(items) == len(model)
