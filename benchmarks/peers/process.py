"""A compiler in a process of its own: a workload's name goes in as a line, launches and bytes come back as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def found(package: str, folders: Sequence[str]) -> bool:
    """Is the package's folder in one of these, or in this environment?"""
    return any((Path(folder) / package).is_dir() for folder in (*folders, *sys.path))


class Peer:
    """A context manager. Subclasses say which module runs in the process, and with which environment."""

    name = ""
    module = ""

    def __init__(self, card: str, folders: Sequence[str] = ()) -> None:
        self.card, self.folders = card, folders
        self.scratch = tempfile.TemporaryDirectory(prefix="benchmarks-peer-")
        self.process: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        return {}

    def arguments(self) -> list[str]:
        return [self.card]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self.scratch.cleanup()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, workload: str) -> dict[str, Any]:
        """For each of the compiler's routes its launches, nbytes and kernels; or ``{"error": ...}``."""
        process = self.process = self.process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(workload + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.stop()
            return {"error": f"{self.name} stopped"}
        return json.loads(line)

    def _started(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"), *self.folders)))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **self.environment()}
        command = [sys.executable, "-m", self.module, *self.arguments()]
        log = open(Path(self.scratch.name) / "log", "w")
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, cwd=ROOT
        )


def serve(answer: Any) -> None:
    """The other side: an answer for each line of standard input; what the compiler prints goes to standard error."""
    output, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            reply = answer(line.strip())
        except Exception as error:  # the compiler's refusals are results as well
            text = (str(error).splitlines() or [""])[0][:300]
            reply = {"error": f"{type(error).__name__}: {text}"}
        print(json.dumps(reply), file=output, flush=True)
