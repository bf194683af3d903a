"""Requests that HTTP parsers read differently, as raw bytes against a whole gateway: one verdict for each.

The names are those of the published corpora (smuggling, desync, malformed and compliance cases). Each case runs in one
piece and cut into single bytes: a verdict that depended on how TCP cut the bytes would be an attack by itself. What
reached the engine is looked at from the engine's side: nothing for a refusal, and for an accepted request exactly one,
written by the gateway.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from loadtests.rawclient import RawAnswer, RawClient, cut

CHAT = "/v1/chat/completions"
QUESTION = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
BODY = json.dumps(QUESTION).encode()
KEY = b"@KEY@"  # replaced by a valid key when a case runs
FILL = b"@FILL@"  # replaced by ``fill`` letters
AUTH = "Authorization: Bearer @KEY@"
TYPE = "Content-Type: application/json"
SIZE = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: gw\r\n\r\n"
# What the gateway itself says to an engine; a header of a client's would add to it.
OWN_HEADERS = {b"host", b"accept-encoding", b"content-type", b"content-length", b"x-request-id"}
PROBES = {"/health", "/v1/models", "/version", "/metrics"}


@dataclass(frozen=True)
class Case:
    """``status`` ``None``: closed without an answer. ``closes`` ``None``: it may, if the answer came before the body.

    ``whole`` are the last bytes, never cut apart, with the last byte of the request itself: what came later than the
    answer would be the next request.
    """

    name: str
    data: bytes
    status: int | None
    closes: bool | None = True
    whole: bytes = b""
    fill: int = 0

    @property
    def reached(self) -> int:
        return int(self.status == 200 and CHAT.encode() in self.data)


def raw(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode("latin-1") + body


def post(*headers: str, body: bytes = BODY, target: str = CHAT, host: str = "Host: gw") -> bytes:
    """A request with a key and a type, and nothing that frames its body."""
    return raw(f"POST {target} HTTP/1.1", host, AUTH, TYPE, *headers, body=body)


def sized(*headers: str, target: str = CHAT, host: str = "Host: gw") -> bytes:
    return post(*headers, SIZE, target=target, host=host)


def chunk(data: bytes, size: str | None = None, end: bytes = b"\r\n") -> bytes:
    return (size or f"{len(data):x}").encode() + b"\r\n" + data + end


LAST = b"0\r\n\r\n"
ENTIRE = chunk(BODY)
CRUMBS = b"".join(chunk(BODY[i : i + 7]) for i in range(0, len(BODY), 7))


def chunked(body: bytes, *headers: str) -> bytes:
    return post(CHUNKED, *headers, body=body)


def get(target: str, *headers: str, method: str = "GET", host: str = "Host: gw") -> bytes:
    return raw(f"{method} {target} HTTP/1.1", host, AUTH, *headers)


FRAMING = [
    Case("content-length", sized(), 200, closes=False),
    Case("chunked-one-chunk", chunked(ENTIRE + LAST), 200, closes=False),
    Case("chunked-many-chunks", chunked(CRUMBS + LAST), 200, closes=False),
    Case("chunk-extension-small", chunked(chunk(BODY, f"{len(BODY):x};a=b") + LAST), 200, closes=False),
    Case("chunk-extension-200kB", chunked(chunk(BODY, f"{len(BODY):x};a=@FILL@") + LAST), 400, fill=200_000),
    Case("chunk-size-upper-case", chunked(chunk(BODY, f"{len(BODY):X}") + LAST), 200, closes=False),
    Case("chunk-size-1000-zeros", chunked(chunk(BODY, "0" * 1000 + f"{len(BODY):x}") + LAST), 200, closes=False),
    Case("chunk-size-200k-zeros", chunked(b"0" * 200_000 + ENTIRE + LAST), 400),
    Case("cl-then-te", post(SIZE, CHUNKED, body=ENTIRE + LAST), 400),
    Case("te-then-cl", post(CHUNKED, SIZE, body=ENTIRE + LAST), 400),
    Case("cl.te", post("Content-Length: 6", CHUNKED, body=b"0\r\n\r\nG" + SMUGGLED), 400),
    Case("te.cl", post(CHUNKED, "Content-Length: 4", body=b"5c\r\n" + SMUGGLED + LAST), 400),
    Case("te.te-hidden-by-case", post(CHUNKED, "transfer-encodinG: x", body=ENTIRE + LAST), 400),
    Case("te.0", get(CHAT, CHUNKED, method="OPTIONS") + chunk(SMUGGLED) + LAST, 405, closes=None),
    Case("cl.0-get", get("/healthz", f"Content-Length: {len(SMUGGLED)}") + SMUGGLED, 400),
    Case("cl.0-models", get("/v1/models", f"Content-Length: {len(SMUGGLED)}") + SMUGGLED, 400),
    Case("0.cl", post("Content-Length: 0", body=SMUGGLED), 400, whole=b"\n" + SMUGGLED),
    Case("cl-short", post(f"Content-Length: {len(BODY) - 1}"), 400, whole=BODY[-2:]),
    Case("cl-twice-equal", post(SIZE, SIZE), 400),
    Case("cl-twice-different", post(SIZE, "Content-Length: 5"), 400),
    Case("cl-list", post(f"Content-Length: {len(BODY)}, {len(BODY)}"), 400),
    Case("cl-plus", post(f"Content-Length: +{len(BODY)}"), 400),
    Case("cl-minus", post("Content-Length: -1"), 400),
    Case("cl-hex", post("Content-Length: 0x10"), 400),
    Case("cl-underscore", post("Content-Length: 1_0"), 400),
    Case("cl-empty", post("Content-Length: "), 400),
    Case("cl-inner-space", post("Content-Length: 1 0"), 400),
    Case("cl-overflow", post("Content-Length: 18446744073709551626"), 400),
    Case("cl-16-digits", post("Content-Length: 00000000000000" + str(len(BODY))), 400),
    Case("cl-over-the-limit", post("Content-Length: 99999999"), 413),
    Case("te-gzip-chunked", post("Transfer-Encoding: gzip, chunked", body=ENTIRE + LAST), 400),
    Case("te-chunked-chunked", post("Transfer-Encoding: chunked, chunked", body=ENTIRE + LAST), 400),
    Case("te-chunked-identity", post("Transfer-Encoding: chunked, identity", body=ENTIRE + LAST), 400),
    Case("te-twice", post(CHUNKED, CHUNKED, body=ENTIRE + LAST), 400),
    Case("te-identity", post("Transfer-Encoding: identity", SIZE), 400),
    Case("te-unknown", post("Transfer-Encoding: xchunked", body=ENTIRE + LAST), 400),
    Case("te-upper-case", post("Transfer-Encoding: Chunked", body=ENTIRE + LAST), 400),
    Case("te-quoted", post('Transfer-Encoding: "chunked"', body=ENTIRE + LAST), 400),
    Case("te-vertical-tab", post("Transfer-Encoding: \x0bchunked", body=ENTIRE + LAST), 400),
    Case("te-trailing-space", post("Transfer-Encoding: chunked ", body=ENTIRE + LAST), 400),
    Case("te-space-before-colon", post("Transfer-Encoding : chunked", body=ENTIRE + LAST), 400),
    Case("te-folded", post("Transfer-Encoding:\r\n chunked", body=ENTIRE + LAST), 400),
    Case("te-http-1.0", raw(f"POST {CHAT} HTTP/1.0", "Host: gw", AUTH, TYPE, CHUNKED, body=ENTIRE + LAST), 400),
    Case("chunk-plus", chunked(chunk(b"abc", "+3") + LAST), 400),
    Case("chunk-0x", chunked(chunk(b"abc", "0x3") + LAST), 400),
    Case("chunk-minus", chunked(chunk(b"abc", "-1") + LAST), 400),
    Case("chunk-underscore", chunked(chunk(b"abc", "0_3") + LAST), 400),
    Case("chunk-not-hex", chunked(chunk(b"abc", "g") + LAST), 400),
    Case("chunk-space-after-size", chunked(chunk(b"abc", "3 ") + LAST), 400),
    Case("chunk-space-before-size", chunked(chunk(b"abc", " 3") + LAST), 400),
    Case("chunk-size-empty", chunked(b"\r\nabc\r\n" + LAST), 400),
    Case("chunk-size-overflow", chunked(chunk(b"abc", "10000000000000003") + LAST), 400),
    Case("chunk-size-bare-lf", chunked(b"3\nabc\r\n" + LAST), 400),
    Case("chunk-data-bare-lf", chunked(b"3\r\nabc\n" + LAST), 400),
    Case("chunk-data-too-long", chunked(b"2\r\nabc\r\n" + LAST), 400),
    Case("chunk-no-crlf-after-data", chunked(b"3\r\nabc" + LAST), 400),
    Case("chunk-ext-bare-lf", chunked(b"3;a\nb\r\nabc\r\n" + LAST), 400),
    Case("chunked-over-the-limit", chunked(b"800001\r\n" + FILL), 413, fill=0x800001),
]  # fmt: skip

TRAILERS = [
    Case("trailer-harmless", chunked(ENTIRE + b"0\r\nx-sum: 1\r\n\r\n"), 200, closes=False),
    Case("trailer-host", chunked(ENTIRE + b"0\r\nhost: evil\r\n\r\n"), 200, closes=False),
    Case("trailer-cl", chunked(ENTIRE + b"0\r\ncontent-length: 3\r\n\r\n"), 400),
    Case("trailer-te", chunked(ENTIRE + b"0\r\ntransfer-encoding: gzip\r\n\r\n"), 400),
    Case("trailer-internal-user", chunked(ENTIRE + b"0\r\nX-Internal-User: root\r\n\r\n"), 200, closes=False),
    Case(
        "trailer-auth",
        raw(f"POST {CHAT} HTTP/1.1", "Host: gw", TYPE, CHUNKED, body=ENTIRE + b"0\r\n" + AUTH.encode() + b"\r\n\r\n"),
        401,
        closes=None,
    ),
    Case("trailer-malformed", chunked(ENTIRE + b"0\r\nbad trailer\r\n\r\n"), 400),
    Case("trailer-200kB", chunked(ENTIRE + b"0\r\nx: @FILL@\r\n\r\n"), 400, fill=200_000),
]

EXPECT = [
    Case("expect-continue", sized("Expect: 100-continue"), 200, closes=False, whole=BODY),
    Case("expect-upper-case", sized("Expect: 100-CONTINUE"), 200, closes=False, whole=BODY),
    Case("expect-obfuscated", sized("Expect: y 100-continue"), 400),
    Case("expect-list", sized("Expect: 100-continue, 200-ok"), 400),
    Case("expect-twice", sized("Expect: 100-continue", "Expect: 100-continue"), 400),
    Case("expect-empty", sized("Expect: "), 400),
    Case("expect-desync-get", get("/healthz", "Expect: 100-continue", "Content-Length: 36") + SMUGGLED, 400),
    Case("expect-without-body", get("/healthz", "Expect: 100-continue"), 200, closes=False),
]

PIPELINES = [
    Case("pipelined-two", sized() + sized(), 200, whole=BODY[-1:] + sized()),
    Case("pipelined-smuggled-get", sized() + SMUGGLED, 200, whole=BODY[-1:] + SMUGGLED),
    Case("pipelined-garbage", sized() + b"\x00\xff garbage", 200, whole=BODY[-1:] + b"\x00\xff garbage"),
    Case("pipelined-first-byte", sized() + b"P", 200, whole=BODY[-1:] + b"P"),
    Case("pipelined-200kB", sized() + FILL, 200, whole=BODY[-1:] + b"a" * 60_000, fill=60_000),
    Case("pipelined-after-close", sized("Connection: close") + sized(), 200, whole=BODY[-1:] + sized()),
    Case("pipelined-behind-refusal", get("/nope") + SMUGGLED, 404, whole=b"\n" + SMUGGLED),
    Case("crlf-behind-the-body", sized() + b"\r\n", 200, closes=None, whole=b"\r\n"),
]

VERSIONS = [
    Case("http-0.9", b"GET /v1/models\r\n\r\n", 400),
    Case("http-1.0", raw("GET /healthz HTTP/1.0", "Host: gw"), 400),
    Case("http-1.0-keep-alive", raw("GET /healthz HTTP/1.0", "Host: gw", "Connection: keep-alive"), 400),
    Case("http-1.2", raw("GET /healthz HTTP/1.2", "Host: gw"), 400),
    Case("http-2.0-as-text", raw("GET /healthz HTTP/2.0", "Host: gw"), 400),
    Case("http-lower-case", raw("GET /healthz http/1.1", "Host: gw"), 400),
    Case("http-no-dot", raw("GET /healthz HTTP/11", "Host: gw"), 400),
    Case("other-protocol", raw("GET /healthz RTSP/1.0", "Host: gw"), 400),
    Case("h2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    Case("tls-client-hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    Case("upgrade-h2c", get("/healthz", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"), 400),
    Case("upgrade-h2c-post", sized("Connection: Upgrade", "Upgrade: h2c"), 400),
    Case("upgrade-websocket", get("/v1/responses", "Connection: Upgrade", "Upgrade: websocket"), 400),
    Case("upgrade-unannounced", get("/healthz", "Upgrade: h2c"), 400),
    Case("request-line-two-spaces", raw("GET  /healthz HTTP/1.1", "Host: gw"), 200, closes=False),
    Case("request-line-tab", raw("GET\t/healthz HTTP/1.1", "Host: gw"), 400),
    Case("request-line-leading-space", raw(" GET /healthz HTTP/1.1", "Host: gw"), 400),
    Case("request-line-trailing-word", raw("GET /healthz HTTP/1.1 x", "Host: gw"), 400),
    Case("request-line-no-target", raw("GET HTTP/1.1", "Host: gw"), 400),
    Case("leading-crlf", b"\r\n\r\n" + get("/healthz"), 200, closes=False),
    Case("leading-crlf-100kB", b"\r\n" * 50_000 + get("/healthz"), 431),
]  # fmt: skip

METHODS = [
    Case("method-connect", raw("CONNECT gw:443 HTTP/1.1", "Host: gw", AUTH), 404),
    Case("method-connect-path", raw("CONNECT /healthz HTTP/1.1", "Host: gw", AUTH), 405),
    Case("method-options", get(CHAT, method="OPTIONS"), 405, closes=False),
    Case("method-options-star", get("*", method="OPTIONS"), 404),
    Case("method-trace", get("/v1/models", method="TRACE"), 405, closes=False),
    Case("method-head", get("/healthz", method="HEAD"), 405, closes=False),
    Case("method-delete", get("/v1/models/sim-model", method="DELETE"), 405, closes=False),
    Case("method-get-chat", get(CHAT), 405, closes=False),
    Case("method-propfind", get("/v1/models", method="PROPFIND"), 405, closes=False),
    Case("method-unknown", get("/healthz", method="FOO"), 400),
    Case("method-lower-case", get("/healthz", method="get"), 400),
    Case("method-override", sized("X-HTTP-Method-Override: DELETE"), 200, closes=False),
    Case("get-with-body", get("/v1/models", "Content-Length: 2") + b"{}", 400),
    Case("get-with-chunked-body", get("/v1/models", CHUNKED) + chunk(b"{}") + LAST, 400),
    Case("get-with-empty-body", get("/v1/models", "Content-Length: 0"), 200, closes=False),
]

TARGETS = [
    Case("absolute-form", sized(target="http://gw" + CHAT), 404),
    Case("absolute-form-other-host", sized(target="http://evil" + CHAT), 404),
    Case("authority-in-path", sized(target="//gw" + CHAT), 404),
    Case("double-slash-first", sized(target="/" + CHAT), 404),
    Case("double-slash-inside", sized(target="/v1//chat/completions"), 404),
    Case("dot-segments", sized(target="/v1/../v1/chat/completions"), 404),
    Case("dot-segments-metrics", get("/v1/../metrics"), 404),
    Case("single-dot", sized(target="/v1/./chat/completions"), 404),
    Case("hidden-file", get("/.env"), 404),
    Case("encoded-dots", get("/v1/%2e%2e/metrics"), 404),
    Case("encoded-slash", sized(target="/v1/chat%2Fcompletions"), 404),
    Case("encoded-backslash", sized(target="/v1/chat%5ccompletions"), 404),
    Case("backslash", sized(target="/v1\\chat\\completions"), 404),
    Case("encoded-nul", sized(target=CHAT + "%00"), 404),
    Case("encoded-letter", sized(target="/v1/ch%61t/completions"), 404),
    Case("encoded-crlf", get("/healthz%0d%0aX-Admin:%201"), 404),
    Case("query", sized(target=CHAT + "?api_base=http://evil"), 404),
    Case("query-empty", sized(target=CHAT + "?"), 404),
    Case("key-in-query", raw(f"GET /v1/models?key={KEY.decode()} HTTP/1.1", "Host: gw"), 404),
    Case("fragment", sized(target=CHAT + "#x"), 404),
    Case("fragment-of-health", get("/healthz#/v1/models"), 404),
    Case("semicolon", sized(target=CHAT + ";x=1"), 404),
    Case("trailing-slash", sized(target=CHAT + "/"), 404, closes=None),
    Case("upper-case-path", sized(target="/V1/chat/completions"), 404, closes=None),
    Case("non-ascii-path", get("/v1/models/\xe9"), 400),
    Case("nul-in-path", get("/v1/models\x00"), 400),
    Case("space-in-path", get("/v1/models /x"), 400),
    Case("relative-path", get("v1/models"), 400),
    Case("target-8KiB", get("/v1/models/@FILL@"), 404, closes=False, fill=8192),
    Case("target-33KiB", get("/@FILL@"), 431, fill=33 * 1024),
    Case("target-1MB", get("/@FILL@"), 431, fill=1 << 20),
    Case("engine-metrics", get("/metrics"), 404, closes=False),
    Case("engine-lora", sized(target="/v1/load_lora_adapter"), 404, closes=None),
    Case("engine-invocations", sized(target="/invocations"), 404, closes=None),
    Case("engine-sleep", sized(target="/sleep"), 404, closes=None),
    Case("engine-batch", sized(target="/v1/chat/completions/batch"), 404, closes=None),
    Case("admin-api", get("/admin/keys"), 404, closes=False),
]

HOSTS = [
    Case("host-missing", raw("GET /healthz HTTP/1.1", AUTH), 400),
    Case("host-empty", get("/healthz", host="Host: "), 400),
    Case("host-twice-equal", get("/healthz", "Host: gw"), 400),
    Case("host-twice-different", get("/healthz", "Host: evil"), 400),
    Case("host-path", get("/v1/models", host="Host: gw/health?"), 400),
    Case("host-query", get("/v1/models", host="Host: gw?"), 400),
    Case("host-fragment", get("/v1/models", host="Host: gw#"), 400),
    Case("host-user", get("/v1/models", host="Host: a@b"), 400),
    Case("host-space", get("/v1/models", host="Host: gw evil"), 400),
    Case("host-list", get("/v1/models", host="Host: gw, evil"), 400),
    Case("host-url", get("/v1/models", host="Host: http://gw"), 400),
    Case("host-port-not-a-number", get("/v1/models", host="Host: gw:8x"), 400),
    Case("host-too-long", get("/v1/models", host="Host: " + "a" * 254), 400),
    Case("host-port", get("/healthz", host="Host: gw:8080"), 200, closes=False),
    Case("host-ipv6", get("/healthz", host="Host: [::1]:8080"), 200, closes=False),
    Case("host-of-a-compose-service", get("/healthz", host="Host: llm_gateway:8080"), 200, closes=False),
]

FIELDS = [
    Case("name-underscore", sized("X_Forwarded_User: root"), 400),
    Case("name-dot", sized("X.Y: 1"), 400),
    Case("name-space", sized("X Y: 1"), 400),
    Case("name-space-before-colon", sized("X-Y : 1"), 400),
    Case("name-empty", sized(": 1"), 400),
    Case("name-nul", sized("X\x00Y: 1"), 400),
    Case("name-non-ascii", sized("X-\xe9: 1"), 400),
    Case("no-colon", sized("X-Y"), 400),
    Case("value-folded", sized("X-Y: a\r\n b"), 400),
    Case("value-folded-tab", sized("X-Y: a\r\n\tb"), 400),
    Case("value-nul", sized("X-Y: a\x00b"), 400),
    Case("value-bare-cr", sized("X-Y: a\rX-Z: b"), 400),
    Case("value-bare-lf", sized("X-Y: a\nX-Z: b"), 400),
    Case("value-del", sized("X-Y: a\x7fb"), 400),
    Case("value-non-ascii", sized("X-Y: \xe9"), 400),
    Case("value-tab", sized("X-Y: a\tb"), 200, closes=False),
    Case("bare-lf-everywhere", sized().replace(b"\r\n", b"\n"), 400),
    Case("bare-lf-at-the-end", get("/healthz").replace(b"\r\n\r\n", b"\r\n\n"), 400),
    Case("headers-64", sized(*[f"X-{n}: 1" for n in range(60)]), 200, closes=False),
    Case("headers-65", sized(*[f"X-{n}: 1" for n in range(61)]), 400),
    Case("headers-200", sized(*[f"X-{n}: 1" for n in range(200)]), 400),
    Case("headers-5000", sized(*[f"X-{n}: 1" for n in range(5000)]), 431),
    Case("header-block-31KiB", sized("X-Y: @FILL@"), 200, closes=False, fill=31 * 1024),
    Case("header-block-33KiB", sized("X-Y: @FILL@"), 431, fill=33 * 1024),
    Case("header-block-of-spaces", sized("X-Y: " + " " * 33_000 + "a"), 431),
    Case("header-block-1MB", sized("X-Y: @FILL@"), 431, fill=1 << 20),
    Case("header-block-20MB", sized("X-Y: @FILL@"), 431, fill=20 << 20),
    Case("connection-close", sized("Connection: close"), 200),
    Case("connection-keep-alive-te", sized("Connection: keep-alive, TE", "TE: trailers"), 200, closes=False),
    Case("connection-unknown-token", sized("Connection: X-Forwarded-For"), 400),
    Case("connection-hides-authorization", sized("Connection: close, Authorization"), 400),
    Case("connection-twice", sized("Connection: X-Forwarded-For", "Connection: keep-alive"), 400),
    Case("content-encoding-gzip", sized("Content-Encoding: gzip"), 400),
    Case("content-encoding-identity", sized("Content-Encoding: identity"), 400),
    Case("content-type-twice", sized(TYPE), 400),
    Case("content-type-missing", sized().replace(TYPE.encode() + b"\r\n", b""), 400, closes=False),
    Case("content-type-text", sized().replace(b"application/json", b"text/plain"), 400, closes=False),
]  # fmt: skip

FORWARDED = [
    Case("x-forwarded", sized("X-Forwarded-For: ::1", "X-Forwarded-Host: x", "Forwarded: for=1"), 200, closes=False),
    Case("x-forwarded-uri", sized("X-Forwarded-Uri: /healthz", "X-Original-URL: /healthz"), 200, closes=False),
    Case("engine-request-id", sized("X-Request-Id: mine"), 200, closes=False),
    Case("engine-rank", sized("X-data-parallel-rank: 3"), 200, closes=False),
    Case("engine-session", sized("X-Session-ID: s"), 200, closes=False),
    Case("engine-priority", sized("X-Vllm-Priority: -9"), 200, closes=False),
    Case("engine-load-format", sized("endpoint-load-metrics-format: JSON"), 200, closes=False),
    Case("cookies", sized("Cookie: a=b", "Proxy-Authorization: Basic eA=="), 200, closes=False),
    Case("proxy-connection-close", sized("Proxy-Connection: close"), 200),
]  # fmt: skip


def signed(*credentials: str) -> bytes:
    return raw(f"POST {CHAT} HTTP/1.1", "Host: gw", TYPE, SIZE, *credentials, body=BODY)


CREDENTIALS = [
    Case("no-credential", signed(), 401, closes=None),
    Case("x-api-key", signed("X-Api-Key: @KEY@"), 200, closes=False),
    Case("bearer-lower-case", signed("authorization: bearer @KEY@"), 200, closes=False),
    Case("both-credentials", signed(AUTH, "X-Api-Key: @KEY@"), 400, closes=None),
    Case("authorization-twice", signed(AUTH, AUTH), 400),
    Case("authorization-twice-different", signed(AUTH, "Authorization: Bearer other"), 400),
    Case("x-api-key-twice", signed("X-Api-Key: @KEY@", "X-Api-Key: @KEY@"), 400),
    Case("basic", signed("Authorization: Basic @KEY@"), 401, closes=None),
    Case("scheme-alone", signed("Authorization: Bearer"), 401, closes=None),
    Case("empty", signed("Authorization: "), 401, closes=None),
    Case("quoted", signed('Authorization: Bearer "@KEY@"'), 401, closes=None),
    Case("sql-quotes", signed("Authorization: Bearer ' OR 1=1 --"), 401, closes=None),
    Case("two-spaces", signed("Authorization: Bearer  @KEY@"), 401, closes=None),
    Case("cut-short", signed("Authorization: Bearer gw_"), 401, closes=None),
    Case("300-letters", signed("Authorization: Bearer @FILL@"), 401, closes=None, fill=300),
    Case("nul", signed("Authorization: Bearer a\x00@KEY@"), 400),
    Case("crlf-adds-a-header", signed("Authorization: Bearer x\r\nX-Admin: 1"), 401, closes=None),
    Case("1MB", signed("Authorization: Bearer @FILL@"), 431, fill=1 << 20),
    Case("in-cookie", signed("Cookie: Authorization=@KEY@"), 401, closes=None),
]

CASES = [
    *FRAMING, *TRAILERS, *EXPECT, *PIPELINES, *VERSIONS, *METHODS, *TARGETS, *HOSTS, *FIELDS, *FORWARDED, *CREDENTIALS,
]  # fmt: skip


class Target:
    """A gateway with an engine behind it, and a valid key."""

    def __init__(self, site: Any) -> None:
        self.engine = site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
        self.gateway = site.gateway([self.engine], probe_interval=60)
        self.gateway.wait_ready("sim-model")
        self.key = self.gateway.key().encode()

    def bytes_of(self, case: Case) -> bytes:
        return case.data.replace(KEY, self.key).replace(FILL, b"a" * case.fill)

    def received(self) -> list[Any]:
        return [request for request in list(self.engine.requests) if request.path not in PROBES]

    def put(self, case: Case, segments: list[bytes]) -> tuple[RawAnswer | None, bool]:
        """The answer, and whether the connection ended with it."""
        self.engine.requests.clear()
        with RawClient(self.gateway.address) as client:
            if case.status == 200:
                client.send(*segments)  # all of it: an interim answer is no reason to stop
            else:
                client.send_until_answered(segments)
            answer = client.answer(head_only=case.data.startswith(b"HEAD"))
            if case.closes or answer is None:
                assert client.rest() == b"", "bytes behind the last answer"
                return answer, True
            return answer, not self._still_serves(client)

    def _still_serves(self, client: RawClient) -> bool:
        client.send(b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n")
        again = client.answer()
        return again is not None and again.status == 200


@pytest.fixture(scope="module")
def target(shared_site: Any) -> Target:
    return Target(shared_site)


def test_the_corpus_has_at_least_88_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 88


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case, target: Target) -> None:
    data = target.bytes_of(case)
    outcome = check(case, target, cut(data, range(0, len(data), 65_536)))
    whole = len(case.whole.replace(KEY, target.key))
    places: Iterable[int] = range(len(data) - whole + 1) if len(data) < 3000 else random_places(case, len(data) - whole)
    assert check(case, target, cut(data, places)) == outcome, "the verdict depends on segmentation"


def random_places(case: Case, length: int) -> list[int]:
    """A few cuts, most of them where heads end and framing begins."""
    dice = random.Random(case.name)
    return [*range(1, 40), *(dice.randrange(1, length) for _ in range(20))]


def check(case: Case, target: Target, segments: list[bytes]) -> tuple[int | None, str | None]:
    """Run a case; its status and error code."""
    answer, ended = target.put(case, segments)
    assert (answer.status if answer else None) == case.status
    if case.closes is not None:
        assert ended is case.closes
    judge_engine(case, target)
    if answer is None or not answer.body or answer.status == 200:
        return case.status, None
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"aaaa" not in answer.body, "an error quotes the request"
    return case.status, error["code"]


def judge_engine(case: Case, target: Target) -> None:
    received = target.received()
    assert len(received) == case.reached
    for request in received:
        assert (request.method, request.target) == ("POST", CHAT.encode())
        assert {name for name, _ in request.headers} == OWN_HEADERS
        assert len(request.headers) == len(OWN_HEADERS)
        assert request.header(b"x-request-id").startswith(b"req_")
        assert request.header(b"host") == target.engine.url.removeprefix("http://").encode()
        body = json.loads(request.body)
        assert len(body.pop("cache_salt")) > 16
        assert body == QUESTION


def test_continue_is_said_to_a_client_that_may_send(target: Target) -> None:
    head, _, body = sized("Expect: 100-continue").replace(KEY, target.key).partition(b"\r\n\r\n")
    with RawClient(target.gateway.address) as client:
        client.send(head + b"\r\n\r\n")
        assert client.head() == b"HTTP/1.1 100 Continue"
        client.send(body)
        answer = client.answer()
    assert answer is not None
    assert (answer.status, answer.closes) == (200, False)


def test_continue_is_not_said_to_a_client_that_may_not(target: Target) -> None:
    head, _, _ = sized("Expect: 100-continue").replace(KEY, b"wrong").partition(b"\r\n\r\n")
    with RawClient(target.gateway.address) as client:
        client.send(head + b"\r\n\r\n")
        answer = client.answer()
        assert answer is not None
        assert (answer.status, answer.interim, answer.closes) == (401, (), True)
        assert client.rest() == b""
