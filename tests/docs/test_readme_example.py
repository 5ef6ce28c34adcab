"""The example of the README gives the same number every time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    script = tmp_path / "example.py"
    script.write_text(example + "print(result.summary['model_sha256'])\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ends = [
        subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
            check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert ends[0] == ends[1]
    assert ends[0].startswith("accuracy 0.")
