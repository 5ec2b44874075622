"""The errors of operations that a store or a file system refuses, with what has to be granted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast

from sparklog.errors import AccessDeniedError

Operation = Literal["read", "list", "write", "remove"]
READ: Operation = "read"
WRITE: Operation = "write"
REMOVE: Operation = "remove"


class _Placed(Protocol):
    @property
    def uri(self) -> str: ...


_Place = TypeVar("_Place", bound=_Placed)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def refused(uri: str, operation: Operation, reason: str) -> AccessDeniedError:
    """Return the error for an operation on `uri` that was refused."""
    error = AccessDeniedError(
        f"this identity may not {operation} {uri} ({reason}): grant its role's permissions, as "
        "`sparklog policy` prints them, or give other credentials"
    )
    error.uri = uri
    return error


def naming_refusals(
    operation: Operation,
) -> Callable[
    [Callable[Concatenate[_Place, str, _Given], _Result]],
    Callable[Concatenate[_Place, str, _Given], _Result],
]:
    """Decorate a method on a path of a location: refusals of a file system name that path."""

    def decorated(
        method: Callable[Concatenate[_Place, str, _Given], _Result],
    ) -> Callable[Concatenate[_Place, str, _Given], _Result]:
        @wraps(method)
        def called(
            self: _Place, path: str, *args: _Given.args, **options: _Given.kwargs
        ) -> _Result:
            try:
                return method(self, path, *args, **options)
            except AccessDeniedError:
                raise
            except PermissionError as error:
                if error.errno == errno.EPERM and operation == WRITE:
                    # The file system has no hard links, or no such operation.
                    raise
                uri = f"{self.uri}/{path}"
                raise refused(uri, operation, error.strerror or str(error)) from error

        return cast(Callable[Concatenate[_Place, str, _Given], _Result], called)

    return decorated
