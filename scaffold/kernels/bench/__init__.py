"""The kernel benchmark: arms of one workload, interleaved, against ceilings measured in the same run.

A *workload* is one operation in one direction; a *case* is one problem size; an *arm* is one way to compute
it. All arms of a case are judged by the same minimum of bytes and operations, so that none looks good by
doing more: ``score = roof time / measured time``, where the roof time is what that minimum takes at the copy
bandwidth and at the arithmetic rate of the same card in the same run.

What a launch costs the host is left out. Nothing waits between the timed runs, so that the host is ahead of
a device that is busy for longer than a launch takes; shorter arms are timed by the replay of a CUDA graph of
several calls (``Case.graph``). Their tensors are then found in the L2 cache if they fit in there, as in a
training step, where the operation before has just written them.

``case`` says what a workload is made of, ``workloads`` which there are; ``run`` runs them, ``measure`` one
case; ``timing`` and ``ceilings`` measure, ``rows`` is the result as CSV and text, ``roofline`` its figure;
``ahead`` compiles what will run.
"""

from scaffold.kernels.bench.case import Arm, Case, Cost, Recipe, Result, Sizes

__all__ = ["Arm", "Case", "Cost", "Recipe", "Result", "Sizes"]
