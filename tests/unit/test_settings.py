"""Settings: precedence, every fault at once, engines that may leave the host or not."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import gateway.settings as settings_module
from gateway.configvalues import Address, Pods
from gateway.model import EngineSpec
from gateway.secret import Secret
from gateway.settings import (
    DiscoverySettings,
    Settings,
    SettingsFault,
    Timeouts,
    TlsSettings,
    load_settings,
    open_to_readers,
    state_folder_of,
    variable,
)
from tests.authority import Authority

ENV = {"HOME": "/home/ops"}


def load(
    text: str | None = None, folder: Path | None = None, env: dict[str, str] | None = None, **flags: Any
) -> Settings:
    config = None
    if text is not None and folder is not None:
        config = folder / "gateway.yaml"
        config.write_text(text)
    return load_settings(flags, {**ENV, **(env or {})}, config)


def faults(*args: Any, **more: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsFault) as raised:
        load(*args, **more)
    assert str(raised.value) == "\n".join(raised.value.faults)
    return raised.value.faults


def test_nothing_given_works() -> None:
    settings = load()
    assert settings.state == "sqlite:///home/ops/.local/state/gateway/state.db"
    assert settings.state_folder == Path("/home/ops/.local/state/gateway")
    assert (settings.policies / "__init__.py").is_file()
    assert (str(settings.listen), str(settings.admin)) == ("127.0.0.1:8080", "127.0.0.1:9090")
    assert settings.engines == settings.hosts == settings.remote_engines == ()
    assert settings.timeouts == Timeouts(2.0, 600.0, 120.0, 900.0, 30.0)
    assert (settings.attempts, settings.max_connections_per_replica) == (2, 1024)
    assert (settings.probe_interval, settings.request_head_timeout) == (1.0, 10.0)
    assert (settings.body_timeout, settings.min_body_rate, settings.body_memory) == (30.0, 1024, 1 << 30)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load().attempts = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "state"),
    [("/var/lib/ops", "/var/lib/ops/gateway"), ("relative", "/home/ops/.local/state/gateway")],
)
def test_the_state_folder_follows_the_xdg_specification(given: str, state: str) -> None:
    assert load(env={"XDG_STATE_HOME": given}).state_folder == Path(state)


def test_the_state_folder_is_that_of_the_state_file_or_the_one_given(tmp_path: Path) -> None:
    assert load(state="sqlite:///srv/gw/state.db").state_folder == Path("/srv/gw")
    for url in ("sqlite:///srv/gw/state.db", "redis://h:6379/0"):
        assert load(state=url, env={"GATEWAY_STATE_FOLDER": "/var/gw"}).state_folder == Path("/var/gw")
        assert load("state_folder: /etc/gw", tmp_path, state=url).state_folder == Path("/etc/gw")


def test_with_redis_the_state_folder_is_where_the_file_would_be() -> None:
    settings = load(state="rediss://h:6379/0", env={"XDG_STATE_HOME": "/var/lib/ops"})
    assert settings.state_folder == Path("/var/lib/ops/gateway")
    assert state_folder_of(settings.state, {"XDG_STATE_HOME": "/var/lib/ops"}) == settings.state_folder


def test_the_password_of_redis_is_held_apart_from_its_url() -> None:
    settings = load(state="redis://ann:s3cret@h:6379/0")
    assert (settings.state, settings.state_password) == ("redis://ann:@h:6379/0", Secret("s3cret"))
    assert "s3cret" not in repr(settings)
    assert load(state="redis://h:6379/0").state_password is None


def test_the_password_of_redis_may_come_by_a_variable_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("from the file\n")
    path.chmod(0o640)
    url = "redis://h:6379/0"
    assert load(state=url, env={"GATEWAY_REDIS_PASSWORD": "plain"}).state_password == Secret("plain")
    assert load(state=url, env={"GATEWAY_REDIS_PASSWORD_FILE": str(path)}).state_password == Secret("from the file")
    in_url = load(state="redis://:own@h:6379/0", env={"GATEWAY_REDIS_PASSWORD": "plain"})
    assert in_url.state_password == Secret("own")


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        (None, 0o600, "a text file that can be read"),
        (b"\xffs3cret", 0o600, "a text file that can be read"),
        (b" \n", 0o600, "others cannot use"),
        (b"s3cret" * 1_000, 0o600, "others cannot use"),
        (b"s3cret", 0o604, "others cannot use"),
    ],
    ids=["missing", "not text", "empty", "long", "for all to read"],
)
def test_a_password_file_that_cannot_be_used(tmp_path: Path, content: bytes | None, mode: int, expected: str) -> None:
    path = tmp_path / "s3cret-file"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    (fault,) = faults(env={"GATEWAY_REDIS_PASSWORD_FILE": str(path)})
    assert fault.startswith("GATEWAY_REDIS_PASSWORD_FILE: ")
    assert expected in fault
    assert "s3cret" not in fault


def test_two_passwords_are_one_too_many() -> None:
    (fault,) = faults(env={"GATEWAY_REDIS_PASSWORD": "s3cret", "GATEWAY_REDIS_PASSWORD_FILE": "/x"})
    assert fault == "GATEWAY_REDIS_PASSWORD and GATEWAY_REDIS_PASSWORD_FILE are both set. Keep one of them."


@pytest.mark.parametrize("url", ["redis://:s3cret@h:0", "redis://s3cret@h", "rediss://:s3cret@h?ca=s3cret", "redis:"])
def test_a_fault_of_a_redis_url_does_not_quote_it(url: str) -> None:
    (fault,) = faults(state=url)
    assert fault.startswith("--state: state: expected ")
    assert "s3cret" not in fault


FULL = """
listen: 0.0.0.0:80
admin: "[::1]:9999"
state: sqlite:///var/lib/gateway/state.db
policies: rules
engines:
  - url: http://127.0.0.1:8001
  - url: http://LOCALHOST:8002/
    labels: {gpu: a100, rack: 7}
  - http://[::1]
