"""Becoming somebody else, and learning the secrets of whoever started the sandbox."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind, Proof, said_so
from dualtrack.testing.escapes.host import ENVIRONMENT
from dualtrack.testing.escapes.proofs import leaked, left


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, root: bool = False) -> Attempt:
    return Attempt(name, Kind.IDENTITY, tries, source, proof, root=root)


IDENTITY: Final = (
    _attempt("become-root", "become root (setuid)", "os.setuid(0)\nopen('/proc/self/status').read()", root=True),
    _attempt("become-other", "become another user", "os.setresuid(12345, 12345, 12345)", root=True),
    _attempt("join-groups", "join groups of the host, such as the disk's", "os.setgroups([6, 42])", root=True),
    _attempt(
        "capabilities",
        "have, or be able to get, any capability of root",
        "lines = dict(line.split(':\\t', 1) for line in open('/proc/self/status'))\n"
        "held = {k: lines[k].strip() for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb') if int(lines.get(k, '0'), 16)}\n"
        "if not held: raise Refused('none')\nDETAIL = held",
        root=True,
    ),
    _attempt(
        "gain-privileges",
        "run a setuid program of the system and become root by it",
        "import subprocess\n"
        "for program in ('/usr/bin/su', '/usr/bin/passwd', '/usr/bin/mount', '/usr/bin/newgrp', '/usr/bin/chsh'):\n"
        "  if not os.path.exists(program) or not os.stat(program).st_mode & 0o4000: continue\n"
        "  pid = os.fork()\n"
        "  if pid == 0: os.execv(program, [program, '--version'])\n"
        "  os.waitpid(pid, 0)\n"
        "if libc.prctl(39, 0, 0, 0, 0) == 1: raise Refused('no_new_privs is set')\n"
        "DETAIL = 'no_new_privs is not set'",
    ),
    _attempt(
        "write-loginuid",
        "change the audit identity of its session",
        "os.write(os.open('/proc/self/loginuid', os.O_WRONLY), b'0')",
        root=True,
    ),
    _attempt(
        "raise-limits",
        "raise its own hard resource limits",
        "import resource\n"
        "limits = [(kind, *resource.getrlimit(kind)) for kind in range(16)]\n"
        "finite = [limit for limit in limits if limit[2] != resource.RLIM_INFINITY and limit[0] != resource.RLIMIT_NOFILE]\n"
        "for kind, soft, hard in finite:\n"
        "  try: resource.setrlimit(kind, (soft, hard + 1))\n"
        "  except ValueError as error: raise Refused(str(error)) from None\n"
        "if not finite: raise Refused('there is none to raise')",
        root=True,
    ),
    _attempt(
        "realtime",
        "run at real-time priority, before everything else on the machine",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        root=True,
    ),
    _attempt("raise-priority", "run at a higher priority than it was given", "os.nice(-1)", root=True),
    _attempt(
        "protect-from-oom",
        "protect itself from the out-of-memory killer",
        "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')",
        root=True,
    ),
    _attempt(
        "launcher-environment",
        "find secrets in the environment of whoever started it",
        "import glob\n"
        "for path in ['/proc/self/environ', *glob.glob('/proc/[0-9]*/environ')]:\n"
        "  try: print(open(path, 'rb').read().replace(b'\\0', b' ').decode(errors='replace')[:8000])\n"
        "  except OSError: pass\n"
        f"print(os.environ.get({ENVIRONMENT!r}))",
        leaked("environment"),
    ),
    _attempt("setuid-chmod", "leave a setuid file behind (chmod)", "open(NAME, 'w').close()\nos.chmod(NAME, 0o4755)", left("setid")),
    _attempt(
        "setgid-fchmod", "leave a setgid file behind (fchmod)", "os.fchmod(os.open(NAME, os.O_RDWR | os.O_CREAT), 0o2755)", left("setid")
    ),
    _attempt("setuid-open", "create a setuid file (open)", "os.umask(0)\nos.open(NAME, os.O_CREAT | os.O_WRONLY, 0o4755)", left("setid")),
    _attempt(
        "setuid-temporary",
        "create a setuid file without a name and give it one (O_TMPFILE)",
        "os.umask(0)\nfd = os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755)\n"
        "os.link(f'/proc/self/fd/{fd}', NAME, src_dir_fd=0, follow_symlinks=True)",
        left("setid"),
    ),
    _attempt("setgid-directory", "leave a setgid directory behind", "os.mkdir(NAME)\nos.chmod(NAME, 0o2777)", left("setid")),
    _attempt("setuid-mkfifo", "create a setuid FIFO (mknod)", "os.umask(0)\nos.mkfifo(NAME, 0o4666)", left("setid")),
    _attempt(
        "file-capabilities",
        "leave a file with capabilities behind (setxattr)",
        "open(NAME, 'w').close()\nos.setxattr(NAME, 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))",
        left("capable"),
        root=True,
    ),
    _attempt(
        "give-away", "leave a file that belongs to root behind", "open(NAME, 'w').close()\nos.chown(NAME, 0, 0)", left("root's"), root=True
    ),
)
