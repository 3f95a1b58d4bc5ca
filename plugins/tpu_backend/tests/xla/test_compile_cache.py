"""Damaged files in the compile cache cost their compilation, and one warning (case 16)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROMPT = ["--prompt", "The capital", "--temperature", "0", "--max-tokens", "4"]
FEW_GRAPHS = [
    *("--max-num-seqs", "1", "--max-model-len", "32", "--max-num-batched-tokens", "16", "--dtype", "float32"),
    *("--kv-cache-bytes", "1M"),
    *("--backend-option", "token_buckets=16", "--backend-option", "recompilation=error"),
]


def generate(model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Answer in a process of its own: a process opens one cache, before it compiles anything."""
    program = "from core_engine.cli.main import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "generate",
        str(model),
        "--backend",
        "tpu",
        *PROMPT,
        *FEW_GRAPHS,
    ]
    return subprocess.run(
        [*command, "--backend-option", f"compile_cache={folder}"],
        env={**os.environ, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
    )


def test_case_16_damaged_files_are_compiled_anew_with_a_warning(tiny_model: Path, tmp_path: Path) -> None:
    first = generate(tiny_model, tmp_path)
    assert first.returncode == 0, first.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert "files could not be read" not in first.stderr
    for path in files:
        path.write_bytes(b"damaged")
    second = generate(tiny_model, tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout != ""
    assert (
        f"{len(files)} files could not be read; their graphs were compiled and written anew" in second.stderr
    )
    assert all(path.read_bytes() != b"damaged" for path in files)
