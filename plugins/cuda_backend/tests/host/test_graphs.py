"""Which calls are captured, and which graph is replayed when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_engine_cuda.graphs import GraphPrograms
from host_runtime import HostRuntime


class Counted:
    """A function of tensors that counts how often Python runs it."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        self.num_calls += 1
        return x * scale + 1


@pytest.fixture
def runtime() -> HostRuntime:
    return HostRuntime()


@pytest.fixture
def programs(runtime: HostRuntime) -> GraphPrograms:
    return GraphPrograms(runtime)


def warm_up(programs: GraphPrograms, *calls: tuple[Any, ...]) -> None:
    programs.begin()
    for function, *args in calls:
        function(*args)
    programs.seal()


def test_nothing_is_captured_before_warm_up(programs: GraphPrograms, runtime: HostRuntime) -> None:
    function = Counted()
    program = programs.compile("f", function)
    assert program(torch.ones(2)).tolist() == [2, 2]
    assert (function.num_calls, runtime.graphs) == (1, [])


def test_a_call_of_warm_up_runs_twice_before_it_is_captured(programs: GraphPrograms) -> None:
    function = Counted()
    program = programs.compile("f", function)
    programs.begin()
    # The result is there, though a capture computes nothing.
    assert program(torch.ones(2)).tolist() == [2, 2]
    assert function.num_calls == 3
    assert programs.num_programs() == 1


def test_a_known_call_is_replayed_without_python(programs: GraphPrograms) -> None:
    function, x = Counted(), torch.ones(2)
    program = programs.compile("f", function)
    warm_up(programs, (program, x))
    x.fill_(5)
    assert program(x).tolist() == [6, 6]
    assert function.num_calls == 3


@pytest.mark.parametrize("how", ["place", "shape", "dtype", "value", "stride"])
def test_any_other_call_runs_as_it_is(programs: GraphPrograms, how: str) -> None:
    function, x = Counted(), torch.ones(4, 4)
    program = programs.compile("f", function)
    warm_up(programs, (program, x))
    other: dict[str, tuple[Any, ...]] = {
        "place": (x.clone(),),
        "shape": (x[:2],),
        "dtype": (x.view(torch.int32),),
        "value": (x, 3),
        "stride": (x.T,),
    }
    torch.testing.assert_close(program(*other[how]), Counted()(*other[how]))
    assert function.num_calls == 4
    assert programs.num_programs() == 1


def test_values_of_equal_hash_are_told_apart(programs: GraphPrograms) -> None:
    def scale(x: torch.Tensor, factor: object) -> torch.Tensor:
        return x * (2 if factor is True else 3)

    x = torch.ones(2)
    program = programs.compile("f", scale)
    warm_up(programs, (program, x, True))
    assert program(x, 1).tolist() == [3, 3]


def test_functions_of_equal_arguments_have_graphs_of_their_own(programs: GraphPrograms) -> None:
    x = torch.ones(2)
    double, square = programs.compile("double", lambda x: x * 2), programs.compile("square", lambda x: x * x)
    warm_up(programs, (double, x), (square, x))
    x.fill_(4)
    assert (double(x).tolist(), square(x).tolist()) == ([8, 8], [16, 16])


def test_graphs_feed_each_other_through_fixed_memory(programs: GraphPrograms, runtime: HostRuntime) -> None:
    first = programs.compile("first", lambda x: x + 1)
    second = programs.compile("second", lambda x: {"doubled": x * 2, "squared": x * x})
    buffer = torch.zeros(4)
    programs.begin()
    for size in (4, 2):
        second(first(buffer[:size]))
    programs.seal()
    num_graphs = len(runtime.graphs)

    for size in (2, 4):
        buffer.fill_(size)
        result = second(first(buffer[:size]))
        assert result["doubled"].tolist() == [2 * (size + 1)] * size
        assert result["squared"].tolist() == [(size + 1) ** 2] * size
    assert num_graphs == len(runtime.graphs) == 4
    assert all(graph.num_replays == 2 for graph in runtime.graphs)


def test_smaller_sizes_write_where_the_largest_does(programs: GraphPrograms) -> None:
    program = programs.compile("f", Counted())
    buffer = torch.zeros(4)
    programs.begin()
    large, small = program(buffer), program(buffer[:2])
    assert large.data_ptr() == small.data_ptr()


def test_nested_arguments_are_read_where_they_lie(programs: GraphPrograms) -> None:
    program = programs.compile("f", lambda groups, flag: groups[0]["a"] + groups[1]["a"])
    groups = ({"a": torch.ones(2)}, {"a": torch.ones(2)})
    warm_up(programs, (program, groups, False))
    groups[1]["a"].fill_(9)
    assert program(groups, False).tolist() == [10, 10]
    # Another name is another call.
    assert program(({"a": groups[0]["a"]}, {"a": torch.zeros(2), "b": torch.zeros(2)}), False).tolist() == [
        1,
        1,
    ]


def test_inputs_of_other_names_are_another_call(programs: GraphPrograms) -> None:
    program = programs.compile("f", lambda inputs: inputs["a"] if "a" in inputs else -inputs["b"])
    x = torch.ones(2)
    warm_up(programs, (program, {"a": x}))
    assert program({"b": x}).tolist() == [-1, -1]


def test_dropped_graphs_leave_no_memory_behind(programs: GraphPrograms) -> None:
    program = programs.compile("f", Counted())
    warm_up(programs, (program, torch.ones(1000)))
    programs.drop()
    programs.begin()
    assert program(torch.ones(2)).untyped_storage().nbytes() == 8


def test_dropped_graphs_are_not_replayed(programs: GraphPrograms) -> None:
    function, x = Counted(), torch.ones(2)
    program = programs.compile("f", function)
    warm_up(programs, (program, x))
    programs.drop()
    assert programs.num_programs() == 0
    program(x)
    assert function.num_calls == 4


@pytest.mark.parametrize(
    ("misses_waits", "words"),
    [(False, "called a synchronizing"), (True, "CUDA error: operation not permitted")],
)
def test_what_cannot_be_captured_turns_graphs_off_and_is_told(
    programs: GraphPrograms,
    runtime: HostRuntime,
    caplog: pytest.LogCaptureFixture,
    misses_waits: bool,
    words: str,
) -> None:
    runtime.misses_waits = misses_waits

    def waits(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    x = torch.ones(2)
    good, bad = programs.compile("good", Counted()), programs.compile("bad", waits)
    with caplog.at_level("WARNING", "core_engine.backends.cuda"):
        warm_up(programs, (good, x), (bad, x), (good, x[:1]))
    assert bad(x).tolist() == [2, 2]
    assert good(x).tolist() == [2, 2]
    assert programs.num_programs() == 0
    assert f"'bad' cannot be captured: {words}" in caplog.text
    # A wait that is seen before does not spoil a capture.
    assert runtime.num_captures == 1 + misses_waits


def test_other_errors_of_a_capture_pass(programs: GraphPrograms) -> None:
    calls = 0

    def fails(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("no such kernel")
        return x

    program = programs.compile("f", fails)
    programs.begin()
    with pytest.raises(RuntimeError, match="no such kernel"):
        program(torch.ones(2))
