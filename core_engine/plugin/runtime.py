"""The heavy door for vendors: the bases and seams of the worker and the model runner; imports torch.

Import it only in the modules that `BackendSpec.create_worker` and `create_model_runner` load.
"""

import core_engine._torch_import  # noqa: F401 - torch's first import, before all that need it
from core_engine._ragged import Array, FloatArray, IntArray, Ragged
from core_engine.attention.base import AttentionBackend, AttentionNeeds, LayerParams
from core_engine.attention.dense import DenseKernel, TorchDenseKernel
from core_engine.attention.emulated import EmulatedChunkedPrefill
from core_engine.attention.reference import ReferencePagedAttention
from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.lora.messages import LoRAAdapter, LoRAInfo
from core_engine.models.layer_transforms import LayerTransform
from core_engine.parallel.communicator import Communicator
from core_engine.parallel.plan import TensorParallelPlan
from core_engine.parallel.torch_communicator import TorchCommunicator
from core_engine.sampling.base import Sampler
from core_engine.sampling.noise import PARITY as THREEFRY_PARITY
from core_engine.sampling.reference import ReferenceSampler
from core_engine.sampling.torch_noise import gumbel
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.worker.bucket_shapes import BucketShapes
from core_engine.worker.context import RunnerContext, WorkerContext
from core_engine.worker.device_io import DeviceIO, Download, ReadyDownload, upload_each
from core_engine.worker.model_runner import ModelRunnerBase
from core_engine.worker.output import FinishedStep, LogprobRows, ModelRunnerOutput, StepHandle
from core_engine.worker.program_builder import EagerPrograms, ProgramBuilder
from core_engine.worker.reports import (
    CaptureReport,
    DeviceReport,
    Health,
    LoadReport,
    MemoryBudget,
    MemoryInfo,
    ProfileReport,
    ProgramGroup,
)
from core_engine.worker.seams import Seams
from core_engine.worker.shape_policy import ExactShapes, SamplingKind, ShapePolicy, StepKind, StepShape
from core_engine.worker.step import DeviceStep, HostSampling, HostStep
from core_engine.worker.step_runner import StepModelRunner
from core_engine.worker.worker import WorkerBase

__all__ = [
    "THREEFRY_PARITY",
    "Array",
    "AttentionBackend",
    "AttentionNeeds",
    "BucketShapes",
    "CaptureReport",
    "Communicator",
    "DenseKernel",
    "DeviceIO",
    "DeviceReport",
    "DeviceStep",
    "Download",
    "EagerPrograms",
    "EmulatedChunkedPrefill",
    "ExactShapes",
    "FinishedStep",
    "FloatArray",
    "Health",
    "HostSampling",
    "HostStep",
    "IntArray",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheSpec",
    "LayerParams",
    "LayerTransform",
    "LoRAAdapter",
    "LoRAInfo",
    "LoadReport",
    "LogprobRows",
    "MemoryBudget",
    "MemoryInfo",
    "ModelRunnerApi",
    "ModelRunnerBase",
    "ModelRunnerOutput",
    "NewRequest",
    "ProfileReport",
    "ProgramBuilder",
    "ProgramGroup",
    "Ragged",
    "ReadyDownload",
    "ReferencePagedAttention",
    "ReferenceSampler",
    "RunnerContext",
    "Sampler",
    "SamplingKind",
    "SchedulerOutput",
    "Seams",
    "ShapePolicy",
    "StepHandle",
    "StepKind",
    "StepModelRunner",
    "StepShape",
    "TensorParallelPlan",
    "TorchCommunicator",
    "TorchDenseKernel",
    "WorkerApi",
    "WorkerBase",
    "WorkerContext",
    "gumbel",
    "upload_each",
]
