"""A line to a NATS broker that mends itself: the client's half of the broker's protocol, for large messages.

Messages are handed to their receivers as they are read, without a queue or a task in between, and payloads are read
into their own memory; a general client copies them several times, which halves what one processor can carry. What is
published while the line is cut is lost: everything that matters here is said again.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlparse

from motley.core.errors import InputError, MotleyError
from motley.deploy.wire import Message, Receive, end, happens

PING_SECONDS = 10.0
SILENT_PINGS = 2  # unanswered, after which a line counts as cut
FIRST_WAIT, LONGEST_WAIT = 0.25, 15.0  # seconds between two tries to connect
_LINE = 1 << 16  # bytes of a control line and of what is read at once


class Login(NamedTuple):
    """How a process shows who it is."""

    options: Mapping[str, Any] = MappingProxyType({})  # of CONNECT: user and password, jwt, ...
    sign: Callable[[bytes], str] | None = None  # the broker's nonce, signed
    tls: ssl.SSLContext | None = None
    name: str = "motley"


class RefusedError(MotleyError):
    """The broker does not let this process in; trying again is of no use."""


class _Session(asyncio.BufferedProtocol):
    """One connection, from its first byte to its last."""

    def __init__(self, deliver: Callable[[bytes, str, bytes, str], None]) -> None:
        self.deliver = deliver  # (subscription, subject, payload, reply)
        self.transport: asyncio.Transport | None = None
        self.info: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.pong: asyncio.Future[None] | None = None
        self.closed = asyncio.Event()
        self.error = ""
        self.unanswered = 0
        self._buffer = bytearray(_LINE)
        self._have = 0  # bytes of it that are not used yet
        self._payload: bytearray | None = None  # being filled: the message and the two bytes after it
        self._filled = 0
        self._head: tuple[bytes, str, str, int] = (b"", "", "", 0)

    # ------------------------------------------------------------------ asyncio's side
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(1 << 26)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        for future in (self.info, self.pong):
            if future is not None and not future.done():
                future.set_exception(ConnectionError(self.error or "the connection was closed"))
                future.exception()  # it is looked at by whoever waits; nobody has to

    def get_buffer(self, hint: int) -> memoryview:
        if self._payload is not None:
            return memoryview(self._payload)[self._filled :]
        return memoryview(self._buffer)[self._have :]

    def buffer_updated(self, n: int) -> None:
        if self._payload is not None:
            self._filled += n
            if self._filled == len(self._payload):
                self._message(self._payload)
            return
        self._have += n
        self._parse()

    # ------------------------------------------------------------------ reading
    def _parse(self) -> None:
        """Takes lines and messages out of the buffer; the rest moves to its front."""
        used = 0
        view = self._buffer
        while self._payload is None:
            end = view.find(b"\r\n", used, self._have)
            if end < 0:
                break
            line, used = bytes(view[used:end]), end + 2
            self._line(line)
            if self._payload is not None:
                take = min(len(self._payload), self._have - used)
                self._payload[:take] = view[used : used + take]
                self._filled, used = take, used + take
                if take == len(self._payload):
                    self._message(self._payload)
        left = self._have - used
        if used and left:
            view[:left] = view[used : self._have]
        self._have = left
        if left == len(view):
            self._abort("a line of the broker's is too long")

    def _line(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word in (b"MSG", b"HMSG"):
            self._begin(word, rest)
        elif word == b"PING":
            self.write(b"PONG\r\n")
        elif word == b"PONG":
            self.unanswered = 0
            if self.pong is not None and not self.pong.done():
                self.pong.set_result(None)
        elif word == b"INFO":
            if not self.info.done():
                self.info.set_result(json.loads(rest))
        elif word == b"-ERR":
            self.error = rest.decode("utf-8", "replace").strip(" '")

    def _begin(self, word: bytes, rest: bytes) -> None:
        """The head of a message: subject, subscription, where to answer, sizes."""
        words = rest.split(b" ")
        try:
            sizes = 2 if word == b"HMSG" else 1
            header = int(words[-2]) if sizes == 2 else 0
            total = int(words[-1])
            reply = words[2].decode() if len(words) == 3 + sizes else ""
            self._head = words[1], words[0].decode(), reply, header
            self._payload, self._filled = bytearray(total + 2), 0
        except (ValueError, IndexError):
            self._abort("the broker sent something that is no message")

    def _message(self, payload: bytearray) -> None:
        self._payload = None
        number, subject, reply, header = self._head
        status = bytes(payload[:header])
        body = b"-" if status.startswith(b"NATS/1.0 503") else bytes(memoryview(payload)[header:-2])
        self.deliver(number, subject, body, reply)  # nobody listens there: as if it had been refused

    # ------------------------------------------------------------------ writing
    def write(self, *pieces: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def _abort(self, why: str) -> None:
        self.error = why
        self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class NatsLink:
    """Implements `Link`: one connection at a time to one of several brokers."""

    def __init__(self, urls: Sequence[str], login: Login | None = None) -> None:
        self.urls, self.login = list(urls), login or Login()
        self.hooks: set[Callable[[], None]] = set()
        self.connected = False
        self.connections = 0  # so far
        self.largest = 1 << 20  # bytes of a message
        self.trouble = ""  # why there is no connection
        self._receivers: dict[bytes, tuple[str, Receive]] = {}
        self._next = 0
        self._session: _Session | None = None
        self._life: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life
    async def open(self, patience: float | None = None) -> None:
        """Connects, and stays connected until `close`; `RefusedError`, or InputError after so many seconds."""
        loop = asyncio.get_running_loop()
        first = loop.create_future()
        self._life = loop.create_task(self._live(first))
        done, _ = await asyncio.wait([first, self._life], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if self._life in done:
            self._life.result()
        if first not in done:
            await self.close()
            raise InputError(f"No broker answers at {', '.join(self.urls)} ({self.trouble or 'no word'}).")

    async def close(self) -> None:
        try:
            if self._life is not None:
                await end(self._life)
        finally:
            if self._session is not None and self._session.transport is not None:
                self._session.transport.close()

    def renew(self, login: Login) -> None:
        """Goes on with other credentials, over a new connection."""
        self.login = login
        if self._session is not None:
            self._session.abort()

    async def refused(self) -> None:
        """Waits until the broker refuses this process for good, and raises that."""
        assert self._life is not None
        await asyncio.shield(self._life)

    async def _live(self, first: asyncio.Future[None]) -> None:
        wait, number = FIRST_WAIT, 0
        while True:
            url = self.urls[number % len(self.urls)]
            number += 1
            try:
                async with asyncio.timeout(5.0):
                    session = await self._connect(url)
            except (OSError, ValueError) as error:
                self.trouble = _told(error)
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(LONGEST_WAIT, 2 * wait)
                continue
            wait = FIRST_WAIT
            self._begin(session, first)
            await self._watch(session)
            self.connected, self._session = False, None
            self.trouble = session.error or "the connection was lost"
            _refuse_for_good(session.error)

    async def _connect(self, url: str) -> _Session:
        place = urlparse(url)
        loop = asyncio.get_running_loop()
        session = _Session(self._deliver)
        await loop.create_connection(lambda: session, place.hostname or "", place.port or 4222)
        try:
            info = await session.info
            assert session.transport is not None
            if self.login.tls is not None:
                secured = await loop.start_tls(
                    session.transport, session, self.login.tls, server_hostname=place.hostname
                )
                assert secured is not None
                session.connection_made(secured)
            self.largest = int(info.get("max_payload", self.largest))
            session.write(b"CONNECT " + json.dumps(self._hello(info)).encode() + b"\r\nPING\r\n")
            session.pong = loop.create_future()
            await session.pong
        except BaseException:
            session.abort()
            _refuse_for_good(session.error)
            raise
        return session

    def _hello(self, info: dict[str, Any]) -> dict[str, Any]:
        said = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "motley",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": self.login.name,
            **self.login.options,
        }
        if self.login.sign is not None and "nonce" in info:
            said["sig"] = self.login.sign(str(info["nonce"]).encode())
        return said

    def _begin(self, session: _Session, first: asyncio.Future[None]) -> None:
        self._session, self.connected = session, True
        self.connections += 1
        for number, (pattern, _) in self._receivers.items():
            session.write(f"SUB {pattern} ".encode() + number + b"\r\n")
        if not first.done():
            first.set_result(None)
        else:
            for hook in list(self.hooks):
                hook()

    async def _watch(self, session: _Session) -> None:
        """Until the connection ends; one that no longer answers is ended."""
        while not session.closed.is_set():
            if await happens(session.closed, PING_SECONDS):
                return
            if session.unanswered >= SILENT_PINGS:
                session.error = "the broker no longer answers"
                session.abort()
                return
            session.unanswered += 1
            session.write(b"PING\r\n")

    # ------------------------------------------------------------------ messages
    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if self._session is not None:
            head = f"PUB {subject} {reply} {len(data)}\r\n" if reply else f"PUB {subject} {len(data)}\r\n"
            self._session.write(head.encode(), data, b"\r\n")

    def subscribe(self, pattern: str, receive: Receive) -> bytes:
        self._next += 1
        number = str(self._next).encode()
        self._receivers[number] = pattern, receive
        if self._session is not None:
            self._session.write(f"SUB {pattern} ".encode() + number + b"\r\n")
        return number

    def unsubscribe(self, entry: Any) -> None:
        if self._receivers.pop(entry, None) is not None and self._session is not None:
            self._session.write(b"UNSUB " + entry + b"\r\n")

    def _deliver(self, number: bytes, subject: str, data: bytes, reply: str) -> None:
        found = self._receivers.get(number)
        if found is not None:
            found[1](Message(subject, data, reply))


def _told(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, asyncio.TimeoutError) else type(error).__name__)


FINAL = ("authorization violation", "user authentication expired", "user authentication revoked", "account")


def _refuse_for_good(error: str) -> None:
    if error.lower().startswith(FINAL):
        raise RefusedError(f"The broker does not let this process in: {error}.")
