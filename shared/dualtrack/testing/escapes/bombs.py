"""Using up what others need. Each is bounded far above the limits that `LIMITS` gives it, and ends by itself where nothing stops it."""

from __future__ import annotations

from typing import Any, Final

from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.testing.escapes.attempt import Attempt, Evidence, Kind, Proof, said_so

LIMITS: Final = SandboxLimits(
    wall_time_s=20,
    cpu_time_s=10,
    memory_bytes=160 * MIB,
    processes=48,
    output_bytes=64 * KIB,
    file_bytes=64 * MIB,
    open_files=256,
    disk_bytes=24 * MIB,
    disk_files=500,
)
"""Of the runs of attempts that need a sandbox of their own."""


def _bomb(name: str, tries: str, source: str, proof: Proof = said_so, **limits: Any) -> Attempt:
    return Attempt(name, Kind.BOMBS, tries, source, proof, alone=True, limits=limits)


def _flooded(evidence: Evidence) -> str:
    """More than the limit was kept of the output, or all of it was read without an end."""
    outcome = evidence.outcome
    read = len(outcome.stdout) + outcome.stdout_dropped + len(outcome.stderr) + outcome.stderr_dropped
    return f"{read / MIB:.0f} MiB were read" if read > 40 * MIB else ""


_MANY: Final = 240
"""Processes or threads, with a limit of 48."""
_FORK: Final = (
    "import time\n"
    "made = []\n"
    "try:\n"
    f"  while len(made) < {_MANY}:\n"
    "    pid = os.fork()\n"
    "    if pid == 0:\n"
    "      time.sleep(4)\n"
    "      os._exit(0)\n"
    "    made.append(pid)\n"
    "finally:\n"
    "  for pid in made: os.kill(pid, signal.SIGKILL)\n"
    "  for pid in made: os.waitpid(pid, 0)\n"
    "DETAIL = f'{len(made)} processes at once'"
)
_ALLOCATE: Final = "import mmap\nblock = mmap.mmap(-1, 8 << 20)\nblock.write(b'x' * (8 << 20))\nheld.append(block)\n"

