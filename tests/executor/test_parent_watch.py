"""A process that watches its parent ends with it and takes its own children along."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from executor.processes import wait_until_gone

#: Prints the process ids of itself and of a child, and then does what the last argument says.
WATCHER = """
import os, signal, socket, subprocess, sys, time
from core_engine.executor import parent_watch
parent_watch._GRACE_S, parent_watch._LOOK_MS = 0.1, 100
watch = parent_watch.ParentWatch(int(sys.argv[1]), int(sys.argv[4]))
watch.rendezvous = sys.argv[2]
child = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
print(os.getpid(), child.pid, flush=True)
exec(sys.argv[3])
"""
#: Starts a watcher, waits until it watches, and ends.
PARENT = """
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
command = [sys.executable, "-c", sys.argv[1], str(theirs.fileno()), *sys.argv[2:4], str(os.getpid())]
pipe = subprocess.PIPE
watcher = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=pipe, text=True, process_group=0)
theirs.close()
print(watcher.stdout.readline(), flush=True)
exec(sys.argv[4])
os._exit(0)
"""
#: A parent's fork, which lives on for a minute.
FORK = """
fork = os.fork()
if not fork:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(fork, flush=True)
"""


def run(tmp_path: Path, what_the_watcher_does: str, what_the_parent_does: str = "") -> list[int]:
    """Return the process ids that the watcher printed, once its parent has ended."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "file").touch()
    arguments = [WATCHER, str(folder / "file"), what_the_watcher_does, what_the_parent_does]
    done = subprocess.run(
        [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("what", ["time.sleep(3600)", "while True: pass"], ids=["waits", "computes"])
def test_a_busy_process_is_ended_with_its_children(tmp_path: Path, what: str) -> None:
    watcher, child, *_ = run(tmp_path, what)
    wait_until_gone(watcher)
    wait_until_gone(child)
    assert not (tmp_path / "ranks").exists()


def test_a_fork_of_the_parent_that_holds_the_socket_open_does_not_matter(tmp_path: Path) -> None:
    watcher, child, fork_pid = run(tmp_path, "time.sleep(3600)", FORK)
    wait_until_gone(watcher)
    wait_until_gone(child)
    subprocess.run(["kill", str(fork_pid)], check=True)


def test_a_parent_that_had_gone_before_the_watch_began_is_missed(tmp_path: Path) -> None:
    """Its socket is held open meanwhile, here by this process."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(theirs.fileno()), str(tmp_path / "none"), "time.sleep(3600)", str(gone.pid)]
        command = [sys.executable, "-c", WATCHER, *arguments]
        done = subprocess.run(command, pass_fds=(theirs.fileno(),), process_group=0, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_a_process_that_ends_by_itself_ends_its_children(tmp_path: Path) -> None:
    watcher, child, *_ = run(tmp_path, "watch.leave()", "watcher.wait()")
    wait_until_gone(watcher)
    wait_until_gone(child)
    assert not (tmp_path / "ranks").exists()
