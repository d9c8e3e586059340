"""Few programs for the kernels of the fused head, and a record of their launches."""

import pytest

from scaffold.kernels.group_norm import plan as norm_plan
from scaffold.kernels.head import launch, plan


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Two programs and tiles of 16 or 32 voxels: some hundred voxels take several turns, the last one unfinished."""

    def lay(kernel, problem, _device):
        device = norm_plan.Device(problem.samples, 32)
        return plan.layout(problem, device, plan._CHOICES[kernel]._replace(block=16, programs=2))

    monkeypatch.setattr(launch, "plan", lay)
    # More partial results than are merged at once.
    monkeypatch.setattr(norm_plan, "_MERGED_AT_ONCE", 2)


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels launched, in order."""
    names = []
    real = launch.run

    def run(kernel, *arguments, **options):
        names.append(kernel)
        real(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run", run)
    return names
