"""ProgramTimes: what preparing each group of programs costs while an engine starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from core_engine.worker.program_builder import ProgramBuilder
from core_engine.worker.reports import ProgramGroup

__all__ = ["ProgramTimes"]

F = TypeVar("F", bound=Callable[..., object])


class ProgramTimes:
    """Compiles through a `ProgramBuilder` and watches the calls of each group until ``stop``.

    Programs are prepared at their first call, so the calls before ``stop`` are where the time goes.
    """

    def __init__(self, programs: ProgramBuilder) -> None:
        self._programs = programs
        self._spent: dict[str, tuple[int, float]] = {}
        self._is_watching = True

    def compile(self, name: str, fn: F) -> F:
        """Return ``fn`` as a program of the group ``name``."""
        program = self._programs.compile(name, fn)
        self._spent[name] = (0, 0.0)

        @wraps(fn)
        def watched(*args: Any) -> object:
            if not self._is_watching:
                return program(*args)
            before, started = self._programs.num_programs(), time.perf_counter()
            result = program(*args)
            seconds = time.perf_counter() - started
            count, spent = self._spent[name]
            self._spent[name] = (count + self._programs.num_programs() - before, spent + seconds)
            return result

        return cast(F, watched)

    def stop(self) -> tuple[ProgramGroup, ...]:
        """Stop watching, and return what each group that prepared programs has cost."""
        self._is_watching = False
        return tuple(
            ProgramGroup(name=name, num_programs=count, seconds=seconds)
            for name, (count, seconds) in self._spent.items()
            if count
        )
