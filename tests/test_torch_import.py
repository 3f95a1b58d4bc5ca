"""Case 24: a broken ``torch.backends`` extension must not keep core from importing torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.testing.plugin_site import PluginSite

WITH_CORE = "from core_engine._torch_import import torch; print(torch.zeros(2).sum().item())"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> PluginSite:
    """An environment in which ``import torch`` alone fails."""
    site = PluginSite(tmp_path_factory.mktemp("site"))
    site.add_distribution(
        "torch-npx",
        {"torch.backends": {"npx": "torch_npx:autoload"}},
        {"torch_npx": "raise OSError('libnpx.so: cannot open')"},
    )
    assert site.run("import torch", whole_environment=True).returncode != 0
    return site


def test_case_24_core_imports_torch_without_the_broken_extension(site: PluginSite) -> None:
    assert site.run(WITH_CORE, whole_environment=True).stdout == "0.0\n"


def test_case_24_the_vendors_heavy_door_imports(site: PluginSite) -> None:
    code = "import core_engine.plugin.runtime; print('imported')"
    assert site.run(code, whole_environment=True).stdout == "imported\n"


@pytest.mark.real_model
@pytest.mark.parametrize("executor", ["in-process", "process"])
def test_case_24_cpu_still_generates(site: PluginSite, smollm2: Path, executor: str) -> None:
    code = f"""
    from core_engine import LLM, SamplingParams
    with LLM({str(smollm2)!r}, backend="cpu", executor={executor!r}, max_model_len=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=2)
        [output] = llm.generate(["The capital of France is"], params)
    print(output.outputs[0].text)
    """
    finished = site.run(code, whole_environment=True)
    assert "Paris" in finished.stdout, finished.stderr


def test_a_value_that_the_user_has_set_stays(site: PluginSite) -> None:
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    assert site.run(WITH_CORE, environment=environment, whole_environment=True).returncode != 0


def test_the_variable_is_taken_back_after_the_import(site: PluginSite) -> None:
    code = "import os, core_engine._torch_import; print('TORCH_DEVICE_BACKEND_AUTOLOAD' in os.environ)"
    assert site.run(code, whole_environment=True).stdout == "False\n"
