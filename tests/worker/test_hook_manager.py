from __future__ import annotations

import functools
import inspect
from collections.abc import Generator
from typing import Any

import pytest

from core_engine.errors import ContractError
from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.plugin import runner_hookimpl, worker_hookimpl
from core_engine.worker.hook_manager import HookManager, hook_names, runner_hooks
from core_engine.worker.reports import LoadReport

LOADED = LoadReport(weight_bytes=1, seconds=0.0)


class Runner(ModelRunnerApi):
    """Answers every hook with its name."""

    def load_model(self) -> Any:
        return LOADED

    def get_model(self) -> Any:
        return "model"

    def get_kv_cache_spec(self) -> Any:
        return {}

    def profile_run(self) -> Any:
        return "profile_run"

    def initialize_kv_cache(self, kv_cache_config: Any) -> Any:
        return kv_cache_config

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        return num_tokens * 100 + num_reqs

    def capture_model(self) -> Any:
        return "capture_model"

    def execute_model(self, scheduler_output: Any) -> Any:
        return scheduler_output


class Doubler:
    @runner_hookimpl(wrapper=True)
    def dummy_run(self, num_tokens: int) -> Generator[None, int, int]:
        return 2 * (yield)


def hooks(runner: ModelRunnerApi | None = None, **extensions: object) -> HookManager:
    return runner_hooks(runner or Runner(), extensions)


def test_every_public_method_is_a_hook() -> None:
    for api in (WorkerApi, ModelRunnerApi):
        methods = {
            name for name, _ in inspect.getmembers(api, inspect.isfunction) if not name.startswith("_")
        }
        assert set(hook_names(api)) == methods


def test_an_owners_method_is_called_without_a_decorator() -> None:
    assert hooks().call("load_model") is LOADED


def test_arguments_go_by_name() -> None:
    assert hooks().call("dummy_run", num_reqs=2, num_tokens=7) == 702


def test_a_vendors_override_replaces_its_base() -> None:
    class Override(Runner):
        def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
            return super().dummy_run(num_tokens, num_reqs) + 1

    assert hooks(Override()).call("dummy_run", num_tokens=1, num_reqs=1) == 102


def test_an_override_under_a_decorator_that_keeps_its_signature_is_accepted() -> None:
    def logged(method: Any) -> Any:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return wrapper

    class Override(Runner):
        @logged
        def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
            return num_tokens

    assert hooks(Override()).call("dummy_run", num_tokens=3, num_reqs=1) == 3


def other_name(self: Any, tokens: int, num_reqs: int) -> int:
    return 1


def extra_argument(self: Any, num_tokens: int, num_reqs: int, more: int) -> int:
    return 1


def fewer_arguments(self: Any, num_tokens: int) -> int:
    return 1


def with_default(self: Any, num_tokens: int, num_reqs: int = 1) -> int:
    return 1


def keyword_only(self: Any, num_tokens: int, *, num_reqs: int) -> int:
    return 1


def anything(self: Any, *args: int, **kwargs: int) -> int:
    return 1


@pytest.mark.parametrize(
    "method", [other_name, extra_argument, fewer_arguments, with_default, keyword_only, anything]
)
def test_an_override_with_another_signature_is_refused_with_both(method: Any) -> None:
    runner = type("AcmeRunner", (Runner,), {"dummy_run": method})()
    with pytest.raises(ContractError) as refusal:
        hooks(runner)
    message = str(refusal.value)
    assert "AcmeRunner.dummy_run(" in message
    assert "ModelRunnerApi.dummy_run(num_tokens, num_reqs)" in message


def test_a_hook_that_is_no_method_is_refused() -> None:
    runner = type("AcmeRunner", (Runner,), {"dummy_run": functools.partialmethod(anything)})()
    with pytest.raises(ContractError, match="dummy_run is a partial"):
        hooks(runner)


