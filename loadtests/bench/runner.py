"""Starts the engine and the targets, and runs every scenario against them in turn."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.bench.install import InstallFailed
from loadtests.bench.load import Job, Outcome
from loadtests.bench.procs import Cores, Process, StartFailed, Usage, free_port, layout, usage
from loadtests.bench.scenarios import Scenario
from loadtests.bench.targets import Stage, Target, python_path

ENGINE_READY_SECONDS = 15.0

Tell = Callable[[str], None]
"""Where progress goes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each run lasts and how often it is repeated."""

    seconds: float = 3.0
    requests: int = 0
    repeat: int = 3
    warmup_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one scenario against one target."""

    scenario: str
    target: str
    outcome: Outcome
    cpu_seconds: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Running:
    """A target that answers."""

    target: Target
    port: int
    pid: int
    credential: str


@dataclass(frozen=True, slots=True)
class Bench:
    """All that was measured, and the targets that could not be, with the reason."""

    samples: tuple[Sample, ...]
    unavailable: dict[str, str]
    cores: Cores
    load_before: float
    """Load average of the host over the minute before: what others ran there."""


@dataclass(frozen=True, slots=True)
class Stand:
    """The engine, the folder and the cores that all runs of a bench share."""

    folder: Path
    cores: Cores
    engine: Process
    engine_port: int


def module(name: str) -> list[str]:
    return [sys.executable, "-m", f"loadtests.bench.{name}"]


@contextmanager
def stand(cores: Cores) -> Iterator[Stand]:
    """A running engine and a temporary folder. Raises `StartFailed`."""
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as name:
        folder = Path(name)
        with Process("engine", module("engine"), folder, cores.engine, environ=python_path(), talk=True) as engine:
            port = int(json.loads(engine.hear())["port"])
            engine.wait_until_ready(f"http://127.0.0.1:{port}/health", ENGINE_READY_SECONDS)
            yield Stand(folder, cores, engine, port)


def start(target: Target, at: Stand, stack: ExitStack) -> Running:
    """Installs and starts a target; `stack` ends it. Raises `InstallFailed`, `StartFailed`."""
    if target.command is None:
        return Running(target, at.engine_port, at.engine.pid, "")
    folder = at.folder / target.name
    folder.mkdir()
    stage = Stage(f"http://127.0.0.1:{at.engine_port}", free_port(), free_port(), folder, target.install())
    process = Process(target.name, target.command(stage), folder, at.cores.target, environ=target.environ)
    stack.enter_context(process)
    process.wait_until_ready(f"http://127.0.0.1:{stage.port}{target.ready}", target.ready_seconds)
    return Running(target, stage.port, process.pid, target.credential(stage))


def start_all(
    targets: Sequence[Target], at: Stand, stack: ExitStack, tell: Tell
) -> tuple[list[Running], dict[str, str]]:
    """The targets that run, and why the others do not."""
    running: list[Running] = []
    unavailable: dict[str, str] = {}
    for target in targets:
        tell(f"starting {target.name}: {target.summary}")
        try:
            running.append(start(target, at, stack))
        except (InstallFailed, StartFailed) as error:
            unavailable[target.name] = str(error)
            tell(f"{target.name} is left out: {error}")
    return running, unavailable


def measure(scenario: Scenario, running: Running, at: Stand, plan: Plan) -> Sample:
    """One run. The target's CPU is read between the load generator's warm-up and its first request, and at the end.

    Raises `StartFailed` when the load generator ends without a result.
    """
    job = Job(
        scenario=scenario.name,
        port=running.port,
        credential=running.credential,
        seconds=plan.seconds,
        requests=plan.requests,
        warmup_seconds=plan.warmup_seconds,
        slack=running.target.slack,
    )
    with Process("load", module("load"), at.folder, at.cores.load, environ=python_path(), talk=True) as load:
        load.tell(json.dumps(asdict(job)))
        said = json.loads(load.hear())
        before = usage(running.pid)
        if said.get("ready"):
            load.tell("go")
            said = json.loads(load.hear())
        return sample(scenario, running, Outcome(**said), before, usage(running.pid))


def sample(scenario: Scenario, running: Running, outcome: Outcome, before: Usage, after: Usage) -> Sample:
    return Sample(
        scenario=scenario.name,
        target=running.target.name,
        outcome=outcome,
        cpu_seconds=max(0.0, after.cpu_seconds - before.cpu_seconds),  # a target that died has used nothing
        rss_bytes=after.rss_bytes,
    )


def turns(
    scenarios: Sequence[Scenario], running: Sequence[Running], repeat: int
) -> Iterator[tuple[int, Scenario, Running]]:
    """The order of the runs: A B C, A B C, so that a noisy minute hits all targets alike."""
    for scenario in scenarios:
        for number in range(repeat):
            for each in running:
                if scenario.suits(each.target.name):
                    yield number, scenario, each


def bench(
    scenarios: Sequence[Scenario], targets: Sequence[Target], plan: Plan, available: frozenset[int], tell: Tell
) -> Bench:
    """Runs everything. Raises `StartFailed` when the engine or the load generator does not work."""
    cores = layout(available)
    load_before = os.getloadavg()[0]
    if cores.note:
        tell(cores.note)
    samples: list[Sample] = []
    with stand(cores) as at, ExitStack() as stack:
        running, unavailable = start_all(targets, at, stack, tell)
        for number, scenario, each in turns(scenarios, running, plan.repeat):
            one = measure(scenario, each, at, plan)
            samples.append(one)
            tell(line(number, plan.repeat, one))
    return Bench(tuple(samples), unavailable, cores, load_before)


def line(number: int, repeat: int, one: Sample) -> str:
    """One line of progress."""
    done = one.outcome
    trouble = f"  {done.errors} ERRORS: {done.first_errors[0]}" if done.errors else ""
    rate = done.requests / done.seconds if done.seconds else 0.0
    return f"{one.scenario} {number + 1}/{repeat} {one.target}: {done.requests} requests, {rate:,.0f}/s{trouble}"
