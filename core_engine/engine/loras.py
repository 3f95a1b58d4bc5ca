"""AdapterRegistry: from the adapters that users name to the numbers that the runner knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from core_engine.errors import InvalidRequest, UnsupportedFeature
from core_engine.kv_cache.hashing import ExtraKey
from core_engine.lora.adapter import AdapterFiles, FileStamp, read_stamp
from core_engine.lora.messages import LoRAAdapter, LoRAInfo
from core_engine.lora.request import LoRARequest

if TYPE_CHECKING:
    from core_engine.hookspecs.worker import WorkerApi

__all__ = ["AdapterRegistry", "LoRAChoice", "extra_keys", "loras_for"]

#: What a call takes: one adapter for all prompts, or one (or None) for each.
LoRAChoice = LoRARequest | Sequence[LoRARequest | None] | None


@dataclass(frozen=True, slots=True)
class _Named:
    """What a name stands for now."""

    path: str
    stamp: FileStamp | None
    digest: str


class AdapterRegistry:
    """Numbers adapters by content and loads each into the worker at its first use.

    Equal contents have one number, whatever their names and paths. When the files behind a name
    change, the name gets another number; requests under way go on with the old content, which is
    forgotten once the last of them has ended.
    """

    def __init__(self, worker: WorkerApi, max_loras: int, is_used: Callable[[int], bool]) -> None:
        self._worker = worker
        self._max_loras = max_loras
        self._is_used = is_used
        self._names: dict[str, _Named] = {}
        self._ids: dict[str, int] = {}
        self._next_id = 1

    def load(self, request: LoRARequest) -> tuple[int, str]:
        """Return the number and the digest of an adapter, loaded if it is not yet.

        Raises `UnsupportedFeature` while LoRA is off, and `AdapterError`, after which nothing has changed.
        """
        self._check_on()
        known, stamp = self._names.get(request.name), read_stamp(request.path)
        if known is not None and stamp is not None and (known.path, known.stamp) == (request.path, stamp):
            return self._ids[known.digest], known.digest
        files = AdapterFiles.read(request.path)
        files.config()  # refused here, before the worker is asked
        digest = files.digest()
        lora_id = self._ids.get(digest)
        if lora_id is None:
            lora_id = self._next_id
            self._worker.add_lora(
                LoRAAdapter(lora_id=lora_id, name=request.name, path=request.path, digest=digest)
            )
            self._next_id += 1
            self._ids[digest] = lora_id
        self._names[request.name] = _Named(request.path, stamp, digest)
        return lora_id, digest

    def unload(self, name: str) -> None:
        """Forget the adapter of that name.

        Raises `InvalidRequest` for an unknown name, and while unfinished requests use the adapter under it.
        """
        self._check_on()
        known = self._names.get(name)
        if known is None:
            raise InvalidRequest(
                f"no adapter is called {name!r}; loaded are {', '.join(self._names) or 'none'}", "lora"
            )
        others = [other for other, named in self._names.items() if named.digest == known.digest]
        if len(others) == 1 and self._is_used(self._ids[known.digest]):
            raise InvalidRequest(
                f"adapter {name!r} is in use by unfinished requests: wait for them, or abort them", "lora"
            )
        del self._names[name]
        self.sweep()

    def infos(self) -> list[LoRAInfo]:
        """List the adapters that have a name, each name once."""
        self._check_on()
        held = {info.lora_id: info for info in self._worker.list_loras()}
        return [replace(held[self._ids[named.digest]], name=name) for name, named in self._names.items()]

    def sweep(self) -> None:
        """Forget contents that no name stands for any more and no unfinished request uses."""
        named = {known.digest for known in self._names.values()}
        for digest, lora_id in list(self._ids.items()):
            if digest not in named and not self._is_used(lora_id):
                self._worker.remove_lora(lora_id)
                del self._ids[digest]

    def _check_on(self) -> None:
        if self._max_loras == 0:
            raise UnsupportedFeature("LoRA is off: start the engine with max_loras of at least 1")


def extra_keys(digest: str | None, cache_salt: str | None) -> tuple[ExtraKey, ...]:
    """Return what, besides its tokens, names a request's cached blocks.

    A salt and an adapter of the same bytes are distinct: the kind of a key is part of the name. Raises
    `InvalidRequest` for a salt that is no text.
    """
    if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
        raise InvalidRequest(f"cache_salt must be a text, got {cache_salt!r}", "cache_salt")
    keys = []
    if digest is not None:
        keys.append(ExtraKey("lora", bytes.fromhex(digest)))
    if cache_salt is not None:
        keys.append(ExtraKey("salt", cache_salt.encode("utf-8", "surrogatepass")))
    return tuple(keys)


def loras_for(count: int, lora: Any) -> list[LoRARequest | None]:
    """Return one entry per prompt. Raises `InvalidRequest` for another type or number."""
    if lora is None or isinstance(lora, LoRARequest):
        return [lora] * count
    if not isinstance(lora, list | tuple) or not all(isinstance(one, LoRARequest | None) for one in lora):
        raise InvalidRequest("lora must be a LoRARequest, or a list of one or None for each prompt", "lora")
    if len(lora) != count:
        raise InvalidRequest(f"{len(lora)} entries in lora for {count} prompts; give one or as many", "lora")
    return list(lora)
