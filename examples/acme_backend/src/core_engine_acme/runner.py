"""AcmeModelRunner: the engine's template with its simplest parts, and the one part that is Acme's."""

import torch

from core_engine.plugin.runtime import (
    DeviceIO,
    EagerPrograms,
    ExactShapes,
    MemoryInfo,
    ReadyDownload,
    ReferencePagedAttention,
    ReferenceSampler,
    Seams,
    StepModelRunner,
    upload_each,
)


class AcmeIO(DeviceIO):
    def __init__(self, device):
        self._device = device

    def upload(self, step):
        return upload_each(step, lambda array: torch.tensor(array, device=self._device))

    def download(self, tensors):
        return ReadyDownload({name: tensor.cpu().numpy() for name, tensor in tensors.items()})

    def synchronize(self):
        """Everything is done when a call returns; yours waits for the device here."""

    def memory_info(self):
        return MemoryInfo(total_bytes=None, free_bytes=None)

    def measure_peak(self, run):
        run()
        return 0  # unknown

    def allocate(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def place_model(self, model):
        return model.to(self._device)


class AcmeModelRunner(StepModelRunner):
    def build_seams(self):
        return Seams(
            shapes=ExactShapes(),
            io=AcmeIO(self.device),
            attention=ReferencePagedAttention(),
            programs=EagerPrograms(),
            sampler=ReferenceSampler(),
        )
