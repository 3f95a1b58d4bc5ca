from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.errors import BackendLoadError
from core_engine.plugin import load_class


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_driver", "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("raise SystemExit('no driver')", "SystemExit: no driver"),
        ("raise BaseException('gone')", "BaseException: gone"),
        ("def __getattr__(name): raise SystemExit('lazily')", "SystemExit: lazily"),
    ],
)
def test_a_module_that_fails_in_any_way_is_a_load_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"loaded_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(BackendLoadError, match=reason) as caught:
        load_class(f"{name}:Worker")
    assert name in str(caught.value)


def test_an_interrupt_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded_interrupted.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_class("loaded_interrupted:Worker")
