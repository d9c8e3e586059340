"""The tests in ``device/`` run the kernels: on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter.

Triton decides that when it is first imported, for the whole process, so ``test_convolution_interpreted.py``
starts a process of its own for them.
"""

import os

import torch

collect_ignore = [] if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1" else ["device"]
