"""What is known and said of the device that kernels run on."""

from types import SimpleNamespace

import pytest
import torch

from scaffold.kernels import hardware
from scaffold.kernels.convolution import stem, upsample_launch
from scaffold.kernels.group_norm import launch

PLANNERS = {
    "group_norm": lambda device: launch.device_of(device).multiprocessors,
    "stem": stem._multiprocessors,
    "upsample": upsample_launch.multiprocessors,
    "others": hardware.multiprocessors,
}


@pytest.fixture
def named(monkeypatch):
    """Give devices names: of two GPUs with 132 multiprocessors."""

    def name(*names):
        devices = [SimpleNamespace(name=each, multi_processor_count=132, warp_size=32) for each in names]
        index = lambda device: device if isinstance(device, int) else device.index  # noqa: E731
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: devices[index(device)])

    caches = (hardware.say_if_untuned, hardware.multiprocessors, launch.device_of)
    for cache in caches:
        cache.cache_clear()
    yield name
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("planner", PLANNERS)
def test_an_untuned_device_is_told_of_once(named, caplog, planner):
    """Whoever compares two machines must know that one of them runs with untuned launches."""
    caplog.set_level("INFO")
    named("NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD Instinct MI300X")
    for index in (0, 0, 1, 2):
        assert PLANNERS[planner](torch.device("cuda", index)) == 132
    assert [record.args for record in caplog.records] == [("NVIDIA H100 80GB HBM3",), ("AMD Instinct MI300X",)]
    for other in PLANNERS.values():
        other(torch.device("cuda", 0))
    assert len(caplog.records) == 2, "whatever kernel comes next"


@pytest.mark.parametrize(
    ("name", "tuned"),
    [
        ("NVIDIA H200", True), ("NVIDIA H200 NVL", True), ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA GH200 480GB", False), ("NVIDIA H200 MIG 3g.71gb", False),
    ],
)  # fmt: skip
def test_launches_are_tuned_by_name(named, name, tuned):
    """The number of multiprocessors is that of several models."""
    named(name)
    assert hardware.is_tuned(name) == tuned
    assert launch.device_of(torch.device("cuda", 0)).tuned == tuned


def test_the_interpreter_is_no_device(named, caplog):
    """A warning about the CPU would help nobody; sums must be split there as on a GPU."""
    caplog.set_level("INFO")
    found = {name: planner(torch.device("cpu")) for name, planner in PLANNERS.items()}
    assert found == {"group_norm": 1, "stem": 8, "upsample": 4, "others": 1}
    assert not caplog.records
