"""The tensor form of `core_engine.sampling.noise`, bit-equal in its integer part on every device.

It uses int32 addition, xor, and, or, and shifts by a tensor: what is exact on every backend known so far.
XLA on TPUs has no unsigned 32-bit tensors, shifts by a Python number promote or truncate there, and
64-bit multiplication is wrong.
"""

from __future__ import annotations

import torch

from core_engine.sampling.noise import PARITY, ROTATIONS

__all__ = ["gumbel", "noise_bits"]


def noise_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return 24 random bits per token, int32 ``[R, V]``: the top bits of a token's first output word.

    ``keys`` is int32 ``[R, 2]`` and ``token_ids`` int32 ``[R, V]`` or ``[1, V]``.
    """

    def constant(value: int) -> torch.Tensor:
        return torch.full((), value, dtype=torch.int32, device=keys.device)

    def shift_right(x: torch.Tensor, distance: int) -> torch.Tensor:
        # The shift copies the sign; the mask makes it a logical one.
        mask = constant((1 << (32 - distance)) - 1)
        return torch.bitwise_and(torch.bitwise_right_shift(x, constant(distance)), mask)

    key0, key1 = keys[:, :1], keys[:, 1:]
    words = (key0, key1, key0 ^ key1 ^ constant(PARITY))
    x0, x1 = token_ids + key0, key1.expand(keys.shape[0], token_ids.shape[1])
    for group in range(5):
        for distance in ROTATIONS[4 * (group % 2) : 4 * (group % 2) + 4]:
            x0 = x0 + x1
            left = torch.bitwise_left_shift(x1, constant(distance))
            x1 = (left | shift_right(x1, 32 - distance)) ^ x0
        x0 = x0 + words[(group + 1) % 3]
        x1 = x1 + (words[(group + 2) % 3] + constant(group + 1))
    return shift_right(x0, 8)


def gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return Gumbel(0, 1) noise, float32 ``[R, V]``; arguments as `noise_bits`.

    With u = max(bits, 1) · 2⁻²⁴ the noise is −log(−log(u)); it lies between −2.82 and 16.64.
    """
    uniform = torch.clamp(noise_bits(keys, token_ids), min=1).to(torch.float32) * 2.0**-24
    return -torch.log(-torch.log(uniform))
