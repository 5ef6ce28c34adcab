"""The virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from motley.core.errors import TrainingError
from motley.run.clock import VirtualLoop


def make(**options: object) -> VirtualLoop:
    return VirtualLoop(**options)  # type: ignore[abstract, arg-type]


def test_sleeping_takes_no_time_and_moves_the_clock() -> None:
    loop = make(now=100.0)

    async def main() -> float:
        await asyncio.sleep(3600)
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert loop.run(main()) == 3700.0
    assert not loop.is_running()


def test_timers_fire_in_the_order_of_their_time_then_of_their_making() -> None:
    loop = make()
    seen: list[tuple[str, float]] = []

    async def one(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def main() -> None:
        waits = {"a": 3.0, "b": 1.0, "c": 3.0, "d": 2.0, "e": 1.0}
        await asyncio.gather(*(one(name, seconds) for name, seconds in waits.items()))

    loop.run(main())
    assert seen == [("b", 1.0), ("e", 1.0), ("d", 2.0), ("a", 3.0), ("c", 3.0)]


def test_deliveries_come_before_timeouts_of_the_same_moment_and_in_order_of_dispatch() -> None:
    loop = make()
    seen: list[str] = []

    async def timeout() -> None:
        await asyncio.sleep(5.0)
        seen.append("timeout")

    async def main() -> None:
        for number in (2, 0, 1):
            loop.deliver_at(5.0, number, seen.append, f"delivery {number}")
        await timeout()

    loop.run(main())
    assert seen == ["delivery 0", "delivery 1", "delivery 2", "timeout"]


def test_a_delivery_comes_at_exactly_that_moment_even_if_it_is_now() -> None:
    loop = make(now=0.1)
    times: list[float] = []

    async def main() -> None:
        for when in (0.1, 0.3, 1.1, 1.1):
            reached = loop.create_future()
            loop.deliver_at(when, 0, reached.set_result, None)
            await reached
            times.append(loop.time())

    loop.run(main())
    assert times == [0.1, 0.3, 1.1, 1.1]


def test_everything_ready_runs_before_idle_work_and_idle_work_before_time_moves() -> None:
    seen: list[str] = []
    work = ["first", "second"]

    def on_idle() -> bool:
        if not work:
            return False
        seen.append(f"{work.pop(0)} at {loop.time():g}")
        return True

    loop = make(on_idle=on_idle)

    async def busy(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(name)

    async def main() -> None:
        await asyncio.gather(busy("a"), busy("b"))
        await asyncio.sleep(1)
        seen.append(f"end at {loop.time():g}")

    loop.run(main())
    assert seen == ["a", "b", "first at 0", "second at 0", "end at 1"]


def test_waiting_with_a_timeout() -> None:
    loop = make()

    async def main() -> tuple[int, int, float]:
        early, late = loop.create_future(), loop.create_future()
        loop.call_later(1.0, early.set_result, None)
        loop.call_later(9.0, late.set_result, None)
        done, pending = await asyncio.wait([early, late], timeout=4.0)
        return len(done), len(pending), loop.time()

    assert loop.run(main()) == (1, 1, 4.0)


def test_cancelled_timers_do_not_move_the_clock() -> None:
    loop = make()

    async def main() -> float:
        timer = loop.call_later(50.0, lambda: None)
        timer.cancel()
        await asyncio.sleep(1.0)
        return loop.time()

    assert loop.run(main()) == 1.0


def test_a_failing_callback_ends_the_run() -> None:
    loop = make()

    def broken() -> None:
        raise RuntimeError("callback")

    async def main() -> None:
        loop.call_later(1.0, broken)
        await asyncio.sleep(10.0)

    with pytest.raises(RuntimeError, match="callback"):
        loop.run(main())


def test_a_failing_delivery_ends_the_run() -> None:
    loop = make()

    def fail() -> None:
        raise ValueError("lost")

    loop.deliver_at(1.0, 0, fail)
    with pytest.raises(ValueError, match="lost"):
        loop.run(asyncio.sleep(2))


def test_deliveries_of_one_moment_and_number_come_in_the_order_of_their_making() -> None:
    loop = make()
    seen: list[str] = []
    loop.deliver_at(1.0, 0, seen.append, "first")
    loop.deliver_at(1.0, 0, seen.append, "second")
    loop.run(asyncio.sleep(2))
    assert seen == ["first", "second"]


def test_a_failure_of_the_main_function_is_its_own() -> None:
    async def main() -> None:
        raise KeyError("main")

    with pytest.raises(KeyError, match="main"):
        make().run(main())


def test_waiting_for_what_cannot_happen_is_told() -> None:
    loop = make()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(TrainingError, match="waits for something that cannot happen: nothing is in flight"):
        loop.run(main())


def test_inside_another_loop() -> None:
    """As in a notebook, where a real loop runs already."""

    async def main() -> float:
        await asyncio.sleep(5.0)
        return asyncio.get_running_loop().time()

    async def outer() -> tuple[float, bool]:
        before = asyncio.get_running_loop()
        return make().run(main()), asyncio.get_running_loop() is before

    assert asyncio.run(outer()) == (5.0, True)
