"""Kernels run in Triton's interpreter, on tensors of the CPU; Triton reads this when it is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