hosts: [Gateway.example, gateway.example:8080]
remote_engines: []
timeouts: {connect: 1.5, idle: 60}
attempts: 3
max_connections: 500
min_body_rate: 2048
"""


def test_a_file_says_everything(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    settings = load(FULL, tmp_path)
    assert settings.listen == Address("0.0.0.0", 80)
    assert settings.admin == Address("::1", 9999)
    assert str(settings.admin) == "[::1]:9999"
    assert settings.policies == tmp_path / "rules"
    assert settings.engines == (
        EngineSpec("http://127.0.0.1:8001"),
        EngineSpec("http://localhost:8002", {"gpu": "a100", "rack": "7"}),
        EngineSpec("http://[::1]:80"),
    )
    assert settings.hosts == ("gateway.example", "gateway.example:8080")
    assert settings.timeouts == Timeouts(connect=1.5, idle=60.0)
    assert (settings.attempts, settings.max_connections, settings.min_body_rate) == (3, 500, 2048)


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    text = "attempts: 3\nlisten: 127.0.0.1:1\nmax_connections: 5\ntimeouts: {idle: 5, drain: 6}\n"
    env = {"GATEWAY_LISTEN": "127.0.0.1:2", "GATEWAY_MAX_CONNECTIONS": "6", "GATEWAY_TIMEOUTS_IDLE": "7"}
    settings = load(text, tmp_path, env, listen="127.0.0.1:3", admin=None)
    assert settings.listen.port == 3
    assert settings.admin.port == 9090
    assert settings.max_connections == 6
    assert settings.attempts == 3
    assert (settings.timeouts.idle, settings.timeouts.drain, settings.timeouts.connect) == (7.0, 6.0, 2.0)


def test_the_environment_takes_lists_with_commas_and_names_the_file(tmp_path: Path) -> None:
    config = tmp_path / "other.yaml"
    config.write_text("attempts: 4\n")
    env = {"GATEWAY_ENGINES": "http://127.0.0.1:1, http://127.0.0.1:2", "GATEWAY_CONFIG": str(config)}
    settings = load(env=env)
    assert [engine.url for engine in settings.engines] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert settings.attempts == 4


def test_variables_that_kubernetes_sets_are_no_settings() -> None:
    assert load(env={"GATEWAY_PORT": "tcp://10.0.0.1:80", "GATEWAY_SERVICE_HOST": "10.0.0.1"}) == load()


@pytest.mark.parametrize(
    ("text", "octets"),
    [("512 MiB", 512 << 20), ("2GiB", 2 << 30), ("1048576", 1 << 20), ("2097152 B", 2 << 20), ("1024 KiB", 1 << 20)],
)
def test_a_size_is_bytes_or_text_with_a_unit(tmp_path: Path, text: str, octets: int) -> None:
    assert load(f"body_memory: {text}", tmp_path).body_memory == octets
    assert load(env={"GATEWAY_BODY_MEMORY": text}).body_memory == octets


@pytest.mark.parametrize(
    "text", ["1 MB", "1024 kib", "-1 GiB", "1.5 GiB", "1048575", "1025 GiB", "many", "true", "[1]"]
)
def test_what_is_no_size_is_a_fault(tmp_path: Path, text: str) -> None:
    (fault,) = faults(f"body_memory: {text}", tmp_path)
    assert fault.endswith(":1: body_memory: expected a size from 1048576 to 1099511627776 bytes, such as 512 MiB")


def test_all_faults_come_together_with_places(tmp_path: Path) -> None:
    text = "lisen: 127.0.0.1:80\nadmin: nowhere\ntimeouts:\n  idel: 3\n  idle: -1\nattempts: many\nfoo: 1\n"
    found = faults(
        text, tmp_path, {"GATEWAY_MAX_CONNECTIONS": "x"}, state="redis://:hunter2@h:0/0", engines=["ftp://x"]
    )
    file = tmp_path / "gateway.yaml"
    assert set(found) == {
        f"{file}:1: unknown setting 'lisen'; did you mean listen?",
        f"{file}:2: admin: expected HOST:PORT, such as 127.0.0.1:8080, an IPv6 host in brackets, a port up to 65535",
        f"{file}:4: unknown setting 'timeouts.idel'; did you mean timeouts.idle?",
        f"{file}:5: timeouts.idle: expected seconds, more than 0 and at most 86400",
        f"{file}:6: attempts: expected a whole number from 1 to 10",
        f"{file}:7: unknown setting 'foo'",
        "GATEWAY_MAX_CONNECTIONS: max_connections: expected a whole number from 1 to 1000000",
        "--state: state: expected HOST:PORT of a Redis, an IPv6 host in brackets, a port from 1 to 65535",
        "--engine: engines: expected http://HOST:PORT without user, path or query",
    }


@pytest.mark.parametrize(
    ("listen", "admin", "met"),
    [
        ("127.0.0.1:9090", None, True),
        (None, "127.0.0.1:8080", True),
        ("0.0.0.0:9090", None, True),
        ("127.0.0.1:7000", "[::]:7000", True),
        ("127.0.0.1:7000", "127.0.0.2:7000", False),
        ("127.0.0.1:7000", "127.0.0.1:7001", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_listeners_do_not_share_an_address(listen: str | None, admin: str | None, met: bool) -> None:
    """Both could be bound, and then one of them would never be reached."""
    if met:
        assert faults(listen=listen, admin=admin) == (
            "listen, admin: expected two addresses, such as 127.0.0.1:8080 and 127.0.0.1:9090",
        )
    else:
        assert load(listen=listen, admin=admin)


def test_unknown_names_come_in_the_order_of_the_file_with_what_is_near(tmp_path: Path) -> None:
    found = faults("zzz: 1\nlisen: x\ndiscovery: {qqq: 1}\nyyy: 1\n", tmp_path)
    assert [fault.partition("unknown setting ")[2] for fault in found] == [
        "'zzz'",
        "'lisen'; did you mean listen?",
        "'discovery.qqq'; expected one of file, dns, srv, kubernetes, interval",
        "'yyy'",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@127.0.0.1:8000",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000?x=1",
        "http://127.0.0.1:8000#x",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:8000\n",
        "http://127.0.0.1 :8000",
        "http://:8000",
        "http://[::1",
        "http://[127.0.0.1]:8000",
        "http://127.1:8000",
        "http://0x7f000001:8000",
        "http://2130706433:8000",
        "127.0.0.1:8000",
        "unix:///run/engine.sock",
    ],
)
def test_a_malformed_engine_url_is_refused_unquoted(url: str) -> None:
    (fault,) = faults(engines=[url])
    assert fault.startswith("--engine: engines: expected ")
    assert "hunter2" not in fault


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "0.0.0.0", "[::]", "example.com", "localhost.example.com", "[2001:db8::1]"]
)
def test_prompts_do_not_leave_the_host_in_the_clear(host: str) -> None:
    (fault,) = faults(engines=[f"http://{host}:8000"])
    assert "expected a loopback host" in fault


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_is_allowed(host: str) -> None:
    assert load(engines=[f"http://{host}:8000"]).engines == (EngineSpec(f"http://{host}:8000"),)


def test_an_https_engine_elsewhere_has_to_be_listed(tmp_path: Path) -> None:
    (fault,) = faults(engines=["https://gpu7.example:8443"])
    assert fault == "--engine: engines: expected the host of an https engine to be listed in remote_engines"
    for listed in ("gpu7.example", "GPU7.example.", ".sites.test, gpu7.example"):
        settings = load(f"remote_engines: [{listed}]\n", tmp_path, engines=["https://GPU7.example"])
        assert settings.engines == (EngineSpec("https://gpu7.example:443"),)
    assert len(faults(engines=["https://localhost:8443"])) == 1  # whoever asks for TLS says whom to trust


@pytest.mark.parametrize(
    ("listed", "host", "allowed"),
    [
        (".serving.svc", "a.serving.svc", True),
        (".serving.svc", "b.a.serving.svc", True),
        (".serving.svc", "serving.svc", False),
        (".serving.svc", "xserving.svc", False),
        (".serving.svc", "a.serving.svc.attacker.test", False),
        ("serving.svc", "a.serving.svc", False),
        ("10.0.0.7", "10.0.0.7", True),
        ("[2001:DB8::7]", "[2001:db8::7]", True),
        ("10.0.0.7", "10.0.0.8", False),
    ],
)
def test_remote_hosts_are_listed_by_name_or_by_suffix(listed: str, host: str, allowed: bool) -> None:
    env = {"GATEWAY_REMOTE_ENGINES": listed, "GATEWAY_ENGINES": f"https://{host}:8443"}
    if allowed:
        assert load(env=env).engines == (EngineSpec(f"https://{host}:8443"),)
    else:
        assert len(faults(env=env)) == 1


@pytest.mark.parametrize(
    "listed",
    [
        ".svc",
        ".",
        "..svc.a",
        "*.serving.svc",
        "gpu7.example:8443",
        "10.0",
        ".0.0.7",
        "https://h.example",
        "7",
        "x" * 64,
    ],
)
def test_what_is_no_remote_host_is_a_fault(listed: str) -> None:
    (fault,) = faults(env={"GATEWAY_REMOTE_ENGINES": listed})
    assert fault.startswith("GATEWAY_REMOTE_ENGINES: remote_engines: expected a host name or address without port")


def test_engines_may_be_vouched_for_by_authorities_of_ones_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert load(f"engine_ca: {authority.ca.name}\n", tmp_path).engine_ca == authority.ca
    assert load(env={"GATEWAY_ENGINE_CA": str(authority.ca)}).engine_ca == authority.ca
    assert load().engine_ca is None
    (tmp_path / "empty.pem").write_text("")
    for path in ("missing.pem", "empty.pem", "gateway.yaml", ".", '""', "7", "[a]"):
        (fault,) = faults(f"engine_ca: {path}\n", tmp_path)
        assert ":1: engine_ca: expected" in fault


def test_the_key_of_engines_comes_by_a_variable_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-the-file\n")
    path.chmod(0o600)
    assert load().engine_key is None
    assert load(env={"GATEWAY_ENGINE_KEY": "plain"}).engine_key == Secret("plain")
    settings = load(env={"GATEWAY_ENGINE_KEY_FILE": str(path)})
    assert settings.engine_key == Secret("from-the-file")
    assert "from-the-file" not in repr(settings)
    (fault,) = faults(env={"GATEWAY_ENGINE_KEY_FILE": str(path), "GATEWAY_ENGINE_KEY": "plain"})
    assert fault == "GATEWAY_ENGINE_KEY and GATEWAY_ENGINE_KEY_FILE are both set. Keep one of them."
    path.chmod(0o604)
    (fault,) = faults(env={"GATEWAY_ENGINE_KEY_FILE": str(path)})
    assert fault == "GATEWAY_ENGINE_KEY_FILE: expected a key in a file that others cannot use (chmod 600)"


@pytest.mark.parametrize("key", ["s3cret key", "s3cret\r\nx-injected: 1", "s3cr\u00e9t", "s3cret\x7f"])
def test_a_key_that_does_not_fit_into_a_header_is_a_fault(key: str) -> None:
    (fault,) = faults(env={"GATEWAY_ENGINE_KEY": key})
    assert fault == "GATEWAY_ENGINE_KEY: expected a key of printable ASCII characters without spaces"


DISCOVERY = """
remote_engines: [vllm-nodes.serving.svc, .pods.test]
discovery:
  file: engines.yaml
  dns: ["VLLM-nodes.serving.svc:8443", localhost:8001, a.b.pods.test.:1]
  srv: _https._tcp.nodes.pods.test
  kubernetes: serving/vllm-nodes:https
  interval: 2.5
