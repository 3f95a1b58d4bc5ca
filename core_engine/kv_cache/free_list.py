"""FreeList: block ids in the order in which they will be reused, with removal from the middle in O(1)."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["FreeList"]


class FreeList:
    """A doubly linked list over the ids 0 … ``num_ids`` − 1, held in two plain lists.

    An id stands in it at most once; the caller keeps to that. The head is reused first.
    """

    __slots__ = ("_length", "_next", "_previous", "_sentinel")

    def __init__(self, num_ids: int) -> None:
        # The sentinel stands before the head and behind the tail, so that no end is a special case.
        self._sentinel = num_ids
        self._next = [num_ids] * (num_ids + 1)
        self._previous = [num_ids] * (num_ids + 1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Walk from the head to the tail."""
        item = self._next[self._sentinel]
        while item != self._sentinel:
            yield item
            item = self._next[item]

    def append(self, item: int) -> None:
        """Put ``item`` at the tail."""
        tail = self._previous[self._sentinel]
        self._next[tail] = item
        self._previous[item] = tail
        self._next[item] = self._sentinel
        self._previous[self._sentinel] = item
        self._length += 1

    def remove(self, item: int) -> None:
        """Take ``item`` out, wherever it stands."""
        before, behind = self._previous[item], self._next[item]
        self._next[before] = behind
        self._previous[behind] = before
        self._length -= 1

    def pop(self) -> int:
        """Take the head out and return it; the list is not empty."""
        item = self._next[self._sentinel]
        self.remove(item)
        return item
