"""DraftRows: the rows of the sampler when requests verify drafts, and what they accept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_engine._ragged import IntArray, Ragged

__all__ = ["DraftRows"]


@dataclass(frozen=True, slots=True)
class DraftRows:
    """One row for each request of a step, and one more for each of its drafts, in order of position.

    A row samples after a known token or after a draft. What it sampled counts if all drafts before it
    were sampled as well: then it is what the request alone would have sampled there, since noise depends
    on the position and not on the step.
    """

    drafts: Ragged
    #: int32 ``[num_rows]``: the request of each row, as an index into the step's columns.
    requests: IntArray
    #: int32 ``[num_rows]``: how many drafts of its request stand before the row's token.
    nth: IntArray

    @classmethod
    def of(cls, drafts: Ragged) -> DraftRows:
        """Lay out the rows; ``drafts`` has a row for each request of the step."""
        counts = np.diff(drafts.offsets) + 1
        requests = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        first = np.cumsum(counts, dtype=np.int32) - counts
        return cls(drafts, requests, np.arange(len(requests), dtype=np.int32) - first[requests])

    def __len__(self) -> int:
        return len(self.requests)

    def last_tokens(self, query_start: IntArray) -> IntArray:
        """Return the token of the step after which each row samples; ``query_start`` as in `HostStep`."""
        num_drafts = np.diff(self.drafts.offsets)
        last: IntArray = (query_start[1 : len(num_drafts) + 1] - 1 - num_drafts)[self.requests] + self.nth
        return last

    def accepted(self, token_ids: IntArray, samples: IntArray) -> IntArray:
        """Return the rows whose token counts, in order, of the requests in ``samples``.

        ``token_ids`` is what each row sampled, int32 ``[num_rows]``.
        """
        after_draft = np.flatnonzero(self.nth)
        missed = np.zeros(len(self), dtype=np.int32)
        missed[after_draft] = token_ids[after_draft - 1] != self.drafts.values
        missed = np.cumsum(missed, dtype=np.int32)
        # A row counts while nothing was missed since its request's first.
        counts = missed == missed[self.nth == 0][self.requests]
        is_sampling = np.zeros(len(self.drafts), dtype=np.bool_)
        is_sampling[samples] = True
        accepted: IntArray = np.flatnonzero(counts & is_sampling[self.requests]).astype(np.int32)
        return accepted
