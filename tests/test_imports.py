"""Imports point one way, light modules stay light, and the core names no device."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "core_engine"
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

#: From the top to the bottom; rooms of one line may import each other.
LAYERS = (
    ("cli", "server", "bench"),
    ("engine",),
    ("executor",),
    ("worker",),
    ("attention", "lora", "models", "sampling"),
)

#: Pure and torch-free: the names of shapes, which the seams of all layers speak in.
VOCABULARY = {"core_engine.worker.shape_policy"}

#: Distributions that core's dependencies name, by the module they bring, where the two differ.
MODULE_OF = {
    "huggingface-hub": "huggingface_hub",
    "importlib-metadata": "importlib_metadata",
    "pyzmq": "zmq",
}

#: Rooms that may use the packages of an extra.
EXTRAS_OF_ROOM = {"backends.cpu": ("cpu",), "server": ("serve",), "testing": ("testing",)}


def room(module: str) -> str:
    """The package of core_engine that a module belongs to: "worker", "backends.cpu" …"""
    parts = module.split(".")[1:]
    return "backends.cpu" if parts[:2] == ["backends", "cpu"] else parts[0] if parts else ""


@cache
def imports(module: str) -> tuple[str, ...]:
    """What a module of core imports; see `imports_of_file`."""
    return imports_of_file(MODULES[module])


def imports_of_file(path: Path) -> tuple[str, ...]:
    """All modules that a file imports when it runs, also inside functions; not those for type checkers."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.append(name if name in MODULES else str(node.module))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(found)


def declared(*extras: str) -> set[str]:
    """Modules of the distributions that pyproject.toml declares, those of some extras included."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(x for e in extras for x in project["optional-dependencies"][e])]
    names = [re.split(r"[^A-Za-z0-9_-]", line, maxsplit=1)[0] for line in lines]
    return {MODULE_OF.get(name, name) for name in names}


def light_modules() -> Iterator[str]:
    """Everything that may be imported without torch."""
    for module in MODULES:
        rooms = ("scheduler", "kv_cache", "hookspecs", "backends", "cli", "plugin", "")
        if room(module) in rooms or module == "core_engine.backends.cpu.plugin":
            yield module


HEAVY_DOORS = {"core_engine.plugin.runtime", "core_engine._torch_import", "core_engine.__main__"}


#: 0 is the top. Rooms that are not here (contracts, values, the torch-free rooms) stand beside the layers.
LEVEL = {name: index for index, names in enumerate(LAYERS) for name in names}


@pytest.mark.parametrize("module", [name for name in MODULES if room(name) in LEVEL])
def test_imports_point_downwards(module: str) -> None:
    own = LEVEL[room(module)]
    engines_own = [name for name in imports(module) if name in MODULES and name not in VOCABULARY]
    upwards = [name for name in engines_own if LEVEL.get(room(name), own) < own]
    assert not upwards, f"{module} imports {upwards}, which stand above it"


@pytest.mark.parametrize("module", MODULES)
def test_third_party_imports_are_declared(module: str) -> None:
    allowed = declared(*EXTRAS_OF_ROOM.get(room(module), ())) | set(sys.stdlib_module_names) | {"core_engine"}
    foreign = sorted({name.partition(".")[0] for name in imports(module)} - allowed)
    assert not foreign, f"{module} imports {foreign}, which pyproject.toml does not declare for it"


def test_light_modules_load_nothing_heavy() -> None:
    modules = [name for name in light_modules() if name not in HEAVY_DOORS]
    program = (
        "import sys\nfrom importlib import import_module\n"
        f"for name in {modules!r}:\n"
        "    import_module(name)\n"
        "    heavy = {'torch', 'transformers', 'numba', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} loads {sorted(heavy)}'\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", [name for name in MODULES if room(name) == "backends.cpu"])
def test_the_cpu_backend_uses_the_vendors_doors_only(module: str) -> None:
    doors = ("core_engine.plugin", "core_engine.plugin.runtime", "core_engine.backends.cpu")
    private = [
        name
        for name in imports(module)
        if name.startswith("core_engine") and not (name in doors or name.startswith(f"{doors[2]}."))
    ]
    assert not private, f"{module} imports {private}: what the CPU backend needs, a vendor needs too"


VENDOR_FILES = sorted([*REPOSITORY.glob("examples/*/src/**/*.py"), *REPOSITORY.glob("plugins/*/src/**/*.py")])


@pytest.mark.parametrize("path", VENDOR_FILES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_vendors_code_in_this_repository_uses_the_doors_only(path: Path) -> None:
    core = {name for name in imports_of_file(path) if name.split(".")[0] == "core_engine"}
    assert core <= {"core_engine.plugin", "core_engine.plugin.runtime", "core_engine.plugin.scheduling"}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_reaches_for_a_device(module: str) -> None:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr not in ("cuda", "accelerator", "xpu", "mps", "mtia"), f"line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_no_module_names_a_vendors_backend(module: str) -> None:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.fullmatch(r"(cuda|tpu|xla|rocm|xpu|mps|npu)(:\d+)?", node.value), (
                f"line {node.lineno}: {node.value!r}"
            )


PUBLIC_DOORS = {
    "core_engine": (
        "LLM",
        "CompletionOutput",
        "CoreEngineError",
        "LoRARequest",
        "Logprob",
        "RequestOutput",
        "SamplingParams",
        "__version__",
    ),
    "core_engine.plugin": (
        "API_VERSION",
        "DTYPE_BYTES",
        "MIN_MIXED_TOKENS",
        "AdapterError",
        "BackendInfo",
        "BackendLoadError",
        "BackendOption",
        "Capabilities",
        "CompiledGraph",
        "ConfigChange",
        "ConfigError",
        "ContractError",
        "CoreEngineError",
        "Detection",
        "DetectionState",
        "DeviceInfo",
        "DeviceLost",
        "DoesNotFit",
        "EngineConfig",
        "EngineError",
        "ModelConfig",
        "OutOfDeviceMemory",
        "Probe",
        "SizePool",
        "StepTimeout",
        "UnsupportedFeature",
        "UnsupportedModel",
        "WorkerPlan",
        "hookimpl",
        "load_class",
        "next_power_of_two",
        "power_of_two_buckets",
        "runner_hookimpl",
        "worker_hookimpl",
    ),
    "core_engine.plugin.scheduling": (
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
    ),
}


@pytest.mark.parametrize("door", PUBLIC_DOORS)
def test_a_public_door_promises_exactly_this(door: str) -> None:
    assert tuple(import_module(door).__all__) == PUBLIC_DOORS[door]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "core_engine.__main__"])
def test_every_name_in_all_exists_once(module: str) -> None:
    loaded = import_module(module)
    names = list(getattr(loaded, "__all__", ()))
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(loaded, name)] == []
