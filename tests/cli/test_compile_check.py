from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Shell
from tiny_distribution import BACKENDS, add_distribution

from core_engine.testing.plugin_site import backend_source

#: A backend whose device is elsewhere. Its compiler knows one target and two graphs.
COMPILING = backend_source(
    "far",
    state="unavailable",
    reason="no such device here",
    extra="""
    import os
    from core_engine.plugin import CompiledGraph, ConfigError, DoesNotFit
    from core_engine.plugin.runtime import KVCacheSpec, MemoryBudget

    MIB = 1 << 20

    @hookimpl
    def compile_target(target, options):
        if target == "far:none":
            return (DeviceInfo(index=0, name="Far One"),)
        if target not in ("far:1", "far:2"):
            raise ConfigError(f"target {target!r} is unknown; possible: far:1, far:2")
        return tuple(
            DeviceInfo(index=index, name="Far One", memory_bytes=64 * MIB)
            for index in range(int(target[-1]))
        )

    @hookimpl
    def compile_check(context, target, size_pool):
        weight_bytes = int(os.environ.get("FAR_WEIGHTS", 10 * MIB))
        if weight_bytes > 64 * MIB:
            raise DoesNotFit("the weights alone are too large")
        spec = KVCacheSpec(num_kv_heads=2, head_dim=16, head_dim_v=16, dtype="float32", page_bytes=4096)
        usable = int(64 * MIB * context.config.device_memory_utilization)
        budget = MemoryBudget(
            total_bytes=64 * MIB, weight_bytes=weight_bytes, activation_bytes=0,
            kv_cache_bytes=max(0, usable - weight_bytes), rule="what is left",
        )
        if "FAR_LAZY" in os.environ:
            return ()
        pool = size_pool({"layer": spec}, budget)
        kv = pool.num_blocks * 4096
        return (
            CompiledGraph(
                name="backbone", step="32 tokens", seconds=1.5, argument_bytes=weight_bytes + kv + 1000,
                output_bytes=kv + 500, alias_bytes=kv, temp_bytes=int(os.environ.get("FAR_TEMP", 2 * MIB)),
                code_bytes=100, num_custom_calls=4,
            ),
            CompiledGraph(name="sample", step="1 row", code_bytes=10, error=os.environ.get("FAR_ERROR")),
        )

    @hookimpl
    def plan_workers(devices):
        used = devices[:1] if "FAR_ONE" in os.environ else devices
        return (WorkerPlan(rank=0, device_indices=tuple(device.index for device in used)),)
    """,
)


@pytest.fixture
def check(
    shell: Shell, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Shell]:
    """Run ``compile-check`` on the tiny model's config, with the backends ``far`` and ``here`` installed."""
    site = tmp_path / "site"
    add_distribution(
        site,
        "core-engine-far",
        {BACKENDS: {"far": "far_plugin", "here": "here_plugin"}},
        modules={"far_plugin": COMPILING, "here_plugin": backend_source("here")},
    )
    monkeypatch.syspath_prepend(str(site))
    folder = tmp_path / "config-only"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())

    def run(*arguments: str) -> Shell:
        return shell("compile-check", str(folder), *arguments)

    return run


FAR = ("--backend", "far", "--target", "far:1", "--max-model-len", "64", "--dtype", "float32")


def test_a_model_that_compiles_and_fits_is_exit_code_0(check: Callable[..., Shell]) -> None:
    shell = check(*FAR)
    assert shell.code == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0].split() == ["graph", "step", "seconds", "arguments", "outputs", "aliased", "temp", "code",
                                "custom", "calls"]  # fmt: skip
    assert lines[1].split()[:4] == ["backbone", "32", "tokens", "1.5"]
    assert lines[1].split()[-1] == "4"
    assert "KV cache" in shell.out
    assert "what is left" in shell.out
    assert lines[-1] == "compiles and fits: 2 graphs for far:1, room for 194,944 KV tokens"