BOMBS: Final = (
    _bomb("fork-bomb", f"start {_MANY} processes where 48 are allowed", _FORK),
    _bomb(
        "fork-bomb-orphans",
        "start processes that leave their parents at once",
        "import time\n"
        "r, w = os.pipe()\n"
        f"for n in range({_MANY}):\n"
        "  pid = os.fork()\n"
        "  if pid == 0:\n"
        "    try:\n"
        "      if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        os.write(w, b'x')\n"
        "        time.sleep(5)\n"
        "    finally: os._exit(0)\n"
        "  os.waitpid(pid, 0)\n"
        "os.set_blocking(r, False)\n"
        "made = len(os.read(r, 65536))\n"
        f"if made < {_MANY} * 0.9: raise Refused(f'{{made}} were made')\n"
        "DETAIL = f'{made} processes at once'",
    ),
    _bomb(
        "thread-bomb",
        f"start {_MANY} threads where 48 are allowed",
        "import threading\n"
        "threading.stack_size(65536)\n"
        "done = threading.Event()\n"
        "started = []\n"
        "try:\n"
        f"  for n in range({_MANY}):\n"
        "    thread = threading.Thread(target=done.wait, daemon=True)\n"
        "    try: thread.start()\n"
        "    except RuntimeError: raise Refused(f'{n} were started') from None\n"
        "    started.append(thread)\n"
        "finally: done.set()\n"
        "DETAIL = f'{len(started)} threads at once'",
    ),
    _bomb(
        "memory-bomb",
        "take 480 MiB of memory where 160 are allowed",
        "held = []\nfor n in range(60):\n" + "".join(f"  {line}\n" for line in _ALLOCATE.splitlines()) + "DETAIL = '480 MiB held'",
    ),
    _bomb(
        "memory-bomb-shared",
        "take 480 MiB by a file in memory (memfd), which no limit of a process counts",
        "fds = []\n"
        "for n in range(10):\n"
        "  fd = os.memfd_create('x')\n"
        "  for m in range(6): os.write(fd, b'x' * (8 << 20))\n"
        "  fds.append(fd)\n"
        "DETAIL = '480 MiB held'",
    ),
    _bomb(
        "memory-bomb-many",
        "take 480 MiB by six processes of 80 MiB, each below the limit",
        "r, w = os.pipe()\n"
        "def hold():\n"
        "  try:\n"
        "    data = bytearray(80 << 20)\n"
        "    data[::4096] = b'x' * len(data[::4096])\n"
        "    os.write(w, b'x')\n"
        "    import time\n"
        "    time.sleep(6)\n"
        "  finally: os._exit(0)\n"
        "pids = []\n"
        "for n in range(6):\n"
        "  pid = os.fork()\n"
        "  if pid == 0: hold()\n"
        "  pids.append(pid)\n"
        "import time\n"
        "deadline = time.monotonic() + 5\n"
        "os.set_blocking(r, False)\n"
        "held = 0\n"
        "while held < 6 and time.monotonic() < deadline:\n"
        "  time.sleep(0.1)\n"
        "  try: held += len(os.read(r, 64))\n"
        "  except BlockingIOError: pass\n"
        "for pid in pids: os.kill(pid, signal.SIGKILL)\n"
        "if held < 6: raise Refused(f'{held} of 6 got theirs')\n"
        "DETAIL = '480 MiB held'",
    ),
    _bomb(
        "memory-bomb-tmp",
        "take 480 MiB by filling /tmp and /dev/shm",
        "held = 0\n"
        "names = []\n"
        "import tempfile\n"
        "try:\n"
        "  for n in range(10):\n"
        "    place = ('/tmp', '/dev/shm')[n % 2]\n"
        "    fd, name = tempfile.mkstemp(dir=place)\n"
        "    names.append(name)\n"
        "    os.posix_fallocate(fd, 0, 48 << 20)\n"
        "finally:\n"
        "  for name in names: os.unlink(name)\n"
        "DETAIL = '480 MiB held'",
    ),
    _bomb(
        "memory-bomb-kernel",
        "take kernel memory by full pipes and sockets",
        "held, fds = 0, []\n"
        "import fcntl\n"
        "r0 = None\n"
        "for n in range(600):\n"
        "  pair = socket.socketpair()\n"
        "  for s in pair:\n"
        "    s.setblocking(False)\n"
        "    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
        "    try:\n"
        "      while True: held += s.send(b'x' * 65536)\n"
        "    except BlockingIOError: pass\n"
        "  fds.append(pair)\n"
        "  if held > 200 << 20: break\n"
        "if held < 160 << 20: raise Refused(f'{held >> 20} MiB')\n"
        "DETAIL = f'{held >> 20} MiB held in sockets'",
        open_files=2048,
    ),
    _bomb(
        "processor-hog",
        "compute for 6 seconds where 2 are allowed",
        "import time\nwhile time.process_time() < 6: sum(range(10000))\nDETAIL = '6 s'",
        cpu_time_s=2,
        wall_time_s=60,
    ),
    _bomb(
        "processor-hog-many",
        "compute for 6 seconds in twelve processes of half a second each, where 2 are allowed",
        "import time\n"
        "for n in range(12):\n"
        "  pid = os.fork()\n"
        "  if pid == 0:\n"
        "    while time.process_time() < 0.5: sum(range(10000))\n"
        "    os._exit(0)\n"
        "  os.waitpid(pid, 0)\n"
        "DETAIL = '6 s'",
        cpu_time_s=2,
        wall_time_s=60,
    ),
    _bomb(
        "sleep-forever",
        "stay for 6 seconds where 2 are allowed, deaf to signals",
        "import time\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU): signal.signal(number, signal.SIG_IGN)\n"
        "time.sleep(6)\nDETAIL = '6 s'",
        wall_time_s=2,
    ),
    _bomb(
        "disk-fill",
        "write 160 MiB to the workspace where 24 are allowed",
        "import time\n"
        "for n in range(40):\n"
        "  with open(f'{NAME}-{n}', 'wb') as file: file.write(b'x' * (4 << 20))\n"
        "  time.sleep(0.12)\n"
        "DETAIL = '160 MiB written'",
    ),
    _bomb(
        "file-size",
        "write one file of 200 MiB where 64 are allowed",
        "with open(NAME, 'wb') as file: file.truncate(200 << 20)",
        disk_bytes=512 * MIB,
    ),
    _bomb(
        "disk-fill-hidden",
        "fill the disk by a file that has no name any more",
        "import time\n"
        "fds = []\n"
        "for n in range(40):\n"
        "  fd = os.open(NAME, os.O_CREAT | os.O_RDWR)\n"
        "  os.unlink(NAME)\n"
        "  os.write(fd, b'x' * (4 << 20))\n"
        "  fds.append(fd)\n"
        "  time.sleep(0.12)\n"
        "DETAIL = '160 MiB written'",
    ),
    _bomb(
        "disk-fill-mapped",
        "fill the disk by files without a name that are not open but mapped into memory",
        "import mmap, time\n"
        "blocks = []\n"
        "for n in range(40):\n"
        "  fd = os.open(NAME, os.O_CREAT | os.O_RDWR)\n"
        "  os.unlink(NAME)\n"
        "  os.write(fd, b'x' * (4 << 20))\n"
        "  blocks.append(libc.mmap(None, ctypes.c_size_t(4 << 20), 1, 1, fd, ctypes.c_long(0)))\n"
        "  os.close(fd)\n"
        "  time.sleep(0.12)\n"
        "DETAIL = '160 MiB written'",
    ),
    _bomb(
        "inode-fill",
        "make 6,000 files where 500 are allowed",
        "import time\n"
        "for n in range(60):\n"
        "  os.mkdir(f'd{n}')\n"
        "  for m in range(99): os.close(os.open(f'd{n}/{m}', os.O_CREAT | os.O_WRONLY))\n"
        "  time.sleep(0.08)\n"
        "DETAIL = '6,000 files'",
    ),
    _bomb(
        "deep-directories",
        "nest directories 3,000 deep",
        "import time\nfor n in range(3000):\n  os.mkdir('d')\n  os.chdir('d')\n  if n % 50 == 0: time.sleep(0.08)\nDETAIL = '3,000 deep'",
    ),
    _bomb(
        "output-flood",
        "print 64 MiB where 64 KiB are kept",
        "for n in range(1024): os.write(1, b'x' * 65536)\nDETAIL = '64 MiB'",
        _flooded,
    ),
    _bomb(
        "descriptor-bomb",
        "open 3,000 files where 256 are allowed",
        "fds = [os.open('/dev/null', os.O_RDONLY) for n in range(3000)]\nDETAIL = len(fds)",
    ),
    _bomb(
        "core-dump",
        "leave a core dump of its memory",
        "import resource\n"
        "try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))\n"
        "except ValueError as error: raise Refused(str(error)) from None\n"
        "DETAIL = 'core dumps are allowed'",
    ),
    _bomb(
        "watch-exhaustion",
        "take all file watchers (inotify) that the kernel gives the user, for all sandboxes together",
        "limit = int(open('/proc/sys/fs/inotify/max_user_instances').read())\n"
        "made = 0\n"
        "try:\n"
        "  while made < limit + 8:\n"
        "    call('inotify_init1', 0)\n"
        "    made += 1\n"
        "except OSError: pass\n"
        "if made < limit * 0.9: raise Refused(f'{made} of {limit}')\n"
        "DETAIL = f'{made} of {limit} taken'",
        open_files=1024,
    ),
    _bomb(
        "lock-memory",
        "lock 64 MiB of the machine's memory",
        "import mmap\nblock = mmap.mmap(-1, 64 << 20)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(block))\n"
        "if libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(64 << 20)) != 0: raise OSError(ctypes.get_errno(), 'mlock')",
    ),
)
