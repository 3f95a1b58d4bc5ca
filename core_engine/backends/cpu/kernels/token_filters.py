# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Numba kernels for min_p, top_k and top_p without sorting a row.

In the filters' order (larger logit first, then lower id) what they keep is always a beginning of the
row, so one (logit, id) pair, the last token kept, says it all. Only tokens near it are gathered and
sorted; chunks of a row whose largest logit is too small are never looked at.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from core_engine.backends.cpu.kernels.softmax import exp

#: Tokens in a chunk; a few kilobytes, which stay in the first-level cache.
CHUNK = 256
#: From this distance on, in units of the temperature, no noise (−2.82 to 16.64) lifts a token over the
#: one with the largest logit, so that no limit matters.
_NO_CHANCE = np.float32(20)
#: Halvings of the range in which top_p's bound lies; a band 20 / 2⁸ wide is left to sort.
_HALVINGS = 8
_FAST = {"nnan", "nsz"}
_INNER = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_f32 = np.float32


@njit(fastmath=_FAST, **_INNER)
def _weigh(row, start, stop, largest, temperature, weights):
    """Write exp((logit − largest) / temperature) of the tokens in [start, stop)."""
    for i in range(start, stop):
        weights[i] = exp((row[i] - largest) / temperature)


@njit(fastmath=_FAST | {"reassoc"}, **_INNER)
def _chunk_mass(row, start, stop, weights, bound):
    mass = _f32(0)
    for i in range(start, stop):
        mass += weights[i] if row[i] >= bound else _f32(0)
    return mass


@njit(**_INNER)
def _mass(row, chunk_max, weights, bound):
    """Return the mass of the tokens whose logit is at least ``bound``."""
    mass = 0.0
    for c in range(len(chunk_max)):
        if chunk_max[c] >= bound:
            mass += _chunk_mass(row, c * CHUNK, min((c + 1) * CHUNK, len(row)), weights, bound)
    return mass


@njit(**_INNER)
def _between(row, chunk_max, lower, upper):
    """Return the ids with lower ≤ logit < upper in the filters' order."""
    ids = np.empty(len(row), dtype=np.int32)
    keys = np.empty(len(row), dtype=np.float32)
    size = 0
    for c in range(len(chunk_max)):
        if chunk_max[c] >= lower:
            for i in range(c * CHUNK, min((c + 1) * CHUNK, len(row))):
                value = row[i]
                if lower <= value < upper:
                    ids[size] = i
                    keys[size] = -value
                    size += 1
    return ids[:size][np.argsort(keys[:size], kind="mergesort")]


@njit(**_INNER)
def _find_band(row, chunk_max, weights, largest, temperature, bound, target):
    """Return (lower, upper, mass from upper on) such that the mass reaches ``target`` between the two.

    Where it does so only below ``bound``, or so far below ``largest`` that it does not matter, that is
    the lower end.
    """
    near, far = _f32(0), _NO_CHANCE
    lower, upper, mass_above = max(bound, largest - far * temperature), _f32(np.inf), 0.0
    for _ in range(_HALVINGS):
        middle = (near + far) / _f32(2)
        edge = largest - middle * temperature
        mass = _mass(row, chunk_max, weights, edge) if edge > lower else target
        if mass >= target:
            far, lower = middle, max(lower, edge)
        else:
            near, upper, mass_above = middle, edge, mass
    return lower, upper, mass_above


@njit(**_INNER)
def _top(row, chunk_max, largest, temperature, bound, k):
    """Return the ids of the ``k`` largest logits in the filters' order, less those below ``bound``.

    Ids that cannot be drawn may be missing too.
    """
    if k <= len(chunk_max):
        # Each of the k largest chunks has a token that reaches the smallest of their largest logits.
        order = np.argsort(-chunk_max, kind="mergesort")
        lower = max(bound, chunk_max[order[k - 1]])
    else:
        ones = np.ones(len(row), dtype=np.float32)
        lower, _, _ = _find_band(row, chunk_max, ones, largest, temperature, bound, k)
    return _between(row, chunk_max, lower, _f32(np.inf))[:k]


@njit(**_INNER)
def _nucleus_end(ids, weights, mass_before, target):
    """Return the index in ``ids`` of the token with which the mass reaches ``target``, or of the last one."""
    mass = mass_before
    for n in range(len(ids)):
        mass += weights[ids[n]]
        if mass >= target:
            return n
    return len(ids) - 1


@njit(**_INNER)
def find_limit(row, chunk_max, largest, temperature, top_k, top_p, min_p):
    """Return logit and id of the last token that min_p, top_k and top_p keep, in this order.

    ``chunk_max`` holds the largest logit of each `CHUNK` tokens, ``largest`` that of the row.
    """
    size = len(row)
    bound = largest + temperature * _f32(np.log(min_p)) if min_p > 0 else _f32(-np.inf)
    weights = np.empty(size if top_p < 1 else 0, dtype=np.float32)
    if top_k < size:
        ids = _top(row, chunk_max, largest, temperature, bound, top_k)
        last = len(ids) - 1
        if top_p < 1:
            total = 0.0
            for token_id in ids:
                _weigh(row, token_id, token_id + 1, largest, temperature, weights)
                total += weights[token_id]
            last = _nucleus_end(ids, weights, 0.0, top_p * _f32(total))
        return row[ids[last]], ids[last]
    if top_p >= 1:
        return bound, size

    for c in range(len(chunk_max)):
        if chunk_max[c] >= bound:
            _weigh(row, c * CHUNK, min((c + 1) * CHUNK, size), largest, temperature, weights)
    # The product is rounded as the reference rounds it, so that equal tokens are cut alike.
    target = top_p * _f32(_mass(row, chunk_max, weights, bound))
    lower, upper, mass_above = _find_band(row, chunk_max, weights, largest, temperature, bound, target)
    ids = _between(row, chunk_max, lower, upper)
    last = _nucleus_end(ids, weights, mass_above, target)
    return row[ids[last]], ids[last]
