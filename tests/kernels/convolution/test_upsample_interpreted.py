"""Starts the step up's kernel tests in Triton's interpreter, which takes a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = sorted((Path(__file__).parent / "device").glob("test_upsample_*.py"))


@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this process interprets them already")
def test_kernels_in_the_interpreter():
    """Kernels, dispatch or fallbacks are wrong; the output names the tests.

    They can be run alone: ``TRITON_INTERPRET=1 pytest tests/kernels/convolution/device``.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, TESTS)]
    result = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