def test_the_result_says_how_many_of_the_targets_devices_are_used(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_ONE", "1")
    shell = check("--target", "far:2", *FAR[:2], *FAR[4:])
    assert shell.code == 0, shell.err
    assert "compiles and fits: 2 graphs for 1 of the 2 devices of far:2, room for" in shell.out


def test_the_sum_is_weights_cache_padding_programs_and_the_largest_graph(
    check: Callable[..., Shell],
) -> None:
    found = check(*FAR, "--json").json
    mib = 1 << 20
    assert found["weight_bytes"] == 10 * mib
    assert found["kv_cache_bytes"] == (int(64 * mib * 0.9) - 10 * mib) // 4096 * 4096
    assert found["padding_bytes"] == 1000
    assert found["code_bytes"] == 110
    # The cache among the outputs takes over the memory of the argument, so it counts once.
    assert found["working_bytes"] == 2 * mib + 500
    parts = ("weight_bytes", "kv_cache_bytes", "padding_bytes", "code_bytes", "working_bytes")
    assert found["needed_bytes"] == sum(found[part] for part in parts)
    assert found["memory_bytes"] == 64 * mib
    assert found["fits"] is True
    assert found["problems"] == []


def test_the_json_names_the_settings_and_every_graph(check: Callable[..., Shell]) -> None:
    found = check(*FAR, "--json").json
    assert (found["backend"], found["target"], found["dtype"]) == ("far", "far:1", "float32")
    assert found["devices"] == [{"name": "Far One", "memory_bytes": 64 << 20}]
    assert (found["max_model_len"], found["num_kv_tokens"]) == (64, 194_944)
    assert [graph["name"] for graph in found["graphs"]] == ["backbone", "sample"]
    assert found["graphs"][0]["alias_bytes"] == found["kv_cache_bytes"]
    assert found["graphs"][1]["error"] is None


def test_a_graph_that_does_not_compile_is_exit_code_1(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_ERROR", "the compiler gave up")
    shell = check(*FAR)
    assert shell.code == 1
    assert shell.out.splitlines()[2].split() == ["sample", "1", "row", "failed"]
    assert shell.out.splitlines()[-1] == "does not compile: sample, 1 row: the compiler gave up"


def test_too_little_memory_for_the_largest_graph_is_exit_code_1(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_TEMP", str(8 << 20))
    shell = check(*FAR)
    assert shell.code == 1
    assert "does not fit: a device has 64.0 MiB, of which 65.6 MiB are needed" in shell.out


def test_too_little_memory_for_the_weights_is_a_result_and_no_crash(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_WEIGHTS", str(60 << 20))
    shell = check(*FAR)
    assert shell.code == 1
    assert "weights  60.0 MiB" in shell.out
    assert "does not fit: max_model_len 64 needs" in shell.out
    found = check(*FAR, "--json").json
    assert found["graphs"] == []
    assert found["fits"] is False
    assert found["max_model_len"] is None


def test_a_backend_may_find_the_weights_alone_too_large(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_WEIGHTS", str(65 << 20))
    shell = check(*FAR)
    assert shell.code == 1
    assert shell.out.splitlines() == [
        "memory  64.0 MiB  of the device (Far One)",
        "",
        "does not fit: the weights alone are too large",
    ]
    assert check(*FAR, "--json").json["weight_bytes"] is None


def test_the_engine_is_settled_for_the_targets_devices(check: Callable[..., Shell]) -> None:
    found = check(*FAR, "--target", "far:2", "--json").json
    assert len(found["devices"]) == 2


def test_an_unknown_target_lists_the_possible_ones(check: Callable[..., Shell]) -> None:
    shell = check("--backend", "far", "--target", "near:1")
    assert shell.code == 2
    assert shell.err.splitlines() == [
        "core-engine: error: target 'near:1' is unknown; possible: far:1, far:2"
    ]
    assert shell.out == ""


def test_a_backend_must_size_its_cache_by_cores_rule(
    check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_LAZY", "1")
    shell = check(*FAR)
    assert shell.code == 2
    assert "compile_check must ask size_pool" in shell.err


def test_a_target_without_memory_breaks_the_contract(check: Callable[..., Shell]) -> None:
    shell = check("--backend", "far", "--target", "far:none")
    assert shell.code == 2
    assert "'compile_target' must return at least one device, each with memory_bytes" in shell.err


def test_a_backend_without_the_hooks_is_refused(check: Callable[..., Shell]) -> None:
    shell = check("--backend", "here", "--target", "here:1")
    assert shell.code == 2
    assert "backend 'here'" in shell.err
    assert "offers no compile check" in shell.err


def test_the_backend_must_be_named(check: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch) -> None:
    shell = check("--target", "far:1")
    assert shell.code == 2
    assert "name that backend with --backend or CORE_ENGINE_BACKEND" in shell.err
    monkeypatch.setenv("CORE_ENGINE_BACKEND", "far")
    assert check("--target", "far:1", "--max-model-len", "64").code == 0


def test_the_target_must_be_given(check: Callable[..., Shell]) -> None:
    shell = check("--backend", "far")
    assert shell.code == 2
    assert "--target" in shell.err


def test_a_backend_that_is_not_installed_is_refused_with_near_names(check: Callable[..., Shell]) -> None:
    shell = check("--backend", "fsr", "--target", "far:1")
    assert shell.code == 2
    assert "no installed backend is named 'fsr'" in shell.err
    assert "Did you mean 'far'?" in shell.err
