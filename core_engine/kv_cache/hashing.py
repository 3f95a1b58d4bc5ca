"""Names of cached blocks: sha256 chains over token ids.

A block's hash covers its own tokens and the hash of the block before it, so it names the whole prefix.
The first link is a root that covers a secret of this process and the request's extra keys: whatever
else than tokens changes keys and values (a LoRA adapter) or must keep prefixes apart (a tenant's salt).
The secret keeps hashes from being predicted; 256 bits keep two prefixes from sharing one.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256

__all__ = ["ExtraKey", "block_hash", "chain_root", "new_secret"]


@dataclass(frozen=True, slots=True)
class ExtraKey:
    """One reason why equal tokens may not share blocks.

    ``kind`` says what ``value`` is, so that a salt never equals an adapter of the same bytes. For a
    LoRA adapter the value is a digest of its content, not its name or path.
    """

    kind: str
    value: bytes


def new_secret() -> bytes:
    """Draw 32 unpredictable bytes for `chain_root`."""
    return secrets.token_bytes(32)


def chain_root(secret: bytes, extra_keys: tuple[ExtraKey, ...] = ()) -> bytes:
    """Return the link before a request's first block. The order of ``extra_keys`` counts."""
    digest = sha256(secret)
    for key in extra_keys:
        for part in (key.kind.encode(), key.value):
            # The length in front keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def block_hash(parent: bytes, token_bytes: bytes) -> bytes:
    """Return the hash of a full block: ``token_bytes`` are its ids as int32, ``parent`` the link before."""
    return sha256(parent + token_bytes).digest()
