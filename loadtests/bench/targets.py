"""What is measured: one entry per target, with how to install it, start it, and get a key for it."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from loadtests.bench import install
from loadtests.bench.named import named
from loadtests.bench.procs import StartFailed
from loadtests.bench.scenarios import MODEL

VLLM_ROUTER = "0.1.17"
SMG = "1.13.0"
LITELLM = "1.110.2"
LITELLM_KEY = "sk-bench-0123456789abcdef0123456789abcdef"
KEY_SECONDS = 30.0
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a target is given: the engine, two free ports, a folder to write to, and where it is installed."""

    engine: str
    port: int
    spare_port: int
    folder: Path
    home: Path


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to measure. `command` None means the engine itself, without anything in front of it."""

    name: str
    summary: str
    version: str = ""
    peer: bool = False
    command: Callable[[Stage], Sequence[str]] | None = None
    install: Callable[[], Path] = Path
    """Returns where it is. Raises `install.InstallFailed`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    ready_seconds: float = 60.0
    credential: Callable[[Stage], str] = lambda stage: ""
    slack: int = 0
    """Events of a stream that it merges or drops."""


def python_path() -> dict[str, str]:
    """Lets a child that runs in another folder import this repository's packages, installed or not."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([inherited] if inherited else [])])}


def state_url(stage: Stage) -> str:
    return f"sqlite:///{stage.folder / 'state.db'}"


def gateway_command(stage: Stage) -> list[str]:
    listeners = ["--listen", f"127.0.0.1:{stage.port}", "--admin", f"127.0.0.1:{stage.spare_port}"]
    engine = ["--engine", stage.engine]
    places = ["--state", state_url(stage), "--policies", str(gateway_policies(stage))]
    return [sys.executable, "-m", "gateway", "serve", *engine, *listeners, *places]


def policies_folder(stage: Stage) -> Path:
    return stage.folder / "policies"


def gateway_policies(stage: Stage) -> Path:
    """The shipped policies, but for the brake on failed attempts: the refused requests of a bench are all of them."""
    folder = policies_folder(stage)
    folder.mkdir(exist_ok=True)
    for name in ("access.yaml", "guards.yaml", "routing.yaml"):
        text = files("policies").joinpath(name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("\nfailures: 60 ", "\nfailures: 1000000 "), encoding="utf-8")
    return folder


def gateway_key(stage: Stage, name: str = "bench", options: Sequence[str] = ()) -> str:
    """A key made as an operator makes one, with every kind of limit, none in reach. Raises `StartFailed`.

    ``options`` are further ones of ``gateway keys create``, such as a role of the target's own policy.
    """
    limits = ["--rpm", "10000000", "--tpm", "1000000000000", "--tpd", "1000000000000", "--concurrency", "1000000"]
    command = [sys.executable, "-m", "gateway", "keys", "create", name, *limits, *options, "--state", state_url(stage)]
    try:
        done = subprocess.run(
            command,
            cwd=stage.folder,
            env={**os.environ, **python_path(), "GATEWAY_POLICIES": str(policies_folder(stage))},
            capture_output=True,
            text=True,
            timeout=KEY_SECONDS,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise StartFailed(f"gateway keys create: {install.last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise StartFailed(f"gateway keys create: no end after {KEY_SECONDS:.0f} s") from error
    return done.stdout.strip()


def vllm_router_command(stage: Stage) -> list[str]:
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(stage.spare_port)]
    listen = ["--host", "127.0.0.1", "--port", str(stage.port)]
    return [str(stage.home / "bin" / "vllm-router"), *listen, "--worker-urls", stage.engine, *metrics]


def round_robin_command(stage: Stage) -> list[str]:
    return [*vllm_router_command(stage), "--policy", "round_robin"]


def smg_command(stage: Stage) -> list[str]:
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(stage.spare_port)]
    listen = ["--host", "127.0.0.1", "--port", str(stage.port)]
    return [str(stage.home / "bin" / "smg"), "launch", *listen, "--worker-urls", stage.engine, *metrics]


def litellm_command(stage: Stage) -> list[str]:
    """One OpenAI-compatible model, one worker, no database; a master key, without which it does not start."""
    config = stage.folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        f"  - model_name: {MODEL}\n"
        "    litellm_params:\n"
        f"      model: openai/{MODEL}\n"
        f"      api_base: {stage.engine}/v1\n"
        "      api_key: none\n"
    )
    listen = ["--host", "127.0.0.1", "--port", str(stage.port), "--num_workers", "1"]
    return [str(stage.home / "bin" / "litellm"), "--config", str(config), *listen]


NGINX = """
daemon off;
worker_processes 1;
error_log stderr warn;
pid {folder}/nginx.pid;
{user}
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/nginx.access.log;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  client_max_body_size 8m;
  client_body_buffer_size 512k;
  keepalive_requests 1000000000;
  upstream engine {{ server {engine}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def nginx_command(stage: Stage) -> list[str]:
    """A plain reverse proxy: one worker, connections kept to both sides, no buffering, an access log."""
    config = stage.folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # the worker must be able to write to our folder
    engine = stage.engine.removeprefix("http://")
    config.write_text(NGINX.format(folder=stage.folder, port=stage.port, engine=engine, user=user))
    return [str(stage.home), "-p", str(stage.folder), "-c", str(config), "-e", "stderr"]


BASELINE = "vllm-router"
"""The peer that the gateway's figures are divided by."""

TARGETS: tuple[Target, ...] = (
    Target("direct", "the canned engine, nothing in front of it; its CPU is the engine's own"),
    Target(
        "gateway",
        "this gateway with its defaults: one key with all limits, one alias, one engine",
        command=gateway_command,
        environ=python_path(),
        ready="/readyz",
        credential=gateway_key,
    ),
    Target(
        BASELINE,
        "vLLM's Rust router with its default policy (cache_aware)",
        version=VLLM_ROUTER,
        peer=True,
        command=vllm_router_command,
        install=lambda: install.environment(f"vllm-router-{VLLM_ROUTER}", f"vllm-router=={VLLM_ROUTER}"),
    ),
    Target(
        "vllm-router-rr",
        "the same with the policy round_robin",
        version=VLLM_ROUTER,
        peer=True,
        command=round_robin_command,
        install=lambda: install.environment(f"vllm-router-{VLLM_ROUTER}", f"vllm-router=={VLLM_ROUTER}"),
    ),
    Target(
        "smg",
        "Shepherd Model Gateway (Rust) with its defaults",
        version=SMG,
        peer=True,
        command=smg_command,
        install=lambda: install.environment(f"smg-{SMG}", f"smg=={SMG}"),
        ready="/readiness",
    ),
    Target(
        "litellm",
        "LiteLLM proxy, one worker, no database",
        version=LITELLM,
        peer=True,
        command=litellm_command,
        install=lambda: install.litellm(f"litellm-{LITELLM}", LITELLM),
        environ={"LITELLM_MASTER_KEY": LITELLM_KEY, "LITELLM_TELEMETRY": "False"},
        ready="/health/liveliness",
        ready_seconds=120.0,
        credential=lambda stage: LITELLM_KEY,
        slack=2,
    ),
    Target(
        "nginx",
        "a plain reverse proxy, one worker, no buffering",
        peer=True,
        command=nginx_command,
        install=lambda: install.nginx("nginx"),
    ),
)


class UnknownTarget(ValueError):
    """A name that is not in the table."""


def select(names: Sequence[str], *, peers: bool) -> tuple[Target, ...]:
    """The named targets in the table's order; without names direct and gateway, and the peers too if `peers`.

    Raises `UnknownTarget`.
    """
    if names:
        return named(TARGETS, names, "target", UnknownTarget)
    return tuple(target for target in TARGETS if peers or not target.peer)
