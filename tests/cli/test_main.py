from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import core_engine
from core_engine.backends.loading import HEAVY_MODULES
from core_engine.cli import main as cli
from core_engine.cli.main import COMMANDS, Command, main
from core_engine.testing.plugin_site import PluginSite


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a command ``try`` whose body a test writes with `write_command`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cli, "COMMANDS", (Command("try", "try it", "tried_command"),))
    monkeypatch.delitem(sys.modules, "tried_command", raising=False)
    return tmp_path / "tried_command.py"


def run_command(file: Path, ending: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that knows the command ``try`` of ``file`` and ends with the lines ``ending``."""
    code = f"""
import sys
sys.path.insert(0, {str(file.parent)!r})
from core_engine.cli import main as cli
cli.COMMANDS = (cli.Command("try", "try it", "tried_command"),)
{ending}
"""
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )


def write_command(file: Path, statement: str) -> None:
    file.write_text(
        "from core_engine.cli.options import add_option\n"
        "from core_engine.errors import ConfigError\n"
        "def add_arguments(parser):\n    add_option(parser, '--size', help='size', convert=int, default=1)\n"
        f"def run(args, results):\n    {statement}\n"
    )


def test_the_command_gets_its_arguments_and_gives_the_exit_code(command: Path) -> None:
    write_command(command, "return args.size")
    assert main(["try", "--size", "7"]) == 7


def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_command(command, "raise ConfigError('no such\\n  thing')")
    assert main(["try"]) == 2
    assert capsys.readouterr() == ("", "core-engine: error: no such thing\n")


@pytest.mark.parametrize(("arguments", "variable"), [(["try", "--debug"], ""), (["try"], "1")])
def test_debug_adds_the_traceback(
    command: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variable: str,
) -> None:
    monkeypatch.setenv("CORE_ENGINE_DEBUG", variable)
    write_command(command, "raise ConfigError('no such thing')")
    assert main(arguments) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_exit_code_130(command: Path) -> None:
    write_command(command, "raise KeyboardInterrupt")
    assert main(["try"]) == 130


def test_a_bug_is_not_hidden(command: Path) -> None:
    write_command(command, "raise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        main(["try"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["try", "--sise", "7"], "unknown argument '--sise'. Did you mean '--size'?"),
        (["try", "--SI", "7"], "unknown argument '--SI'. Did you mean '--size'?"),
        (["try", "--verbose"], "unknown argument '--verbose'. (see"),
        (["--size=7", "try"], "--size stands before the command; write it after 'core-engine try'"),
        (["try", "more"], "unknown argument 'more'."),
        (["tri"], "unknown command 'tri'. Did you mean 'try'?"),
        (["--verbose"], "unknown argument '--verbose'."),
        (["try", "--size", "big"], "argument --size: 'big' is not a whole number"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(
    command: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_command(command, "return 0")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_command_shows_the_help(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "try it" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"core-engine {core_engine.__version__}\n"


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    # The reader has gone before the first byte is written.
    code = "from core_engine.cli.main import main; import sys; sys.stdin.read(); sys.exit(main(['backends']))"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_commands_have_distinct_names_and_import_nothing_before_they_are_called() -> None:
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    code = """if True:
        import sys, core_engine.cli.main
        print([name for name in sys.modules if name.startswith("core_engine.cli.")])
    """
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    parts = [f"core_engine.cli.{name}" for name in ("options", "results", "main")]
    assert shown == f"{parts}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["backends"], ["backends", "--help"], ["doctor"]])
def test_case_28_help_and_listings_import_no_heavy_module(tmp_path: Path, arguments: list[str]) -> None:
    site = PluginSite(tmp_path / "site")
    site.add_backend("tpu")
    code = f"""
    import atexit, sys
    atexit.register(lambda: print("HEAVY", [name for name in {HEAVY_MODULES} if name in sys.modules]))
    from core_engine.cli.main import main
    sys.exit(main({arguments}))
    """
    finished = site.run(code, whole_environment=True)
    assert finished.stdout.endswith("HEAVY []\n"), finished.stderr


def test_case_28_importing_core_engine_imports_no_heavy_module(tmp_path: Path) -> None:
    code = f"import sys, core_engine; print([name for name in {HEAVY_MODULES} if name in sys.modules])"
    assert PluginSite(tmp_path / "site").run(code, whole_environment=True).stdout == "[]\n"


def test_the_module_is_the_command() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "core_engine", "--version"], capture_output=True, text=True, check=True
    )
    assert finished.stdout == f"core-engine {core_engine.__version__}\n"


def run_in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run(
        ["sh", "-c", f'"$0" -m core_engine {command}', sys.executable],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_stdout_is_one_clear_line() -> None:
    finished = run_in_shell("backends >&-")
    assert finished.returncode == 2
    assert finished.stderr.startswith("core-engine: error: stdout is closed")
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["backends", "--version", "--help"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_clear_line(arguments: str) -> None:
    finished = run_in_shell(f"{arguments} >/dev/full")
    assert finished.returncode == 2
    assert finished.stderr == (
        "core-engine: error: stdout cannot be written: [Errno 28] No space left on device\n"
    )


NOISE = """if True:
        import atexit, os, subprocess, sys, threading
        print("results", file=results)
        print("noise of Python code")
        sys.__stdout__.write("noise past sys.stdout\\n")
        os.write(1, b"noise of a C library\\n")
        subprocess.run(["echo", "noise of a child process"])
        atexit.register(lambda: print("noise at exit"))
        threading.Thread(target=lambda: (threading.main_thread().join(), print("noise of a thread"))).start()
        return 0
"""


def test_stdout_holds_the_results_and_nothing_that_anybody_else_prints(command: Path) -> None:
    write_command(command, NOISE)
    finished = run_command(command, "sys.argv = ['core-engine', 'try']; sys.exit(cli.main())")
    assert (finished.returncode, finished.stdout) == (0, "results\n")
    assert sorted(finished.stderr.splitlines()) == [
        "noise at exit",
        "noise of Python code",
        "noise of a C library",
        "noise of a child process",
        "noise of a thread",
        "noise past sys.stdout",
    ]


def test_a_caller_in_the_same_process_has_its_stdout_back(command: Path) -> None:
    write_command(command, "print('results', file=results); print('noise'); return 0")
    finished = run_command(command, "print('before'); cli.main(['try']); print('after')")
    assert finished.stdout == "before\nresults\nafter\n"
    assert finished.stderr == "noise\n"


def test_what_a_failed_command_had_printed_is_kept(command: Path) -> None:
    write_command(command, "print('half', file=results); raise ConfigError('no more')")
    finished = run_command(command, "sys.exit(cli.main(['try']))")
    assert (finished.returncode, finished.stdout) == (2, "half\n")


def test_an_error_of_the_system_elsewhere_is_a_bug(command: Path) -> None:
    write_command(command, "raise OSError(28, 'No space left on device')")
    with pytest.raises(OSError, match="No space left"):
        main(["try"])


def test_a_closed_stderr_leaves_stdout_to_the_results() -> None:
    finished = run_in_shell("tri 2>&-")
    assert (finished.returncode, finished.stdout) == (2, "")


def test_characters_that_the_encoding_lacks_are_escaped_as_json_does(command: Path) -> None:
    write_command(
        command, "import json; print(json.dumps('é€😀', ensure_ascii=False), file=results); return 0"
    )
    finished = run_command(command, "sys.exit(cli.main(['try']))", PYTHONIOENCODING="ascii")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(finished.stdout) == "é€😀"
