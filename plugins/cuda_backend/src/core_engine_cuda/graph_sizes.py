"""The numbers of requests for which decode steps are captured. Pure, torch-free."""

from __future__ import annotations

from itertools import pairwise

from core_engine.plugin import ConfigError

__all__ = ["captured_sizes"]

#: Numbers above each bound are this far apart, so that little is computed for padding and few are captured.
_STRIDES = ((0, 8), (256, 16), (512, 32))
_SMALLEST = (1, 2, 4)


def captured_sizes(listed: str | None, max_num_reqs: int) -> tuple[int, ...]:
    """Return the sizes in rising order; the last is ``max_num_reqs``, or smaller where a list says so.

    ``listed`` is the option ``graph_sizes``, "1,8,32"; None means 1, 2, 4, 8, 16, 24 and so on. Sizes above
    ``max_num_reqs`` are left out. Raises `ConfigError` for what is no list of rising numbers, or leaves none.
    """
    if listed is not None:
        chosen = tuple(size for size in _read(listed) if size <= max_num_reqs)
        if not chosen:
            raise ConfigError(
                f"graph_sizes {listed!r} leaves nothing to capture, because at most {max_num_reqs} requests "
                "run at once (max_num_seqs); enforce_eager is what turns graphs off"
            )
        return chosen
    sizes = [size for size in _SMALLEST if size < max_num_reqs]
    size = 8
    while size < max_num_reqs:
        sizes.append(size)
        size += max(stride for bound, stride in _STRIDES if size >= bound)
    return (*sizes, max_num_reqs)


def _read(listed: str) -> tuple[int, ...]:
    parts = [part.strip() for part in listed.split(",")]
    sizes = tuple(int(part) for part in parts if part.isdecimal() and part.isascii())
    if len(sizes) != len(parts) or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        raise ConfigError(
            f"graph_sizes must be numbers of at least 1 in rising order, such as 1,2,4,8; got {listed!r}"
        )
    return sizes
