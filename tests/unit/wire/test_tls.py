"""What a client of the gateway's asks of a server's certificate."""

from __future__ import annotations

import ssl

import pytest

from gateway.wire.tls import client_tls, server_tls
from tests.authority import Authority


def test_a_context_asks_for_a_valid_certificate_for_the_name_and_for_tls_1_2(tmp_path):
    context = client_tls(Authority(tmp_path).ca)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.cert_store_stats()["x509_ca"] == 1  # the system's are not trusted beside it


def test_without_a_file_the_system_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path).ca))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    assert client_tls().cert_store_stats()["x509_ca"] == 1


def test_no_variable_has_the_keys_of_connections_written_down(monkeypatch, tmp_path):
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert client_tls(Authority(tmp_path).ca).keylog_filename is None


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_without_authorities_is_refused(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OSError):  # noqa: PT011 - FileNotFoundError or SSLError
        client_tls(path)


def test_a_server_asks_for_tls_1_2_and_offers_http_1_1_alone(tmp_path):
    pem = Authority(tmp_path).pem("a.test")
    context = server_tls(pem, pem)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.load_verify_locations(Authority(tmp_path, "other").ca)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    asking.set_alpn_protocols(["h2", "http/1.1"])
    client = asking.wrap_bio(there, back)
    server = context.wrap_bio(back, there, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.selected_alpn_protocol() == "http/1.1"


def test_no_variable_has_the_keys_of_a_servers_connections_written_down(monkeypatch, tmp_path):
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    pem = Authority(tmp_path).pem("a.test")
    assert server_tls(pem, pem).keylog_filename is None
