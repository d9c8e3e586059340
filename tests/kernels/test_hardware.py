"""What is said of the device that kernels run on."""

import torch

from scaffold.kernels import hardware


def test_an_untuned_device_is_told_of_once(monkeypatch, caplog):
    """Whoever compares two machines must know that one of them runs with untuned launches."""
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Device {index}")
    hardware.say_untuned.cache_clear()
    for index in (0, 0, 1):
        hardware.say_untuned(index)
    hardware.say_untuned.cache_clear()
    assert [record.args for record in caplog.records] == [("Device 0",), ("Device 1",)]
