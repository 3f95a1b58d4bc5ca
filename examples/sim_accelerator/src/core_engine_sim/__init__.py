"""A simulated static-shape accelerator: the worked example of a core-engine backend.

The device is emulated on the host, but it keeps an accelerator's rules: memory of its own with a hard
limit, no access from the host, no work outside compiled programs, and one compilation for every new
shape. `core_engine_sim.backend` is the light module that the entry point names; everything else
imports torch and is loaded in the worker's process only.
"""
