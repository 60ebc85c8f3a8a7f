"""Devices of the machine."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind, Proof, said_so
from dualtrack.testing.escapes.proofs import left


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, root: bool = True) -> Attempt:
    return Attempt(name, Kind.DEVICES, tries, source, proof, root=root)


def _opens(name: str, tries: str, *paths: str, root: bool = True) -> Attempt:
    source = (
        f"import glob\npaths = [p for pattern in {paths!r} for p in glob.glob(pattern)]\n"
        "DETAIL = first_that_works([lambda p=p: os.open(p, os.O_RDONLY | os.O_NONBLOCK) and p for p in paths])"
    )
    return _attempt(name, tries, source, root=root)


DEVICES: Final = (
    _attempt(
        "make-disk-node",
        "make a device node for the machine's disk",
        "import stat\nos.mknod(NAME, 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
        left("device"),
    ),
    _attempt(
        "make-memory-node",
        "make a device node for the machine's memory",
        "import stat\nos.mknod(NAME, 0o600 | stat.S_IFCHR, os.makedev(1, 1))",
        left("device"),
    ),
    _attempt(
        "make-null-node",
        "make a device node of any kind",
        "import stat\nos.mknod(NAME, 0o600 | stat.S_IFCHR, os.makedev(1, 3))",
        left("device"),
    ),
    _attempt(
        "make-whiteout",
        "make the one device node that plain users may make",
        "import stat\nos.mknod(NAME, 0o600 | stat.S_IFCHR, 0)",
        left("device"),
    ),
    _opens("disks", "open a disk of the machine", "/dev/vd*", "/dev/sd*", "/dev/nvme*", "/dev/xvd*", "/dev/mapper/*", "/dev/dm-*"),
    _opens("memory", "open the machine's memory", "/dev/mem", "/dev/port"),
    _opens("kernel-messages", "read the kernel's messages", "/dev/kmsg"),
    _opens("virtual-machines", "start virtual machines (kvm, vhost)", "/dev/kvm", "/dev/vhost*"),
    _opens("fuse", "mount file systems of its own making (fuse)", "/dev/fuse", root=False),
    _opens("tunnels", "make network interfaces (tun)", "/dev/net/tun", root=False),
    _opens("loop-devices", "turn files into disks (loop)", "/dev/loop*"),
    _opens("terminals", "open terminals of the machine", "/dev/tty[0-9]*", "/dev/console", "/dev/ttyS*", "/dev/vcs*"),
    _opens("other-terminals", "open a terminal of somebody else", "/dev/pts/[0-9]*"),
    _opens("graphics", "open graphics, sound or input devices", "/dev/dri/*", "/dev/snd/*", "/dev/input/*", "/dev/nvidia*", root=False),
    _opens("processor-registers", "open the processor's registers", "/dev/cpu/*/msr", "/dev/cpu/*/cpuid"),
    _opens(
        "watchdog", "open the machine's watchdog or power settings", "/dev/watchdog*", "/dev/cpu_dma_latency", "/dev/rtc*", "/dev/snapshot"
    ),
    _opens(
        "autofs",
        "open control devices of file systems",
        "/dev/autofs",
        "/dev/btrfs-control",
        "/dev/userfaultfd",
        "/dev/udmabuf",
        root=False,
    ),
    _attempt(
        "write-dev",
        "put a file of its own into /dev",
        "os.close(os.open('/dev/' + NAME, os.O_CREAT | os.O_WRONLY))\nos.unlink('/dev/' + NAME)",
    ),
)
