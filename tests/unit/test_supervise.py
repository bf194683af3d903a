"""Loops that go on, and one that must not be missed when it dies."""

from __future__ import annotations

import asyncio

import pytest

from gateway.supervise import Supervisor


def _run(body):
    async def bounded():
        async with asyncio.timeout(5):
            return await body()

    return asyncio.run(bounded())


def test_a_loop_begins_at_once_and_goes_on():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        times, enough = [], asyncio.Event()

        async def step():
            times.append(1)
            if len(times) == 5:
                enough.set()

        supervisor.run_every("beat", 0.001, step)
        await enough.wait()
        await supervisor.close()
        assert not supervisor.failed.done()

    _run(body)


def test_the_interval_counts_from_the_end_of_a_step():
    """A step that takes longer than the interval is never run twice at once."""

    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        running, seen, enough = [], [], asyncio.Event()

        async def step():
            running.append(1)
            seen.append(len(running))
            await asyncio.sleep(0.005)
            running.pop()
            if len(seen) > 3:
                enough.set()

        supervisor.run_every("slow", 0.0, step)
        await enough.wait()
        await supervisor.close()
        assert set(seen) == {1}

    _run(body)


def test_an_unexpected_error_is_known_and_the_other_loops_go_on():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        after, gone_on = [], asyncio.Event()

        async def steady():
            if supervisor.failed.done():
                after.append(1)
                gone_on.set()

        async def dies():
            raise LookupError("unforeseen")

        supervisor.run_every("steady", 0.001, steady)
        doomed = supervisor.run_every("doomed", 0.001, dies)
        error = await supervisor.failed
        assert isinstance(error, LookupError)
        assert doomed.done()
        await gone_on.wait()
        await supervisor.close()

    _run(body)


def test_of_two_errors_the_first_is_kept():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        second = asyncio.Event()

        async def first_to_die():
            raise LookupError

        async def next_to_die():
            await supervisor.failed
            second.set()
            raise ValueError

        supervisor.start("first", first_to_die())
        late = supervisor.start("next", next_to_die())
        await second.wait()
        await asyncio.wait([late])
        assert isinstance(supervisor.failed.result(), LookupError)
        await supervisor.close()

    _run(body)


def test_an_end_without_an_error_is_no_failure():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())

        async def ends():
            return 7

        assert await supervisor.start("ends", ends()) == 7
        await supervisor.close()
        assert not supervisor.failed.done()

    _run(body)


def test_tasks_have_the_names_that_they_were_given():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())

        async def waits():
            await asyncio.Event().wait()

        supervisor.run_every("probe", 1.0, waits)
        supervisor.start("publish", waits())
        assert {task.get_name() for task in asyncio.all_tasks()} >= {"probe", "publish"}
        await supervisor.close()

    _run(body)


def test_close_waits_until_all_has_ended_and_may_come_twice():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        began, tidied = asyncio.Event(), []

        async def holds_something():
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                tidied.append(True)

        task = supervisor.start("holder", holds_something())
        await began.wait()
        await supervisor.close()
        assert tidied == [True]
        assert task.cancelled()
        await supervisor.close()
        assert not supervisor.failed.done()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    _run(body)


def test_close_survives_a_task_that_fails_while_it_is_cancelled():
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())
        began = asyncio.Event()

        async def clumsy():
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise OSError from None

        supervisor.start("clumsy", clumsy())
        await began.wait()
        await supervisor.close()
        assert isinstance(supervisor.failed.result(), OSError)

    _run(body)


@pytest.mark.parametrize("count", [0, 50])
def test_ended_tasks_are_not_kept(count):
    async def body():
        supervisor = Supervisor(asyncio.get_running_loop())

        async def ends():
            return None

        await asyncio.gather(*(supervisor.start("brief", ends()) for _ in range(count)))
        await supervisor.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    _run(body)
