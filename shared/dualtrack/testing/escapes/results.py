"""Hostile results: what a sandbox leaves for the host to read, store and remove. The control is a reader that trusts what it finds."""

from __future__ import annotations

from typing import Any, Final

from dualtrack.domain.limits import MIB
from dualtrack.testing.escapes.attempt import Attempt, Evidence, Kind, Proof
from dualtrack.testing.escapes.collect import LIMITS


def _result(name: str, tries: str, source: str, proof: Proof, **limits: Any) -> Attempt:
    return Attempt(name, Kind.RESULTS, tries, source, proof, alone=True, limits=limits)


def _collected_secret(evidence: Evidence) -> str:
    """Storing the results stored a file of the host."""
    if evidence.collected is None:
        return ""
    held = [name for name, secret in evidence.host.secrets.items() if any(secret.encode() in data for data in evidence.collected.contents)]
    return f"the secret {held[0]!r} is among the results" if held else ""


def _hung(evidence: Evidence) -> str:
    """Reading the results did not end."""
    return "reading the results hangs" if evidence.collected is not None and evidence.collected.hung else ""


def _too_much(evidence: Evidence) -> str:
    """More was accepted than a workspace may hold."""
    size = evidence.collected.bytes if evidence.collected is not None else 0
    return f"{size / MIB:.0f} MiB were accepted" if size > LIMITS.workspace_bytes else ""


def _too_many(evidence: Evidence) -> str:
    """More files were accepted than a workspace may hold."""
    count = len(evidence.collected.names) if evidence.collected is not None else 0
    return f"{count} files were accepted" if count > LIMITS.workspace_files else ""


def _bad_names(evidence: Evidence) -> str:
    """A name with control characters, or none that is text, was accepted."""
    names = evidence.collected.names if evidence.collected is not None else []
    bad = [name for name in names if not name.isprintable() or any("\ud800" <= character <= "\udfff" for character in name)]
    return f"the name {bad[0]!a} was accepted" if bad else ""


def _not_removed(evidence: Evidence) -> str:
    """The workspace could not be emptied."""
    return evidence.collected.not_removed if evidence.collected is not None else ""


RESULTS: Final = (
    _result(
        "link-to-secret",
        "leave a symbolic link to a secret of the host as its report",
        "os.symlink(HOST['files']['user'], 'report.txt')",
        _collected_secret,
    ),
    _result(
        "link-to-root",
        "leave a symbolic link to a file that only root may read",
        "os.symlink(HOST['files']['root'], 'report.txt')",
        _collected_secret,
    ),
    _result(
        "link-to-directory",
        "leave a symbolic link to a directory of the host",
        "os.symlink(os.path.dirname(HOST['files']['other_session']), 'reports')",
        _collected_secret,
    ),
    _result(
        "link-by-proc",
        "leave a link into the reader's own process",
        'os.symlink(f"/proc/self/fd/{HOST[\'descriptor\']}", "report.txt")',
        _collected_secret,
    ),
    _result(
        "link-by-dotdot",
        "leave a relative link that climbs out of the workspace",
        "os.symlink('../' * 30 + HOST['files']['world'].lstrip('/'), 'report.txt')",
        _collected_secret,
    ),
    _result("fifo", "leave a FIFO, which hangs whoever reads it", "os.mkfifo('report.txt')", _hung),
    _result("link-to-terminal", "leave a link to something that never ends", "os.symlink('/dev/zero', 'report.txt')", _hung),
    _result(
        "sparse-files",
        "leave files that are small on the disk and huge to read",
        "for n in range(40):\n  with open(f's{n}', 'wb') as file: file.truncate(60 << 20)",
        _too_much,
        disk_bytes=256 * MIB,
    ),
    _result(
        "many-files",
        "leave more files than a workspace may hold",
        "for n in range(300): os.close(os.open(f'f{n}', os.O_CREAT | os.O_WRONLY))",
        _too_many,
        disk_files=5000,
    ),
    _result(
        "control-names",
        "leave names with control characters, which forge lines on a terminal",
        "open('a\\n\\x1b[2Jb', 'w').close()",
        _bad_names,
    ),
    _result("binary-names", "leave names that are no text", "open(b'\\xff\\xfe', 'w').close()", _bad_names),
    _result(
        "deep-result",
        "leave directories nested 1,500 deep, which break whoever walks them",
        "for n in range(1500):\n  os.mkdir('d')\n  os.chdir('d')",
        _not_removed,
        disk_files=5000,
        wall_time_s=10,
    ),
    _result(
        "locked-directory",
        "leave directories that nobody may enter or change",
        "os.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
        _not_removed,
    ),
)
