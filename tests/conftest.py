"""What all tests share: the real model, as a folder of safetensors and as a GGUF file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from real_model_files import smollm2_folder, smollm2_gguf_file
from tiny_chat_model import make_tiny_chat_model
from tiny_distribution import BACKENDS, add_distribution, show_distribution

REPOSITORY = Path(__file__).resolve().parents[1]

# Set before any module reads them. No test may ask a model hub; tiny models gain nothing from threads, and
# on a busy machine the threads of one step wait for each other's time slices. Numba's threads are OpenMP's.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

# Programs in a shell's background ignore the interrupt that tests send, and so would what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16 safetensors (mark the test ``real_model``)."""
    return smollm2_folder()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random chat model with a byte-level tokenizer."""
    return make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session")
def sim_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes the simulated accelerator an installed backend once it is on the import path."""
    site = tmp_path_factory.mktemp("sim-site")
    add_distribution(site, "core-engine-sim", {BACKENDS: {"sim": "core_engine_sim.backend"}}, version="0.1.0")
    return site


@pytest.fixture
def sim_installed(sim_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the simulated accelerator an installed backend, here and in child processes."""
    show_distribution(sim_site, REPOSITORY / "examples" / "sim_accelerator" / "src", monkeypatch)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The same model as one 4-bit GGUF file (mark the test ``real_model``)."""
    return smollm2_gguf_file()
