"""core-engine on NVIDIA GPUs.

`core_engine_cuda.plugin` is the light module that the entry point names; everything else imports torch
and is loaded in the worker's process only. `core_engine_cuda.runtime` is the one module that calls
``torch.cuda``.
"""