def test_an_owner_that_returns_none_is_named() -> None:
    runner = type("AcmeRunner", (Runner,), {"load_model": lambda self: None})()
    with pytest.raises(ContractError, match=r"'load_model' returned None: .*AcmeRunner must return"):
        hooks(runner).call("load_model")


def test_a_wrapper_that_returns_none_is_named() -> None:
    class Forgetful:
        @runner_hookimpl(wrapper=True)
        def load_model(self) -> Generator[None, Any, None]:
            yield

    with pytest.raises(ContractError, match=r"'load_model' returned None: .*\(forgetful\)"):
        hooks(forgetful=Forgetful()).call("load_model")


def test_a_wrapper_may_change_the_result_and_take_fewer_arguments() -> None:
    assert hooks(doubler=Doubler()).call("dummy_run", num_tokens=1, num_reqs=1) == 202


def test_the_first_extension_is_outermost() -> None:
    class AddOne:
        @runner_hookimpl(wrapper=True)
        def dummy_run(self) -> Generator[None, int, int]:
            return 1 + (yield)

    call = {"num_tokens": 1, "num_reqs": 0}
    assert hooks(add=AddOne(), double=Doubler()).call("dummy_run", **call) == 201
    assert hooks(double=Doubler(), add=AddOne()).call("dummy_run", **call) == 202


def test_one_extension_may_wrap_both_roles_under_other_names() -> None:
    class Both:
        @worker_hookimpl(wrapper=True, specname="load_model")
        def of_the_worker(self) -> Generator[None, Any, Any]:
            return (yield)

        @runner_hookimpl(wrapper=True, specname="load_model")
        def of_the_runner(self) -> Generator[None, Any, Any]:
            yield
            return "wrapped"

    assert hooks(both=Both()).call("load_model") == "wrapped"


def test_a_method_that_wraps_the_other_role_is_passed_over() -> None:
    class WorkerOnly:
        @worker_hookimpl(wrapper=True)
        def load_model(self) -> Generator[None, Any, Any]:
            return (yield)

    assert hooks(worker_only=WorkerOnly()).call("load_model") is LOADED


def test_an_extension_may_not_implement_a_hook() -> None:
    class Usurper:
        @runner_hookimpl
        def load_model(self) -> Any:
            return "mine"

    with pytest.raises(ContractError, match=r"Usurper\.load_model is not a wrapper"):
        hooks(usurper=Usurper())


def test_an_old_style_wrapper_is_refused() -> None:
    class Old:
        @runner_hookimpl(hookwrapper=True)
        def load_model(self) -> Generator[None, Any, None]:
            yield

    with pytest.raises(ContractError, match="not a wrapper"):
        hooks(old=Old())


def test_a_wrapper_that_does_not_yield_is_refused() -> None:
    class NoYield:
        @runner_hookimpl(wrapper=True)
        def load_model(self) -> Any:
            return 1

    with pytest.raises(ContractError, match=r"(?s)'no_yield' breaks the plugin API.*generator"):
        hooks(no_yield=NoYield())


def test_a_wrapper_with_an_unknown_argument_is_refused() -> None:
    class Extra:
        @runner_hookimpl(wrapper=True)
        def load_model(self, speed: int) -> Generator[None, Any, Any]:
            return (yield)

    with pytest.raises(ContractError, match="speed"):
        hooks(extra=Extra())


def test_an_unknown_hook_is_refused_with_the_nearest_name() -> None:
    class Typo:
        @runner_hookimpl(wrapper=True)
        def execute_modle(self) -> Generator[None, Any, Any]:
            return (yield)

    with pytest.raises(ContractError, match=r"'execute_modle'.*Did you mean 'execute_model'\?"):
        hooks(typo=Typo())


def test_a_method_named_after_a_hook_without_a_marker_is_refused() -> None:
    class Unmarked:
        def load_model(self) -> Generator[None, Any, Any]:
            return (yield)

    with pytest.raises(ContractError, match=r"Unmarked\.load_model has the name of a hook but no marker"):
        hooks(unmarked=Unmarked())
