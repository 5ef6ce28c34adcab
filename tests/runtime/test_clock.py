"""The virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from motley.core.errors import TrainingError
from motley.runtime.clock import SteppedLoop


def make(now: float = 0.0, on_idle: Callable[[], bool] | None = None) -> SteppedLoop:
    return SteppedLoop(now, on_idle)  # type: ignore[abstract]


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

    with pytest.raises(TrainingError, match="waits for something that cannot happen: nothing is under way"):
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


# ------------------------------------------------------------------------------------------ moved from outside


def test_moved_from_outside_nothing_happens_before_its_time() -> None:
    loop = make()
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        seen.append(("begun", loop.time()))
        await asyncio.sleep(5.0)
        seen.append(("woken", loop.time()))

    loop.begin(main())
    assert (seen, loop.next_timer(), loop.done) == ([("begun", 0.0)], 5.0, False)
    loop.advance(4.0)
    assert (len(seen), loop.time()) == (1, 4.0)
    loop.advance(7.0)
    assert (seen[1:], loop.time(), loop.done) == ([("woken", 5.0)], 7.0, True)


def test_what_comes_from_outside_comes_before_timers_of_the_same_moment() -> None:
    loop = make()
    seen: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(name)

    async def main() -> None:
        await asyncio.gather(sleeper("before", 1.0), sleeper("same moment", 2.0))

    loop.begin(main())
    loop.inject(2.0, seen.append, "from outside")
    assert seen == ["before", "from outside"]
    loop.advance(2.0)
    assert seen == ["before", "from outside", "same moment"]
    assert loop.done


def test_what_comes_from_outside_wakes_who_waits_for_it() -> None:
    loop = make()
    seen: list[float] = []

    async def main() -> None:
        news = loop.create_future()
        loop.call_at(9.0, lambda: None if news.done() else news.set_result("late"))
        arrived.append(news)
        assert await news == "here"
        seen.append(loop.time())

    arrived: list[asyncio.Future[str]] = []
    loop.begin(main())
    loop.inject(3.0, lambda: arrived[0].set_result("here"))
    assert (seen, loop.done) == ([3.0], True)


def test_moved_from_outside_a_failure_is_raised_where_it_happens() -> None:
    async def main() -> None:
        await asyncio.sleep(1.0)
        raise KeyError("main")

    loop = make()
    loop.begin(main())
    with pytest.raises(KeyError, match="main"):
        loop.advance(1.0)


def test_the_next_timer_is_not_one_that_was_cancelled() -> None:
    loop = make()

    async def main() -> None:
        loop.call_at(2.0, lambda: None).cancel()
        await asyncio.sleep(3.0)

    loop.begin(main())
    assert loop.next_timer() == 3.0
    loop.advance(3.0)
    assert loop.next_timer() is None
