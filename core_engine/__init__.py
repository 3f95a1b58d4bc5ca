"""core-engine: one LLM inference engine, many accelerators.

from core_engine import LLM, SamplingParams

with LLM("path/to/model") as llm:
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0.0)):
        print(output.outputs[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_engine.engine.outputs import CompletionOutput, Logprob, RequestOutput
from core_engine.errors import CoreEngineError
from core_engine.lora.request import LoRARequest
from core_engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from core_engine.engine.llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "CoreEngineError",
    "LoRARequest",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    # LLM imports torch; everything else here does not, and `import core_engine` must stay light.
    if name == "LLM":
        import core_engine._torch_import  # noqa: F401 - torch's first import, before all that need it
        from core_engine.engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
