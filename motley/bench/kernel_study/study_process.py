"""The other end of a worker: starts it, asks it, and starts it again when it has died or was too slow."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import motley

Answer = dict[str, Any]


class StudyProcess:
    """A worker of one environment with a number of threads. It starts when it is first asked."""

    def __init__(self, python: str, environment: str, device: str, threads: int, folder: Path) -> None:
        self.python, self.environment, self.device, self.threads, self.folder = (
            python, environment, device, threads, folder,
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, do: str, limit: float, **request: Any) -> Answer:
        """A worker's answer; one that dies or takes longer than the limit is ended, and says so in its place."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as waiting:
                waiting.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if waiting.select(limit) else None
        except BrokenPipeError:
            line = b""
        if line:
            found: Answer = json.loads(line)
            return found
        why = f"it took longer than {limit:.0f} s" if line is None else f"the process ended: {self._last_words()}"
        self.stop()
        return {"ok": False, "why": why}

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._log is not None:
            self._log.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        self._process = self._log = self._scratch = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="motley-kernels-")
            self._log = (Path(self._scratch.name) / "log").open("w+b")
            command = [self.python, "-m", "motley.bench.kernel_study.study_worker", self.environment, self.device]
            self._process = subprocess.Popen(
                [*command, str(self.folder)],
                env=self._variables(self._scratch.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=self._scratch.name,
                start_new_session=True,  # Ctrl-C is for the study, which then ends its workers
            )
        return self._process

    def _variables(self, scratch: str) -> dict[str, str]:
        threads = str(self.threads)
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        kept = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "PYTHONWARNINGS")}
        return {
            **kept,
            **dict.fromkeys(counts, threads),
            "PYTHONPATH": str(Path(motley.__file__).parent.parent),
            "NUMBA_CACHE_DIR": scratch,  # an empty one: compiling is measured, not found on disk
            "PYTHONWARNINGS": "ignore",
            "PYTHONUNBUFFERED": "1",
        }

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"code {code}, {lines[-1][:200] if lines else 'without a word'}"
