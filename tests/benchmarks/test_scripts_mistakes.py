"""A mistake in the command of a benchmark is told in a line: its user need not read the script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["end_to_end.py", "out", "--work", "work", "--turn", "0"], "'0' is not an integer of at least 1"),
        (["end_to_end.py", "out", "--work", "work", "--run", "nope"], "no such run; there are: scale7"),
        (["end_to_end.py", "out", "--work", "work", "--study", "missing.yaml"], "cannot read missing.yaml"),
        (["stock_training.py", "--config", "missing.yaml", "--data", "meta.yaml", "--output", "out"], "cannot read"),
        (["stock_training.py", "--confg", "study.yaml"], "--config"),
        (["step.py", "out", "--arms", "stock"], "invalid choice: 'stock'"),
        (["step.py", "out", "--scales", "3"], "invalid choice: 3"),
        (["step.py", "out", "--device", "xpu"], "invalid choice: 'xpu'"),
        (["step.py", "out", "--scales", "4"], "no GPU is visible to PyTorch; try --device cpu"),
        (["datagen.py", "out.csv", "--repeats", "0"], "'0' is not an integer of at least 1"),
        (["planning.py", "out.csv", "--runs", "none"], "'none' is not an integer of at least 1"),
    ],
)
def test_it_ends_with_2_and_no_traceback(tmp_path: Path, command: list[str], told: str) -> None:
    """No folder is made before either."""
    script, *arguments = command
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    whole = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    if script == "end_to_end.py" and "--study" not in arguments:
        whole += ["--study", str(ROOT / "config" / "scale7.yaml")]
    done = subprocess.run(whole, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_stopped_script_has_started_ends_too(tmp_path: Path) -> None:
    """A training would go on alone, for hours, beside whatever is measured next."""
    child = f"import pathlib, time; pathlib.Path({str(tmp_path / 'alive')!r}).touch(); time.sleep(60)"
    code = f"import script, subprocess, sys; script.run(lambda: subprocess.run([sys.executable, '-c', {child!r}]))"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as script:
        while not (tmp_path / "alive").exists():
            time.sleep(0.05)
        script.terminate()
        # The child holds the pipe open for as long as it lives.
        script.communicate(timeout=20)
    assert script.returncode == 143
