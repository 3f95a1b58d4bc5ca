"""What Triton needs to start a kernel is looked for before a model is loaded."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from core_engine_cuda import plugin
from core_engine_cuda.toolchain import c_compiler, toolchain_refusal
from fake_nvml import FakeNvml, GpuMachine, gpu


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def add_tool(folder: Path, name: str) -> str:
    tool = folder / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return str(tool)


def with_headers(patch: pytest.MonkeyPatch, folder: Path, *, there: bool) -> None:
    if there:
        (folder / "Python.h").touch()
    patch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(folder)})


def test_gcc_comes_before_clang_and_cc_before_both(tools: Path) -> None:
    variables = {"PATH": str(tools)}
    assert c_compiler(variables) is None
    clang = add_tool(tools, "clang")
    assert c_compiler(variables) == clang
    gcc = add_tool(tools, "gcc")
    assert c_compiler(variables) == gcc
    assert c_compiler({**variables, "CC": "clang"}) == clang
    assert c_compiler({**variables, "CC": "icc"}) is None


def test_a_missing_compiler_is_told_with_both_ways_out(tools: Path) -> None:
    refusal = toolchain_refusal({"PATH": str(tools)})
    assert refusal is not None
    assert "there is no C compiler on this machine: install gcc" in refusal
    assert "attention=reference" in refusal


def test_missing_headers_are_told(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_tool(tools, "gcc")
    with_headers(monkeypatch, tools, there=False)
    assert "python3-dev" in (toolchain_refusal({"PATH": str(tools)}) or "")
    with_headers(monkeypatch, tools, there=True)
    assert toolchain_refusal({"PATH": str(tools)}) is None


def test_doctor_tells_both(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_headers(monkeypatch, tools, there=True)
    machine = GpuMachine(tmp_path, FakeNvml(gpu(0)), PATH=str(tools))
    rows = dict(plugin.doctor_rows(machine))
    assert rows["C compiler"] == "not found; Triton needs one"
    assert rows["Python.h"] == str(tools)
