"""A clock that is stepped: an asyncio event loop in which waiting takes no time of its own.

Timers fire in the order of their time; where times are equal, deliveries come first in the order of dispatch,
then other timers in the order of their making. Everything that is ready runs before time moves on.

In a simulation the loop runs by itself (`run`): when nothing is ready, `on_idle` may produce work (the carrier trains
what has been dispatched, as one batch) before the clock jumps to the next timer. Deployed it is moved from outside: by
things that happen (`inject`) and by the passing of time (`advance`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

from motley.core.errors import TrainingError

T = TypeVar("T")


class TimerLoop(asyncio.AbstractEventLoop):
    """Just enough of an event loop for tasks, futures, timers and `asyncio.wait`."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._ready: deque[events.Handle] = deque()
        # time, is it a timer of asyncio's (else a delivery), order, order of making, the timer or what is called, args
        self._timers: list[tuple[float, bool, int, int, Any, tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._failure: BaseException | None = None
        self._running = False

    def time(self) -> float:
        return self._now

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, True, 0, next(self._order), timer, ()))
        return timer

    def deliver_at(self, when: float, order: int, callback: Callable[..., None], *args: Any) -> None:
        """Calls back at this very moment, before all timeouts of the same moment; ``order`` decides between equals."""
        heapq.heappush(self._timers, (when, False, order, next(self._order), callback, args))

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Cancelled timers stay in the heap and are passed over."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failure = context.get("exception") or TrainingError(str(context.get("message")))


class SteppedLoop(TimerLoop):
    """The loop a protocol runs on."""

    def __init__(self, now: float = 0.0, on_idle: Callable[[], bool] | None = None) -> None:
        super().__init__(now)
        self.on_idle = on_idle
        self._main: asyncio.Task[Any] | None = None

    # ------------------------------------------------------------------ by itself
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, time jumping from timer to timer."""
        task = self.create_task(main)
        try:
            with self._inside():
                while not task.done():
                    self._step()
        finally:
            self.discard()
        return task.result()

    def _step(self) -> None:
        if self._ready:
            self._run_one()
        elif self.on_idle is not None and self.on_idle():
            return
        elif self._timers:
            self._fire()
        else:
            raise TrainingError("The protocol waits for something that cannot happen: nothing is under way.")
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ from outside
    def begin(self, main: Coroutine[Any, Any, Any]) -> None:
        """A coroutine to be moved by `advance` and `inject`; it runs as far as it can without time."""
        self._main = self.create_task(main)
        self.advance(self._now)

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return self._main is not None and self._main.done()

    def advance(self, until: float) -> None:
        """Everything up to and including this moment happens."""
        self._turn(until, including=True)
        self._now = max(self._now, until)

    def inject(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Something from outside happens: after all timers before that moment, before those of the same moment."""
        self._turn(when, including=False)
        self._now = max(self._now, when)
        if not self.done:
            with self._inside():
                call(*args)
            self._turn(when, including=False)

    def next_timer(self) -> float | None:
        """When something is due that nobody needs to bring about."""
        while self._timers and self._timers[0][1] and self._timers[0][4].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _turn(self, until: float, including: bool) -> None:
        assert self._main is not None
        with self._inside():
            while not self._main.done():
                if self._ready:
                    self._run_one()
                elif self._timers and (self._timers[0][0] < until or (including and self._timers[0][0] == until)):
                    self._fire()
                else:
                    return
                if self._failure is not None:
                    raise self._failure
        self._main.result()  # raises what the protocol raised

    # ------------------------------------------------------------------ both
    def _run_one(self) -> None:
        handle = self._ready.popleft()
        if not handle.cancelled():
            handle._run()

    def _fire(self) -> None:
        when, timed, _, _, what, args = heapq.heappop(self._timers)
        if not timed:
            self._now = max(self._now, when)
            what(*args)
        elif not what.cancelled():
            self._now = max(self._now, when)
            self._ready.append(what)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """This loop is the running one."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            events._set_running_loop(outer)

    def discard(self) -> None:
        """Ends what is left of an interrupted run."""
        for handle in [*self._ready, *(what for _, timed, _, _, what, _ in self._timers if timed)]:
            handle.cancel()
        self._ready.clear()
        self._timers.clear()
