"""What CUDA_VISIBLE_DEVICES leaves of the machine's GPUs, read as the CUDA driver reads it. Pure."""

from __future__ import annotations

from core_engine_cuda.nvml import Gpu, NoGpus

__all__ = ["visible_gpus"]


def visible_gpus(gpus: tuple[Gpu, ...], text: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA program sees, in its order; ``text`` is None where nothing is set.

    An entry is an index or the beginning of a UUID ("GPU-…", "MIG-…"). As CUDA's programming guide says of
    its environment variables, the list ends before the first entry that names nothing, so "-1" hides
    all. An index counts GPUs in the order of the PCI bus; CUDA itself counts so with
    CUDA_DEVICE_ORDER=PCI_BUS_ID only, else from the fastest on, which differs where a machine has GPUs of
    several kinds. Of a GPU in MIG mode programs see its first instance, or those that are named.

    Raises `NoGpus` when none is left.
    """
    if text is None:
        return tuple(map(_first_instance, gpus))
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in text.split(",")):
        gpu = _named(gpus, entry)
        if gpu is None:
            if not chosen:
                raise NoGpus(_explain(gpus, text, entry))
            break
        if gpu in chosen:
            raise NoGpus(f"CUDA_VISIBLE_DEVICES={text} names {gpu.uuid} twice")
        chosen.append(gpu)
    return tuple(chosen)


def _named(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return _first_instance(gpus[int(entry)]) if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        candidates = [instance for gpu in gpus for instance in gpu.instances]
    elif entry.startswith("GPU-"):
        candidates = list(gpus)
    else:
        return None
    found = [gpu for gpu in candidates if gpu.uuid.startswith(entry)]
    return _first_instance(found[0]) if len(found) == 1 else None


def _first_instance(gpu: Gpu) -> Gpu:
    return gpu.instances[0] if gpu.instances else gpu


def _explain(gpus: tuple[Gpu, ...], text: str, entry: str) -> str:
    shown = f"CUDA_VISIBLE_DEVICES={text!r}"
    if entry in ("", "-1", "none", "NoDevFiles"):
        return f"{shown} hides every GPU"
    return f"{shown}: {entry!r} names none of the GPUs 0 to {len(gpus) - 1}, so none is visible"
