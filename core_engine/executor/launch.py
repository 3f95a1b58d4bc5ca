"""What a worker process inherits: a connection and the modules that its parent finds."""

from __future__ import annotations

import fcntl
import os
import socket
import sys

__all__ = ["connect", "import_path"]

#: Standard input, output and error have the numbers below; a process may have closed them.
_FIRST_OWN_DESCRIPTOR = 3


def connect() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection, with descriptors that the child's standard streams do not take."""
    ours, theirs = socket.socketpair()
    return _above_standard_streams(ours), _above_standard_streams(theirs)


def import_path() -> str:
    """Return this process's import path as ``PYTHONPATH`` holds it.

    Left out is what imports nothing here (an entry that is no text, the current directory once it is
    removed) and what the variable cannot hold (a path with its separator).
    """
    entries = (entry or _current_directory() for entry in sys.path if isinstance(entry, str))
    return os.pathsep.join(entry for entry in entries if entry and os.pathsep not in entry)


def _above_standard_streams(connection: socket.socket) -> socket.socket:
    if connection.fileno() >= _FIRST_OWN_DESCRIPTOR:
        return connection
    with connection:
        copy = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_DESCRIPTOR)
    return socket.socket(fileno=copy)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
