from __future__ import annotations

import pytest

from core_engine.backends.backend import Backend
from core_engine.backends.selection import select_backend
from core_engine.config import EngineConfig
from core_engine.errors import (
    BackendLoadError,
    ConfigError,
    ContractError,
    UnsupportedFeature,
)
from core_engine.plugin import Capabilities, DeviceInfo, Probe, WorkerPlan
from core_engine.sampling.params import SamplingParams
from core_engine.testing.fake_context import fake_model_config
from core_engine.testing.plugin_site import PluginSite, backend_source

CONFIG = EngineConfig(model="m")
MODEL = fake_model_config()
DEVICES = (DeviceInfo(index=0, name="zero"),)


def backend_with(site: PluginSite, extra: str = "") -> Backend:
    site.add_backend("acme", backend_source("acme", extra=extra))
    return select_backend("acme", {}).backend


def test_hooks_left_out_mean_their_documented_default(site: PluginSite) -> None:
    backend = backend_with(site)
    assert backend.option_schema() == ()
    assert backend.check_config(CONFIG, MODEL, DEVICES) == (CONFIG, ())
    assert backend.doctor_rows(Probe({})) == ()
    backend.validate_request(SamplingParams(), 1, CONFIG)


def test_values_of_required_hooks_come_through_typed(site: PluginSite) -> None:
    backend = backend_with(site)
    assert backend.capabilities(DEVICES, CONFIG, MODEL) == Capabilities()
    assert backend.plan_workers(CONFIG, DEVICES) == (WorkerPlan(rank=0, device_indices=(0,)),)


def test_an_exception_of_a_hook_is_a_load_error_that_names_plugin_and_hook(site: PluginSite) -> None:
    backend = backend_with(site, "@hookimpl\ndef capabilities():\n    raise KeyError('sm')\n")
    with pytest.raises(
        BackendLoadError, match=r"'acme' of core-engine-acme 1\.0 .*'capabilities' raised KeyError"
    ):
        backend.capabilities(DEVICES, CONFIG, MODEL)


def test_an_error_of_cores_own_passes_unchanged(site: PluginSite) -> None:
    extra = """
    from core_engine.plugin import UnsupportedFeature
    @hookimpl
    def plan_workers(config):
        raise UnsupportedFeature("one device only")
    """
    with pytest.raises(UnsupportedFeature, match=r"^one device only$"):
        backend_with(site, extra).plan_workers(CONFIG, DEVICES)


def test_a_wrong_return_type_names_plugin_hook_and_type(site: PluginSite) -> None:
    backend = backend_with(site, "@hookimpl\ndef capabilities():\n    return {'lora': True}\n")
    with pytest.raises(ContractError, match=r"'acme'.*'capabilities' must return Capabilities.*type dict"):
        backend.capabilities(DEVICES, CONFIG, MODEL)


@pytest.mark.parametrize("hook", ["option_schema", "check_config", "doctor_rows"])
@pytest.mark.parametrize("value", ["[]", "None", "('text',)"])
def test_hooks_of_tuples_are_checked_item_by_item(site: PluginSite, hook: str, value: str) -> None:
    arguments = {"option_schema": (), "check_config": (CONFIG, MODEL, DEVICES), "doctor_rows": (Probe({}),)}
    extra = f"@hookimpl\ndef {hook}():\n    return {value}\n"
    with pytest.raises(ContractError, match=hook):
        getattr(backend_with(site, extra), hook)(*arguments[hook])


@pytest.mark.parametrize(
    "options",
    [
        "raise SystemExit(3)",
        "return (BackendOption(name='a', help='', type='complex'),)",
        "return (BackendOption(name='a', help='', type='int', default='few'),)",
    ],
)
def test_a_backend_whose_options_are_unusable_is_not_available(site: PluginSite, options: str) -> None:
    head = "from core_engine.plugin import BackendOption\n@hookimpl\ndef option_schema():\n    "
    site.add_backend("acme", backend_source("acme", extra=f"{head}{options}\n"))
    selection = select_backend(environment={})
    assert selection.backend.name == "cpu"
    [other] = selection.passed_over
    assert (other.name, other.state.failed) == ("acme", True)


def test_facts_are_told_once(site: PluginSite) -> None:
    rows = "(('driver', '1'), ('driver', '2'))"
    backend = backend_with(site, f"@hookimpl\ndef doctor_rows():\n    return {rows}\n")
    with pytest.raises(ContractError, match="each fact once"):
        backend.doctor_rows(Probe({}))


