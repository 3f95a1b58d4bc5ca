"""What the installed torch and triton were built for, read without importing them."""

from __future__ import annotations

import re

from core_engine.plugin import Probe

__all__ = ["software_refusal"]

#: The line of ``torch/version.py`` that states the CUDA release of a build: a quoted number, or None.
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*(?:['\"](?P<version>\d+\.\d+)[^'\"]*['\"]|None)", re.MULTILINE)


def software_refusal(probe: Probe, driver_cuda: tuple[int, int] | None) -> str | None:
    """Return why the installed software cannot use a GPU, or None.

    ``driver_cuda`` is the newest CUDA that the driver serves, None where that is unknown. Programs built
    for a release of CUDA run on every driver that serves a release of the same major version or a later
    one (https://docs.nvidia.com/deploy/cuda-compatibility/).
    """
    torch = probe.distribution_version("torch")
    if torch is None:
        return "torch is not installed: pip install 'core-engine[cuda]'"
    match = _CUDA.search(probe.package_text("torch", "version.py") or "")
    built_for = match.group("version") if match else None
    if built_for is None and (match is not None or "+cpu" in torch):
        return f"torch {torch} is not built for CUDA: install a build for CUDA in its place (https://pytorch.org)"
    if probe.distribution_version("triton") is None:
        return "triton is not installed: pip install 'core-engine[cuda]'"
    if built_for is None or driver_cuda is None or driver_cuda[0] >= int(built_for.partition(".")[0]):
        return None
    return (
        f"torch {torch} is built for CUDA {built_for}, and the driver serves CUDA up to "
        f"{driver_cuda[0]}.{driver_cuda[1]}: update the driver, or install a torch built for "
        f"CUDA {driver_cuda[0]}"
    )
