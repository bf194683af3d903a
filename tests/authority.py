"""A certificate authority for tests, made on the spot, and the certificates that it or an impostor vouches for."""

from __future__ import annotations

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)


class Authority:
    """Keeps its certificate in ``ca`` below the folder; ``server`` makes contexts for servers."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(name)
        self.ca = folder / f"{name}.pem"
        self._made = 0
        certificate = (
            _certificate(self._subject, self._subject, self._key, -_DAY, _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, *names: str, expired: bool = False, self_signed: bool = False) -> ssl.SSLContext:
        """A server's context with a certificate for host names and addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem(*names, expired=expired, self_signed=self_signed))
        return context

    def pem(self, *names: str, expired: bool = False, self_signed: bool = False) -> Path:
        """A file of mode 0600 with a certificate for host names and addresses, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(names[0])
        ends = -_DAY / 2 if expired else _DAY
        certificate = (
            _certificate(subject, subject if self_signed else self._subject, key, -_DAY, ends)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .sign(key if self_signed else self._key, hashes.SHA256())
        )
        self._made += 1
        path = self._folder / f"{self._name}-{self._made}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        path.chmod(0o600)
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime.timedelta,
    ends: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW + begins)
        .not_valid_after(_NOW + ends)
    )
