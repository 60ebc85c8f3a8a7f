"""Standard streams that are full, closed or cut off: one clear line and the right exit status, from the installed entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.outcome import Exit

_COMMAND = f"{sys.executable} -c 'from cli.main import main; main()'"


def _run(tail: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell starts it, with the redirections in `tail`; it has no server to talk to."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUALTRACK_")}
    environ = {"HOME": str(cwd), "DUALTRACK_API_KEY": "dt_key", "DUALTRACK_BASE_URL": "http://127.0.0.1:1", **environ}
    return subprocess.run(
        ["sh", "-c", f"{_COMMAND} {tail}"], cwd=cwd, env=kept | environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("arguments", ["version", "version --json", "--help", "jobs submit --help"])
def test_a_full_output(tmp_path: Path, arguments: str) -> None:
    result = _run(f"{arguments} >/dev/full", tmp_path)
    assert result.returncode == Exit.OUTPUT
    line = json.loads(result.stderr)["error"]["message"] if "--json" in arguments else result.stderr
    assert "Standard output can't be written: No space left on device." in line
    assert len(result.stderr.splitlines()) == 1


def test_a_closed_output_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    for arguments in ("chat hi", "jobs submit hi", "migrate", "version"):
        result = _run(f"{arguments} >&-", tmp_path)
        assert (result.returncode, len(result.stderr.splitlines())) == (Exit.OUTPUT, 1)
        assert "Standard output is closed" in result.stderr


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_stream_that_takes_nothing_changes_no_status(tmp_path: Path, redirection: str) -> None:
    good = _run(f"version {redirection}", tmp_path)
    assert (good.returncode, good.stdout.startswith("dualtrack "), good.stderr) == (0, True, "")
    assert _run(f"nonsense {redirection}", tmp_path).returncode == Exit.USAGE
    assert _run(f"chat ' ' {redirection}", tmp_path).returncode == Exit.USAGE
    assert _run(f"version >&- {redirection}", tmp_path).returncode == Exit.OUTPUT


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_nobody_reads(tmp_path: Path, stream: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        arguments = ["version"] if stream == "stdout" else ["chat", " "]
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
        if stream == "stdout":
            result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
        else:
            result = subprocess.run(command, stderr=write_end, stdout=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
    finally:
        os.close(write_end)
    assert (result.returncode, result.stdout or b"", result.stderr or b"") == (Exit.BROKEN_PIPE, b"", b"")


@pytest.mark.parametrize("arguments", ["chat", "jobs submit"])
def test_a_closed_input_reads_as_empty(tmp_path: Path, arguments: str) -> None:
    result = _run(f"{arguments} <&-", tmp_path)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (Exit.USAGE, "", 1)


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    result = subprocess.run(
        ["sh", "-c", f"cd {gone} && rmdir {gone} && {_COMMAND} models"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, len(result.stderr.splitlines())) == (Exit.USAGE, 1)
    assert "current directory is gone" in result.stderr


def test_bytes_that_are_no_utf8_on_the_real_command_line(tmp_path: Path) -> None:
    result = _run("jobs show \"$(printf '\\377')\"", tmp_path)
    assert (result.returncode, result.stderr) == (Exit.USAGE, "Error: ID is no valid UTF-8 text.\n")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "SSL_CERT_FILE"])
def test_a_connection_that_cannot_be_set_up(tmp_path: Path, variable: str) -> None:
    result = _run("models --base-url https://host.invalid:1", tmp_path, **{variable: "nothing://x"})
    assert (result.returncode, len(result.stderr.splitlines())) == (Exit.USAGE, 1)
    assert variable in result.stderr
