"""Starts the tests of the kernels in Triton's interpreter, which takes a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDERS = sorted(str(folder) for folder in Path(__file__).parent.rglob("device"))


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this process interprets them already")
def test_kernels_in_the_interpreter():
    """Kernels, dispatch, registration or fallbacks are wrong; the output names the tests.

    They can be run alone: ``TRITON_INTERPRET=1 pytest tests/kernels/adam/device``.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FOLDERS]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
