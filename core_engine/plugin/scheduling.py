"""The light door for those who write a scheduler or a scheduling policy; imports no torch.

A policy says who runs first and who gives way::

    from core_engine.plugin.scheduling import OrderKey, Policy

    CORE_ENGINE_API = "0.1"

    class NewestFirst(Policy):
        def order(self, request, sequence):
            return (0, -request.arrival_s, sequence)

It is used as ``--scheduling-policy my_module:NewestFirst``, or by a name that its distribution gives it
in the entry-point group ``core_engine.scheduling_policies``. A scheduler, most often a `QueueScheduler`
with a ``plan_step`` of its own, is used as ``--scheduler my_module:MyScheduler`` or by a name in
``core_engine.schedulers``. The engine checks every step that it builds.

Settings, capabilities and errors stand in `core_engine.plugin`.
"""

from core_engine.engine.messages import CoreOutput, CoreRequest
from core_engine.errors import InvalidRequest
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.scheduler.admission import Admitted
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.contract import Scheduler, SchedulerStats
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.scheduler.policies import (
    FirstComeFirstServed,
    OrderKey,
    Policy,
    PriorityFirst,
    ShortestPromptFirst,
)
from core_engine.scheduler.request import RequestState, RequestStatus
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.step_budget import StepBudget
from core_engine.scheduler.step_rows import StepRows
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.worker.output import ModelRunnerOutput

__all__ = [
    "Admitted",
    "CoreOutput",
    "CoreRequest",
    "FirstComeFirstServed",
    "InvalidRequest",
    "KVCacheManager",
    "ModelRunnerOutput",
    "NewRequest",
    "OrderKey",
    "Policy",
    "PriorityFirst",
    "QueueScheduler",
    "RequestState",
    "RequestStatus",
    "Scheduler",
    "SchedulerLimits",
    "SchedulerOutput",
    "SchedulerStats",
    "ShortestPromptFirst",
    "SimpleScheduler",
    "StepBudget",
    "StepRows",
    "UnifiedScheduler",
]
