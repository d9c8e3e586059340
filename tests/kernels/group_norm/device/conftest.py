"""Small tiles for the kernels of GroupNorm, and a record of their launches."""

import pytest

from scaffold.kernels.group_norm import launch, plan


@pytest.fixture
def tile(monkeypatch):
    """Lay small tiles: a function of (unroll, programs, merged_first), for all passes, one warp, 16 channels a program.

    So a few dozen voxels of a sample have several programs, turns and unfinished tiles.
    """

    def use(unroll=2, programs=2, merged_first=False):
        choice = plan.Choice(16, unroll, 1, programs)

        def lay(_kernel, problem, _device):
            blocks = plan.layout(problem, plan.Device(1, 32), choice).blocks
            return plan.layout(problem, plan.Device(blocks * problem.samples, 32), choice)

        monkeypatch.setattr(launch, "plan", lay)
        monkeypatch.setattr(launch, "plan_planes", lay)
        monkeypatch.setattr(plan, "_MERGED_FIRST", 1 if merged_first else 2**62)
        # More partial results than are merged at once.
        monkeypatch.setattr(plan, "_MERGED_AT_ONCE", 2)
        monkeypatch.setattr(plan, "_MERGED_BY_ONE", 1)

    return use


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