@pytest.mark.parametrize(
    ("detection", "problem"),
    [
        ("reason='\\ud800'", "Detection.reason as Unicode text"),
        (
            "reason='', devices=(DeviceInfo(index=10**30, name=''),)",
            r"Detection.devices\[0\].index within 64 bits",
        ),
        ("reason='', devices=(DeviceInfo(index=0, name='', memory_bytes=10**5000),)", "within 64 bits"),
    ],
)
def test_values_that_no_message_could_carry_break_the_contract(
    site: PluginSite, detection: str, problem: str
) -> None:
    detect = f"@hookimpl\ndef detect():\n    return Detection(state=DetectionState.AVAILABLE, {detection})\n"
    site.add_backend("acme", backend_source("acme", extra=detect))
    with pytest.raises(ContractError, match=problem):
        select_backend("acme", {})


@pytest.mark.parametrize("plans", ["()", "(WorkerPlan(rank=1, device_indices=(0,)),)"])
def test_ranks_count_from_zero(site: PluginSite, plans: str) -> None:
    backend = backend_with(site, f"@hookimpl\ndef plan_workers():\n    return {plans}\n")
    with pytest.raises(ContractError, match="ranks counted from 0"):
        backend.plan_workers(CONFIG, DEVICES)


def test_a_plan_may_only_name_detected_devices(site: PluginSite) -> None:
    extra = "@hookimpl\ndef plan_workers():\n    return (WorkerPlan(rank=0, device_indices=(0, 7)),)\n"
    with pytest.raises(ContractError, match=r"rank 0 the devices \[7\]"):
        backend_with(site, extra).plan_workers(CONFIG, DEVICES)


def test_case_25_changes_are_applied_in_order_with_a_line_each(site: PluginSite) -> None:
    extra = """
    from core_engine.plugin import ConfigChange
    @hookimpl
    def check_config(config, model, devices):
        return (
            ConfigChange(field="max_num_seqs", value=8, reason="eight rows"),
            ConfigChange(field="block_size", value=config.block_size, reason="no change"),
            ConfigChange(field="dtype", value="float32", reason="no bfloat16"),
        )
    """
    config, changes = backend_with(site, extra).check_config(CONFIG, MODEL, DEVICES)
    assert (config.max_num_seqs, config.dtype) == (8, "float32")
    assert tuple(map(str, changes)) == (
        "max_num_seqs: 64 → 8 (backend 'acme': eight rows)",
        "dtype: auto → float32 (backend 'acme': no bfloat16)",
    )
    assert CONFIG.max_num_seqs == 64


def test_case_25_an_impossible_configuration_is_the_backends_own_error(site: PluginSite) -> None:
    extra = """
    from core_engine.plugin import ConfigError
    @hookimpl
    def check_config(config):
        raise ConfigError("block_size must be 128")
    """
    with pytest.raises(ConfigError, match=r"^block_size must be 128$"):
        backend_with(site, extra).check_config(CONFIG, MODEL, DEVICES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("max_num_seq", 8, "Did you mean 'max_num_seqs'"), ("max_num_seqs", "8", "Expected `int`")],
)
def test_a_change_that_does_not_fit_the_configuration_breaks_the_contract(
    site: PluginSite, field: str, value: object, message: str
) -> None:
    extra = f"""
    from core_engine.plugin import ConfigChange
    @hookimpl
    def check_config():
        return (ConfigChange(field={field!r}, value={value!r}, reason=""),)
    """
    with pytest.raises(ContractError, match=message):
        backend_with(site, extra).check_config(CONFIG, MODEL, DEVICES)


def test_a_request_that_the_backend_refuses(site: PluginSite) -> None:
    extra = """
    from core_engine.plugin import UnsupportedFeature
    @hookimpl
    def validate_request(params, num_prompt_tokens):
        if num_prompt_tokens > 4:
            raise UnsupportedFeature("prompts of at most 4 tokens")
        return True
    """
    backend = backend_with(site, extra)
    backend.validate_request(SamplingParams(), 4, CONFIG)
    with pytest.raises(UnsupportedFeature):
        backend.validate_request(SamplingParams(), 5, CONFIG)


