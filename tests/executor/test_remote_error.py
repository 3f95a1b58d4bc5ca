from __future__ import annotations

import pytest

from core_engine import errors
from core_engine.errors import CoreEngineError, DeviceLost, EngineError, InvalidRequest
from core_engine.executor.codec import Reply
from core_engine.executor.remote_error import describe_error, rebuild_error

ERRORS = [name for name in errors.__all__ if name != "did_you_mean"]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_arrives_as_its_own_type(name: str) -> None:
    sent: CoreEngineError = getattr(errors, name)("what happened")
    arrived = rebuild_error(describe_error(1, sent))
    assert type(arrived) is type(sent)
    assert str(arrived) == "what happened"


def test_the_field_of_an_invalid_request_arrives() -> None:
    arrived = rebuild_error(describe_error(1, InvalidRequest("no", param="top_p")))
    assert isinstance(arrived, InvalidRequest)
    assert arrived.param == "top_p"


def test_a_backends_own_subclass_arrives_as_its_nearest_base() -> None:
    class CableCut(DeviceLost):
        pass

    assert type(rebuild_error(describe_error(1, CableCut("gone")))) is DeviceLost


def test_a_foreign_error_arrives_as_an_engine_error_that_names_it() -> None:
    arrived = rebuild_error(describe_error(1, ZeroDivisionError("by zero")))
    assert type(arrived) is EngineError
    assert str(arrived) == "ZeroDivisionError: by zero"


def test_the_workers_traceback_is_a_note() -> None:
    try:
        raise DeviceLost("gone")
    except DeviceLost as error:
        arrived = rebuild_error(describe_error(1, error))
    assert "test_the_workers_traceback_is_a_note" in arrived.__notes__[0]


@pytest.mark.parametrize("name", ["did_you_mean", "SystemExit", "no_such"])
def test_an_unknown_name_is_an_engine_error(name: str) -> None:
    assert type(rebuild_error(Reply(call_id=1, error=name, message="m"))) is EngineError
