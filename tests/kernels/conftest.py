"""The tests in the folders ``device`` run kernels: on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter.

Triton decides that when it is first imported, for the whole process, so ``test_interpreted.py`` starts a process
of its own for them.
"""

import importlib.util
import os
import warnings

import pytest
import torch
from tensors import poisoned_memory

from scaffold.kernels import ladder

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Before a test pretends that the interpreter is asked for.
if importlib.util.find_spec("triton") is not None:
    importlib.import_module("triton")
KERNELS_RUN = importlib.util.find_spec("triton") is not None and (torch.cuda.is_available() or INTERPRETED)

collect_ignore_glob = [] if KERNELS_RUN else ["*/device"]


@pytest.fixture(scope="session")
def device():
    """Where the kernels run; ``cpu`` means the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _quiet_interpreter():
    with warnings.catch_warnings():
        if INTERPRETED:
            # NumPy warns of the overflows and invalid values that the tests provoke.
            warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(autouse=True)
def _fresh_ladder():
    # A rung that failed in one test would be passed over in all that follow.
    ladder.reset()
    yield
    ladder.reset()


@pytest.fixture(name="poisoned_memory")
def _poisoned_memory():
    """Fill memory that PyTorch hands out without values with NaN."""
    with poisoned_memory():
        yield
