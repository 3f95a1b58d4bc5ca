from __future__ import annotations

from core_engine.kv_cache.hashing import ExtraKey, block_hash, chain_root, new_secret

SECRET = b"s" * 32


def test_a_hash_names_the_whole_prefix() -> None:
    root = chain_root(SECRET)
    one = block_hash(block_hash(root, b"aaaa"), b"bbbb")

    assert one == block_hash(block_hash(root, b"aaaa"), b"bbbb")
    assert one != block_hash(block_hash(root, b"cccc"), b"bbbb")
    assert one != block_hash(root, b"bbbb")


def test_case_11_same_adapter_name_with_other_content_gives_another_chain() -> None:
    loaded = ExtraKey("lora", b"digest of the weights")
    reloaded = ExtraKey("lora", b"digest of other weights")

    assert chain_root(SECRET, (loaded,)) != chain_root(SECRET, (reloaded,))


def test_case_11_an_adapter_and_a_salt_of_equal_bytes_are_distinct() -> None:
    assert chain_root(SECRET, (ExtraKey("lora", b"x"),)) != chain_root(SECRET, (ExtraKey("salt", b"x"),))


def test_extra_keys_do_not_run_into_each_other() -> None:
    split = (ExtraKey("salt", b"ab"), ExtraKey("salt", b"c"))
    moved = (ExtraKey("salt", b"a"), ExtraKey("salt", b"bc"))

    assert len({chain_root(SECRET), chain_root(SECRET, split), chain_root(SECRET, moved)}) == 3


def test_case_12_hashes_have_256_bits_and_cannot_be_predicted() -> None:
    assert len(block_hash(chain_root(SECRET), b"aaaa")) == 32
    assert len(new_secret()) == 32
    assert chain_root(new_secret()) != chain_root(new_secret())