def test_case_29_a_worker_class_that_does_not_exist_is_named(site: PluginSite) -> None:
    with pytest.raises(BackendLoadError, match=r"no_such_package\.worker:Worker"):
        backend_with(site).create_worker(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("hook", ["create_worker", "create_model_runner"])
def test_worker_and_runner_must_implement_their_api(site: PluginSite, hook: str) -> None:
    backend = backend_with(site, f"@hookimpl\ndef {hook}(context):\n    return object()\n")
    with pytest.raises(ContractError, match=f"'{hook}' must return"):
        getattr(backend, hook)(None)


def test_torch_extensions_are_not_loaded_while_the_device_software_is_imported(
    site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    extra = """
    import os
    @hookimpl
    def create_worker(context):
        raise RuntimeError(f"autoload={os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']}")
    """
    with pytest.raises(BackendLoadError, match="autoload=0"):
        backend_with(site, extra).create_worker(None)  # type: ignore[arg-type]


def test_every_hook_treats_what_is_no_exception_like_one(site: PluginSite) -> None:
    backend = backend_with(site, "@hookimpl\ndef doctor_rows():\n    raise BaseException('driver')\n")
    with pytest.raises(BackendLoadError, match="'doctor_rows' raised BaseException: driver"):
        backend.doctor_rows(Probe({}))


def test_an_interrupt_in_a_hook_is_the_users_own(site: PluginSite) -> None:
    backend = backend_with(site, "@hookimpl\ndef doctor_rows():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        backend.doctor_rows(Probe({}))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (
            "Capabilities(dtypes='float32')",
            r"Capabilities\.dtypes of type tuple\[str, \.\.\.\], got 'float32'",
        ),
        ("Capabilities(block_sizes=(16, '32'))", r"Capabilities\.block_sizes\[1\] of type int"),
        ("Capabilities(lora='no')", r"Capabilities\.lora of type bool"),
        ("Capabilities(max_num_seqs=8.0)", r"Capabilities\.max_num_seqs of type int \| None"),
    ],
)
def test_every_field_of_the_capabilities_is_checked(site: PluginSite, value: str, field: str) -> None:
    backend = backend_with(site, f"@hookimpl\ndef capabilities():\n    return {value}\n")
    with pytest.raises(ContractError, match=rf"'acme' .*'capabilities' must return {field}"):
        backend.capabilities(DEVICES, CONFIG, MODEL)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("device_indices=[0]", r"WorkerPlan\.device_indices of type tuple"),
        ("device_indices=('0',)", r"WorkerPlan\.device_indices\[0\] of type int"),
        ("environment={'VISIBLE': 0}", r"WorkerPlan\.environment\['VISIBLE'\] of type str"),
        ("rank=False", r"WorkerPlan\.rank of type int"),
    ],
)
def test_every_field_of_a_plan_is_checked(site: PluginSite, fields: str, message: str) -> None:
    extra = f"""
    @hookimpl
    def plan_workers():
        return (WorkerPlan(**dict(dict(rank=0, device_indices=(0,)), {fields})),)
    """
    with pytest.raises(ContractError, match=f"'plan_workers' must return {message}"):
        backend_with(site, extra).plan_workers(CONFIG, DEVICES)


@pytest.mark.parametrize("fields", ["name=['a']", "help=None", "type=int", "choices='ab'"])
def test_every_field_of_an_option_is_checked(site: PluginSite, fields: str) -> None:
    extra = f"""
    from core_engine.plugin import BackendOption
    @hookimpl
    def option_schema():
        return (BackendOption(**dict(dict(name="a", help=""), {fields})),)
    """
    with pytest.raises(
        ContractError, match=rf"'option_schema' must return BackendOption\.{fields.split('=')[0]}"
    ):
        backend_with(site, extra).option_schema()


def test_mappings_of_any_kind_come_through_as_plain_ones(site: PluginSite) -> None:
    extra = """
    from types import MappingProxyType
    @hookimpl
    def plan_workers():
        return (WorkerPlan(rank=0, device_indices=(0,), environment=MappingProxyType({"A": "1"})),)
    """
    (plan,) = backend_with(site, extra).plan_workers(CONFIG, DEVICES)
    assert type(plan.environment) is dict


def test_what_a_hook_prints_goes_to_stderr(site: PluginSite, capsys: pytest.CaptureFixture[str]) -> None:
    extra = """
    print("import")
    @hookimpl
    def doctor_rows():
        print("rows")
        return ()
    """
    backend_with(site, extra).doctor_rows(Probe({}))
    assert capsys.readouterr() == ("", "import\nrows\n")