"""


def test_where_engines_are_found(tmp_path: Path) -> None:
    assert load().discovery == DiscoverySettings(None, (), (), None, 5.0)
    assert load(DISCOVERY, tmp_path).discovery == DiscoverySettings(
        file=tmp_path / "engines.yaml",
        dns=(Address("vllm-nodes.serving.svc", 8443), Address("localhost", 8001), Address("a.b.pods.test.", 1)),
        srv=("_https._tcp.nodes.pods.test",),
        kubernetes=Pods("serving", "vllm-nodes", "https"),
        interval=2.5,
    )


def test_where_engines_are_found_by_variables(tmp_path: Path) -> None:
    env = {
        "GATEWAY_REMOTE_ENGINES": "a.test,b.serving.svc",
        "GATEWAY_DISCOVERY_FILE": "/etc/engines.yaml",
        "GATEWAY_DISCOVERY_DNS": "a.test:1, localhost:2",
        "GATEWAY_DISCOVERY_SRV": "a.test,b.test",
        "GATEWAY_DISCOVERY_KUBERNETES": "serving/b:8443",
        "GATEWAY_DISCOVERY_INTERVAL": "1",
    }
    assert load(env=env).discovery == DiscoverySettings(
        Path("/etc/engines.yaml"),
        (Address("a.test", 1), Address("localhost", 2)),
        ("a.test", "b.test"),
        Pods("serving", "b", 8443),
        1.0,
    )
    overridden = load("discovery: {dns: localhost:9, interval: 3}\n", tmp_path, {"GATEWAY_DISCOVERY_INTERVAL": "1"})
    assert overridden.discovery == DiscoverySettings(dns=(Address("localhost", 9),), interval=1.0)


def test_every_name_that_leads_elsewhere_has_to_be_listed(tmp_path: Path) -> None:
    text = DISCOVERY.replace("[vllm-nodes.serving.svc, .pods.test]", "[]")
    file = tmp_path / "gateway.yaml"
    assert set(faults(text, tmp_path)) == {
        f"{file}:5: discovery.dns: expected the host to be listed in remote_engines, or localhost",
        f"{file}:6: discovery.srv: expected remote_engines to list the hosts that its targets may have",
        f"{file}:7: discovery.kubernetes: expected SERVICE.NAMESPACE.svc to be listed in remote_engines",
    }
    assert len(faults(text, tmp_path)) == 4  # both remote names of discovery.dns


def test_srv_records_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "find_spec", lambda name: None)
    env = {"GATEWAY_REMOTE_ENGINES": "a.test", "GATEWAY_DISCOVERY_SRV": "a.test"}
    (fault,) = faults(env=env)
    assert fault == "GATEWAY_DISCOVERY_SRV: discovery.srv: expected the package dnspython: pip install 'gateway[dns]'"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dns", "10.0.0.1:8443", "NAME:PORT, such as"),
        ("dns", "[::1]:8443", "NAME:PORT"),
        ("dns", "127.1:8443", "NAME:PORT"),
        ("dns", "localhost", "NAME:PORT"),
        ("dns", "localhost:0", "NAME:PORT"),
        ("dns", "localhost:65536", "NAME:PORT"),
        ("dns", "http://localhost:1", "NAME:PORT"),
        ("dns", "_https._tcp.a.test:1", "NAME:PORT"),
        ("dns", "hunter2@localhost:1", "NAME:PORT"),
        ("dns", ",".join(f"localhost:{port}" for port in range(1, 18)), "at most 16 names"),
        ("srv", "10.0.0.1", "a name that has SRV records"),
        ("srv", "_a._b._c.test", "a name that has SRV records"),
        ("srv", "hunter2:1", "a name that has SRV records"),
        ("kubernetes", "nodes:8443", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "serving/nodes", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "serving/nodes:0", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "serving/nodes:70000", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "../nodes:1", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "a/b/c:1", "NAMESPACE/SERVICE:PORT"),
        ("kubernetes", "Serving/nodes:1", "NAMESPACE/SERVICE:PORT"),
        ("interval", "0", "seconds"),
        ("file", "a\0b", "the path of a file"),
    ],
)
def test_a_malformed_place_to_find_engines_is_refused_unquoted(name: str, value: str, expected: str) -> None:
    variable = f"GATEWAY_DISCOVERY_{name.upper()}"
    (fault,) = faults(env={variable: value})
    assert fault.startswith(f"{variable}: discovery.{name}: expected {expected}")
    assert "hunter2" not in fault


def test_discovery_is_a_group_of_settings(tmp_path: Path) -> None:
    (fault,) = faults("discovery: localhost:8001\n", tmp_path)
    assert fault.endswith(":1: discovery: expected settings, such as {dns: vllm-nodes.serving.svc:8443}")
    (fault,) = faults("discovery: {dsn: localhost:8001}\n", tmp_path)
    assert fault.endswith("unknown setting 'discovery.dsn'; did you mean discovery.dns?")
    (fault,) = faults("discovery: {kubernetes: [a/b:1]}\n", tmp_path)
    assert "NAMESPACE/SERVICE:PORT" in fault


def test_an_engine_given_twice_is_a_fault() -> None:
    assert len(faults(engines=["http://127.0.0.1:8000", "http://127.0.0.1:8000/"])) == 2


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("engines:\n  - urls: http://127.0.0.1:1\n", 2, "only url and labels in an engine"),
        ("engines:\n  - labels: {}\n", 2, "url in an engine"),
        ("engines:\n  - url: http://127.0.0.1:1\n    labels: [a]\n", 3, "labels as names and texts"),
        ("engines: 5\n", 1, "a list of engines"),
        ("hosts:\n  - ok.example\n  - not ok\n", 3, "a host name"),
        ("timeouts: 5\n", 1, "expected settings"),
        ("- listen\n", 1, "expected settings"),
        ("listen: 8080\n", 1, "HOST:PORT"),
        ("listen: 127.0.0.1:99999\n", 1, "HOST:PORT"),
        ("attempts: true\n", 1, "a whole number"),
        ("attempts: 2.5\n", 1, "a whole number"),
        ("probe_interval: .inf\n", 1, "seconds"),
        ("policies: nowhere\n", 1, "a folder that exists"),
        ("attempts: 1\nattempts: 2\n", 2, "only once"),
        ("a: &x 1\nb: *x\n", 1, "no YAML aliases"),
        ("attempts: [1\n", 2, "expected YAML"),
        ("attempts: !!python/object:os.system x\n", 1, "expected YAML"),
        ("attempts: 2020-13-45\n", 1, "plain value"),
    ],
)
def test_each_fault_of_a_file_has_its_line(tmp_path: Path, text: str, line: int, expected: str) -> None:
    found = faults(text, tmp_path)
    assert any(f"gateway.yaml:{line}: " in fault and expected in fault for fault in found), found


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x: \x00", b"#" * (1 << 20) + b"#"])
def test_a_file_that_is_no_text_is_a_fault(tmp_path: Path, content: bytes) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_bytes(content)
    with pytest.raises(SettingsFault, match=r"gateway\.yaml: expected|gateway\.yaml:1: expected"):
        load_settings({}, ENV, config)


def test_a_missing_file_is_a_fault_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match="cannot be read: No such file"):
        load_settings({}, ENV, tmp_path / "none.yaml")
    assert load("", tmp_path) == load()


def test_variables_are_named_by_rule() -> None:
    assert variable("timeouts.first_byte") == "GATEWAY_TIMEOUTS_FIRST_BYTE"


def test_a_certificate_and_its_key_are_files_beside_the_configuration(tmp_path: Path) -> None:
    pem = Authority(tmp_path).pem("gateway.test")
    settings = load(f"tls: {{certificate: {pem.name}, key: {pem.name}}}\n", tmp_path)
    assert settings.tls == TlsSettings(pem, pem)
    env = {"GATEWAY_TLS_CERTIFICATE": str(pem), "GATEWAY_TLS_KEY": str(pem)}
    assert load(env=env).tls == TlsSettings(pem, pem)
    assert load().tls is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tls: on\n", "tls: expected settings, such as {certificate: chain.pem, key: key.pem}"),
        ("tls: {certificate: a.pem}\n", "tls: expected both certificate and key, or neither"),
        ("tls: {key: a.pem}\n", "tls: expected both certificate and key, or neither"),
        ("tls: {certificate: a.pem, key: 5}\n", "tls.key: expected the path of a file"),
        ("tls: {certificate: none.pem, key: a.pem}\n", "tls: expected a PEM chain in certificate, and its key,"),
        ("tls: {certificate: a.pem, key: b.pem}\n", "tls: expected a PEM chain in certificate, and its key,"),
        ("tls: {certificate: a.pem, key: open.pem}\n", "tls.key: expected a file that others cannot use"),
        ("tls: {certificate: a.pem, kee: a.pem}\n", "unknown setting 'tls.kee'; did you mean tls.key?"),
    ],
)
def test_what_is_no_certificate_with_its_key_is_a_fault(tmp_path: Path, text: str, expected: str) -> None:
    for name in ("a", "b"):
        Authority(tmp_path, name).pem("gateway.test").rename(tmp_path / f"{name}.pem")
    (tmp_path / "open.pem").write_bytes((tmp_path / "a.pem").read_bytes())
    assert any(expected in fault for fault in faults(text, tmp_path))


@pytest.mark.parametrize(
    ("listen", "admin", "warned"),
    [
        ("127.0.0.1:1", "[::1]:2", []),
        ("0.0.0.0:1", "127.0.0.1:2", ["listen"]),
        ("127.0.0.2:1", "[::]:2", ["admin"]),
        ("10.0.0.1:1", "192.0.2.1:2", ["listen", "admin"]),
    ],
)
def test_who_listens_to_others_without_tls_is_warned(
    tmp_path: Path, listen: str, admin: str, warned: list[str]
) -> None:
    said = list(open_to_readers(load(listen=listen, admin=admin)))
    assert [line.split()[1] for line in said] == warned
    pem = str(Authority(tmp_path).pem("gateway.test"))
    env = {"GATEWAY_TLS_CERTIFICATE": pem, "GATEWAY_TLS_KEY": pem}
    assert list(open_to_readers(load(listen=listen, admin=admin, env=env))) == []


README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_file_in_the_readme_names_every_setting_with_its_default(tmp_path: Path) -> None:
    """What stands there is valid and changes nothing; what stands behind a mark is known to the settings as well."""
    block = README.partition("### gateway.yaml")[2].partition("```yaml\n")[2].partition("```")[0]
    assert load(block, tmp_path) == load()
    shown = re.findall(r"^(?:# )?([a-z_]+):|^  (?:# )?([a-z_]+):", block, re.MULTILINE)
    assert {top or f"discovery.{inner}" for top, inner in shown} >= {
        name for name in settings_module._PARSERS if not name.startswith(("timeouts.", "tls."))
    }
    assert set(re.findall(r"[{ ]([a-z_]+): [0-9]", block.partition("timeouts:")[2].partition("}")[0])) == {
        name.removeprefix("timeouts.") for name in settings_module._PARSERS if name.startswith("timeouts.")
    }
    every = re.sub(r"^( *)# ", r"\1", block, flags=re.MULTILINE)
    (tmp_path / "my-policies").mkdir()
    assert [fault for fault in faults(every, tmp_path) if "unknown" in fault or "expected YAML" in fault] == []
