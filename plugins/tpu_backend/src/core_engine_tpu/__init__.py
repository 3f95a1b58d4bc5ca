"""core-engine on Google TPUs, through torch_xla.

`core_engine_tpu.plugin` is the light module that the entry point names; everything else imports torch
and is loaded in the worker's process only. `core_engine_tpu.runtime` is the one module that calls
torch_xla.
"""
