"""What operators ask of a server that runs, or will run: orders as files, and the broker told of who is out."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable

from motley.core.errors import InputError, MotleyError
from motley.deploy.credentials import Account, NatsKey, user_key
from motley.deploy.disks import Disk
from motley.deploy.nats_link import Login, NatsLink
from motley.deploy.serving import Serving

ORDERS = "orders/"
LOOK_SECONDS = 0.3
CLAIMS = "$SYS.REQ.CLAIMS.UPDATE"


def order_eviction(disk: Disk, seat: int) -> None:
    """Has a seat evicted by the server of a folder: at once where it runs, else when it starts."""
    disk.write(f"{ORDERS}{time.time_ns():020d}", json.dumps({"what": "evict", "seat": seat}).encode())


class Operating:
    """Carries out orders."""

    def __init__(self, disk: Disk, serving: Serving, revoke: Callable[[str], None]) -> None:
        """``revoke`` has the broker end the connections of a key."""
        self.disk, self.serving, self.revoke = disk, serving, revoke
        self._evicting: dict[str, int] = {}  # order -> seat: logged, or about to be
        serving.after_step.append(self._settle)

    async def watch(self) -> None:
        while True:
            for name in self.disk.names(ORDERS):
                if name not in self._evicting:
                    self._begin(name)
            await asyncio.sleep(LOOK_SECONDS)

    def _begin(self, name: str) -> None:
        self._evicting[name] = seat = int(json.loads(self.disk.read(name) or b'{"seat": -1}')["seat"])
        if seat in self.serving.roster.seats:
            self.serving.evict(seat)
        else:
            self._done(name)

    def _settle(self) -> None:
        """An eviction that is in the log is told to the broker, and its order is gone."""
        for name, seat in list(self._evicting.items()):
            if seat in self.serving.roster.evicted:
                self.revoke(self.serving.roster.seats[seat].public_key)
                self._done(name)

    def _done(self, name: str) -> None:
        self.disk.delete(name)
        del self._evicting[name]


class Revoker:
    """Tells the broker whose credentials are void; their connections end at once."""

    def __init__(self, account: Account, disk: Disk, url: str, login: Callable[[NatsKey, str], Login]) -> None:
        self.account, self.disk, self.url, self.login = account, disk, url, login
        self.trouble = ""
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, public: str) -> None:
        self.account.revoke(user_key(public))
        claims = self.account.account_claims()
        self.account.save(self.disk)  # a broker that starts anew reads it there
        task = asyncio.get_running_loop().create_task(self._push(claims.encode()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _push(self, claims: bytes) -> None:
        key = NatsKey.new("user")
        link = NatsLink([self.url], self.login(key, self.account.system_claims(key)))
        heard = asyncio.Event()
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        try:
            await link.open(10.0)
            link.subscribe(inbox, lambda message: heard.set())
            link.publish(CLAIMS, claims, inbox)
            async with asyncio.timeout(5.0):
                await heard.wait()
        except (TimeoutError, InputError, MotleyError) as error:
            self.trouble = (
                f"The broker was not told of an eviction ({error}); the server refuses the seat all the same."
            )
        finally:
            await link.close()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
