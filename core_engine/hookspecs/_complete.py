"""CompleteOnCreation: an API whose implementations are refused when a method is missing."""

from __future__ import annotations

from abc import ABC
from typing import Any, Self

from core_engine.errors import ContractError


class CompleteOnCreation(ABC):  # noqa: B024 - the APIs that derive from it have the methods
    """Turns Python's refusal of abstract classes into a `ContractError` that lists what is missing.

    A base that raised NotImplementedError instead would count as an implementation and fail only at
    the first call.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create the object. Raises `ContractError` while abstract methods are left."""
        missing: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        if missing:
            apis = [base.__name__ for base in cls.__mro__ if CompleteOnCreation in base.__bases__]
            raise ContractError(
                f"{cls.__module__}.{cls.__qualname__} does not implement {', '.join(sorted(missing))} "
                f"of {' and '.join(apis)}: define {'it' if len(missing) == 1 else 'them'} with the "
                "signatures of the API"
            )
        return super().__new__(cls)
