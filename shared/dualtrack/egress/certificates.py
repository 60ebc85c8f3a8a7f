"""A certificate authority that only the sandboxes of this process trust, so that the proxy can put secrets into requests over TLS.

Its key is made at first use and never leaves the memory of the process. Sandboxes get its certificate, together with those of the system's
own trust store, as one file.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
import tempfile
import threading
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dualtrack.domain.hosts import is_address

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256

_AUTHORITY_DAYS: Final = 3650
_HOST_DAYS: Final = 7
_RENEW_DAYS: Final = 2
"""A host's certificate is made anew once it is valid for less than this."""
_EARLIER: Final = dt.timedelta(days=1)
"""Certificates are valid from before they are made: a sandbox may see another time."""
_CACHED: Final = 512
_STORES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)


def system_store() -> bytes:
    """The system's trust store as PEM: the file that SSL_CERT_FILE names, else where systems keep theirs; empty where there is none."""
    for path in (ssl.get_default_verify_paths().cafile, *_STORES):
        if path is not None and Path(path).is_file():
            return Path(path).read_bytes()
    return b""


class Certificates:
    """The authority, and certificates of hosts signed by it. Thread-safe."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._lock = threading.Lock()
        self._contexts: dict[str, tuple[dt.datetime, ssl.SSLContext]] = {}
        self._key: EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
        self._host_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Dualtrack egress proxy")])
        builder = self._builder(self._name, self._key, _AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        self._certificate = builder.sign(self._key, _sha256())
        self._authority_pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        self.bundle: Final = system_store().rstrip(b"\n") + b"\n" + self._authority_pem
        """What a sandbox trusts, as PEM."""

    def context(self, host: str) -> ssl.SSLContext:
        """What to answer a TLS client with that wants to speak to a (canonical) host: HTTP/1.1 only."""
        now = dt.datetime.now(dt.UTC)
        with self._lock:
            until, context = self._contexts.get(host, (now, None))
            if context is not None and until - now > dt.timedelta(days=_RENEW_DAYS):
                return context
            if len(self._contexts) >= _CACHED:
                self._contexts.pop(next(iter(self._contexts)))
            context = self._made(host)
            self._contexts[host] = (now + dt.timedelta(days=_HOST_DAYS), context)
            return context

    def _made(self, host: str) -> ssl.SSLContext:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.x509.oid import ExtendedKeyUsageOID

        name = x509.IPAddress(ip_address(host.strip("[]"))) if is_address(host) else x509.DNSName(host)
        builder = self._builder(x509.Name([]), self._host_key, _HOST_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        certificate = builder.sign(self._key, _sha256())
        key = self._host_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        _load(context, key + certificate.public_bytes(serialization.Encoding.PEM) + self._authority_pem)
        return context

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        from cryptography import x509

        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + dt.timedelta(days=days))
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(signer, critical=False)


@cache
def process_certificates() -> Certificates:
    """The one authority of this process."""
    return Certificates()


def _sha256() -> SHA256:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Python's TLS takes keys from files only: one that lies in memory where the system has such, else one that is gone at once."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("egress", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, chain)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(chain)
        file.flush()
        context.load_cert_chain(file.name)
