"""How the gateway checks whom it speaks TLS with as a client, and what it shows as a server."""

from __future__ import annotations

import ssl
from pathlib import Path


def client_tls(ca: Path | None = None) -> ssl.SSLContext:
    """A context that trusts the authorities in the PEM file ``ca``, else the system's. Raises ``OSError``.

    TLS 1.2 at least, a certificate that is valid for the name that was asked for, HTTP/1.1 only. It is not made by
    ``ssl.create_default_context``, which writes the keys of all connections to the file that ``SSLKEYLOGFILE`` names:
    prompts could be read with them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # asks for a certificate and for its name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if ca is None:
        context.load_default_certs()
        return context
    context.load_verify_locations(cafile=ca)
    if not context.cert_store_stats()["x509_ca"]:
        raise ssl.SSLError("expected the certificate of an authority")
    return context


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context that shows the certificate chain of a PEM file to clients. Raises ``OSError``.

    TLS 1.2 at least, HTTP/1.1 only; a key that asks for a passphrase is refused: nobody is there to type it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key, password=lambda: b"")
    return context
