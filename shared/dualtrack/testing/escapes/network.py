"""Reaching the host, its network and its kernel by sockets."""

from __future__ import annotations

from typing import Final

from dualtrack.testing.escapes.attempt import Attempt, Kind, Proof, said_so
from dualtrack.testing.escapes.proofs import knocked, leaked


def _attempt(name: str, tries: str, source: str, proof: Proof = said_so, *, root: bool = False) -> Attempt:
    return Attempt(name, Kind.NETWORK, tries, source, proof, root=root)


def _knocks(name: str, tries: str, listener: str, family: str, address: str, kind: str = "STREAM") -> Attempt:
    source = (
        f"at = HOST['listeners'].get({listener!r})\n"
        "if at is None: raise Refused('this host has none')\n"
        f"DETAIL = knock(socket.{family}, {address}, NAME, socket.SOCK_{kind})"
    )
    return _attempt(name, tries, source, knocked)


def _opens(name: str, tries: str, family: int, kind: str, protocol: int = 0, *, root: bool = False) -> Attempt:
    return _attempt(name, tries, f"socket.socket({family}, socket.{kind}, {protocol})", root=root)


NETWORK: Final = (
    _knocks("host-loopback", "reach a service on the host's 127.0.0.1", "tcp", "AF_INET", "('127.0.0.1', at)"),
    _knocks("host-loopback-ipv6", "reach a service on the host's ::1", "tcp6", "AF_INET6", "('::1', at)"),
    _knocks(
        "host-address", "reach a service on the host's own address", "tcp_own_address", "AF_INET", "(HOST['listeners']['own_address'], at)"
    ),
    _knocks("host-udp", "send a datagram to the host's 127.0.0.1", "udp", "AF_INET", "('127.0.0.1', at)", "DGRAM"),
    _knocks("abstract-socket", "reach a service on an abstract socket of the host", "abstract", "AF_UNIX", "at"),
    _knocks("abstract-datagram", "send a datagram to an abstract socket of the host", "abstract_datagram", "AF_UNIX", "at", "DGRAM"),
    _knocks("socket-file", "reach a service of the host through a socket file", "path", "AF_UNIX", "at"),
    _attempt(
        "multicast",
        "send to a multicast group that the host listens to",
        "group, port = HOST['listeners'].get('multicast') or ('', 0)\n"
        "if not port: raise Refused('this host has none')\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "  s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))\n"
        "  s.sendto(NAME.encode(), (group, port))",
        knocked,
    ),
    _attempt(
        "broadcast",
        "send a broadcast on the host's loopback",
        "group, port = HOST['listeners'].get('multicast') or ('', 0)\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "  s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n"
        "  s.sendto(NAME.encode(), ('127.255.255.255', port))",
        knocked,
    ),
    _attempt(
        "internet",
        "have a way to the internet (no packet is sent)",
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.connect(('192.0.2.1', 9))",
    ),
    _attempt(
        "link-local",
        "send to the link-local neighbours by IPv6",
        "def send(i):\n"
        "  with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s: s.connect(('ff02::1', 9, 0, i))\n"
        "first_that_works([lambda i=i: send(i) for i, n in socket.if_nameindex() if n in HOST['interfaces']])",
    ),
    _attempt("name-lookup", "have names looked up for it", "DETAIL = socket.getaddrinfo('example.org', 443)[0][4]"),
    _attempt(
        "interfaces",
        "learn the addresses of the host's network",
        "with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:\n"
        "  s.send(b'\\x14\\0\\0\\0\\x16\\0\\x01\\x03' + b'\\0' * 12)\n"  # RTM_GETADDR, dump
        "  answer = s.recv(65536)\n"
        "own = HOST['listeners']['own_address']\n"
        "if not own or socket.inet_aton(own) not in answer: raise Refused('only its own')\nDETAIL = own",
    ),
    _attempt(
        "connections",
        "list connections of the host",
        "text = open('/proc/net/tcp').read()\nif f\"{HOST['listeners']['tcp']:04X}\" not in text: raise Refused('only its own')",
    ),
    _attempt(
        "socket-names",
        "list the abstract sockets of the host",
        "if HOST['listeners']['abstract'].strip('\\0') not in open('/proc/net/unix').read(): raise Refused('only its own')",
    ),
    _attempt(
        "service-sockets",
        "reach the container engine, D-Bus or other services of the host",
        "import glob\n"
        "paths = [p for d in ('/run', '/var/run') for g in ('*.sock', '*/*.sock', '*/*socket*') for p in glob.glob(f'{d}/{g}')]\n"
        "def reach(p):\n"
        "  with socket.socket(socket.AF_UNIX) as s: s.connect(p)\n"
        "  return p\n"
        "DETAIL = first_that_works([lambda p=p: reach(p) for p in paths])",
        root=True,
    ),
    _attempt(
        "passed-descriptor",
        "take an open file from a process of the host through a socket (SCM_RIGHTS)",
        "with socket.socket(socket.AF_UNIX) as s:\n"
        "  s.settimeout(2)\n"
        "  s.connect(HOST['listeners']['path'])\n"
        "  s.sendall(NAME.encode())\n"
        "DETAIL = 'a socket to it is open'",
        knocked,
    ),
    _opens("raw-socket", "forge packets (raw socket)", 2, "SOCK_RAW", 1, root=True),
    _opens("raw-socket-ipv6", "forge packets (raw IPv6 socket)", 10, "SOCK_RAW", 58, root=True),
    _opens("ping-socket", "send pings", 2, "SOCK_DGRAM", 1, root=True),
    _opens("packet-socket", "listen to all packets", 17, "SOCK_RAW", root=True),
    _opens("vsock", "reach the hypervisor (vsock)", 40, "SOCK_STREAM"),
    _opens("crypto-socket", "use the kernel's ciphers (AF_ALG)", 38, "SOCK_SEQPACKET"),
    _opens("xdp-socket", "bypass the network stack (AF_XDP)", 44, "SOCK_RAW", root=True),
    _opens("sctp-socket", "open an SCTP socket", 2, "SOCK_STREAM", 132),
    _opens("mptcp-socket", "open a multipath TCP socket", 2, "SOCK_STREAM", 262),
    _opens("dccp-socket", "open a DCCP socket", 2, "SOCK_DCCP if hasattr(socket, 'SOCK_DCCP') else 6", 33),
    _opens("tipc-socket", "open a TIPC socket", 30, "SOCK_STREAM"),
    _opens("rds-socket", "open an RDS socket", 21, "SOCK_SEQPACKET"),
    _opens("smc-socket", "open an SMC socket", 43, "SOCK_STREAM"),
    _opens("kcm-socket", "open a KCM socket", 41, "SOCK_DGRAM"),
    _opens("qipcrtr-socket", "open a modem socket", 42, "SOCK_DGRAM"),
    _opens("key-socket", "change IPsec keys (AF_KEY)", 15, "SOCK_RAW", 2, root=True),
    _opens("can-socket", "open a CAN bus socket", 29, "SOCK_RAW", 1),
    _opens("bluetooth-socket", "open a Bluetooth socket", 31, "SOCK_RAW", 1),
    _opens("netlink-audit", "talk to the kernel's audit system", 16, "SOCK_RAW", 9),
    _opens("netlink-netfilter", "talk to the kernel's firewall (nf_tables)", 16, "SOCK_RAW", 12),
    _opens("netlink-events", "listen to device events", 16, "SOCK_RAW", 15),
    _opens("netlink-generic", "talk to drivers (generic netlink)", 16, "SOCK_RAW", 16),
    _opens("netlink-diagnosis", "ask for sockets (sock_diag)", 16, "SOCK_RAW", 4),
    _opens("netlink-ipsec", "change IPsec policies (xfrm)", 16, "SOCK_RAW", 6),
    _attempt(
        "shared-memory",
        "read a System V memory segment of the host",
        "segment = call('shmget', HOST['ipc_key'], 0, 0)\n"
        "libc.shmat.restype = ctypes.c_void_p\n"
        "print(ctypes.string_at(libc.shmat(segment, None, 0o10000)).decode(errors='replace'))",
        leaked("system_v"),
    ),
    _attempt(
        "message-queue",
        "read a System V message queue of the host",
        "data = buffer(256)\n"
        "call('msgrcv', call('msgget', HOST['ipc_key'], 0), data, 200, 0, 0o4000)\n"
        "print(data.raw[8:].strip(b'\\0').decode(errors='replace'))",
        leaked("system_v"),
    ),
    _attempt(
        "semaphore",
        "read a System V semaphore of the host",
        "value = call('semctl', call('semget', HOST['ipc_key'], 0, 0), 0, 12)\n"
        "if value != HOST['semaphore_value']: raise Refused('another one')\nDETAIL = value",
    ),
    _attempt(
        "posix-queue",
        "read a POSIX message queue of the host",
        "if not HOST['posix_queue']: raise Refused('this host has none')\n"
        "queue = call('mq_open', HOST['posix_queue'].strip('/').encode(), os.O_RDONLY | os.O_NONBLOCK, 0, 0)\n"
        "data = buffer(65536)\n"
        "size = libc.mq_receive(queue, data, 65536, None)\n"
        "print(data.raw[:max(size, 0)].decode(errors='replace'))",
        leaked("system_v"),
    ),
)
