from __future__ import annotations

import inspect
from typing import Any

import pytest

from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.worker.facade import ModelRunnerFacade, WorkerFacade
from core_engine.worker.hook_manager import hook_names

ROLES = [(WorkerApi, WorkerFacade), (ModelRunnerApi, ModelRunnerFacade)]
CALLS = [(facade, api, name) for api, facade in ROLES for name in hook_names(api)]


class Recorder:
    """Stands in for a hook manager and keeps what it was asked."""

    def call(self, hook: str, **arguments: Any) -> Any:
        return (hook, arguments)


@pytest.mark.parametrize(("facade", "api", "name"), CALLS)
def test_every_method_calls_its_own_hook_with_all_arguments_by_name(facade: Any, api: Any, name: str) -> None:
    parameters = list(inspect.signature(getattr(api, name)).parameters)[1:]
    arguments = {parameter: object() for parameter in parameters}
    assert getattr(facade(Recorder()), name)(**arguments) == (name, arguments)


@pytest.mark.parametrize(("facade", "api", "name"), CALLS)
def test_every_method_has_the_signature_of_the_api(facade: Any, api: Any, name: str) -> None:
    assert inspect.signature(getattr(facade, name)) == inspect.signature(getattr(api, name))


def test_a_method_added_to_an_api_cannot_be_forgotten_in_its_facade() -> None:
    # One that is abstract would leave the façade abstract; an optional one would be answered by its default.
    for facade, _, name in CALLS:
        assert name in vars(facade)
