"""Attempts to get out of a sandbox. Each is Python source that prints `refused` when it failed, and anything else when it worked."""

from __future__ import annotations

from typing import Final

_CALL: Final = """
import ctypes, errno, os, platform, stat
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == 'aarch64'
def call(x86, arm, *arguments):
    return libc.syscall(ctypes.c_long(arm if ARM else x86), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
def verdict(result):
    error = ctypes.get_errno()  # any other error (a bad address, say) would mean that the kernel looked at the arguments
    refused = result < 0 and error in (errno.EPERM, errno.EACCES, errno.ENOSYS)
    print('refused' if refused else f'worked: {result}, {errno.errorcode.get(error)}')
"""


def _system_call(expression: str) -> str:
    return f"{_CALL}\nverdict({expression})\n"


def _python(statement: str, setup: str = "pass") -> str:
    return f"import os, socket, stat\n{setup}\ntry:\n  {statement}\n  print('worked')\nexcept OSError:\n  print('refused')\n"


ESCAPES: Final = {
    "user_namespace": _system_call("call(272, 97, 0x10000000)"),
    "mount_namespace": _system_call("call(272, 97, 0x00020000)"),
    "clone_user_namespace": _system_call("call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)"),
    "clone3": _system_call("call(435, 435, 0, 0)"),
    "mount": _system_call("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)"),
    "remount_root": _system_call("libc.mount(None, b'/', None, 32, None)"),
    "new_mount_api": _system_call("call(430, 430, b'tmpfs', 0)"),
    "chroot": _system_call("libc.chroot(b'/tmp')"),
    "ptrace_init": _system_call("call(101, 117, 16, 1, 0, 0)"),
    "read_init_memory": _system_call("call(310, 270, 1, 0, 0, 0, 0, 0) or -1"),
    "keyctl": _system_call("call(250, 219, 0, -3, 0)"),
    "add_key": _system_call("call(248, 217, b'user', b'x', b'y', 1, -3)"),
    "bpf": _system_call("call(321, 280, 0, ctypes.create_string_buffer(128), 72)"),
    "perf": _system_call("call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
    "io_uring": _system_call("call(425, 425, 4, ctypes.create_string_buffer(128))"),
    "userfaultfd": _system_call("call(323, 282, 1)"),
    "file_handle": _system_call("call(304, 265, -100, ctypes.create_string_buffer(128), 0)"),
    "personality": _system_call("call(135, 92, 0x0040000)"),
    "kernel_log": _system_call("call(103, 116, 3, ctypes.create_string_buffer(128), 128)"),
    "terminal_injection": _system_call("libc.ioctl(0, 0x5412, b'x')"),
    "raw_socket": _python("socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)"),
    "packet_socket": _python("socket.socket(17, socket.SOCK_RAW)"),
    "vsock": _python("socket.socket(40, socket.SOCK_STREAM)"),
    "kernel_crypto_socket": _python("socket.socket(38, socket.SOCK_SEQPACKET)"),
    "device_node": _python("os.mknod('/workspace/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))"),
    "become_root": _python("os.setuid(0)"),
    "write_sysctl": _python("open('/proc/sys/kernel/core_pattern', 'w').write('|/workspace/x')"),
    "write_own_binary": _python("open(os.readlink('/proc/self/exe') if os.path.exists('/proc/self/exe') else '/usr/bin/env', 'r+b')"),
    "host_through_init": _python("os.listdir('/proc/1/root/root')"),
    "kernel_memory": _python("open('/dev/mem', 'rb')"),
    "host_disks": _python("open('/sys/block/' + os.listdir('/sys/block')[0] + '/size')"),
    "docker_socket": _python("socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')"),
}

SETUID_FILES: Final = {
    "chmod": "import os\nopen('/workspace/x', 'w').close()\nos.chmod('/workspace/x', 0o4755)",
    "fchmod": "import os\nos.fchmod(os.open('/workspace/x', os.O_RDWR | os.O_CREAT), 0o2755)",
    "open": "import os\nos.open('/workspace/x', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "directory": "import os\nos.mkdir('/workspace/x')\nos.chmod('/workspace/x', 0o2777)",
}
"""Attempts to leave something with a setuid or setgid bit behind in the workspace."""
