"""Our safetensors writer, read back by the library."""

import json

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from scaffold.training import tensorfile

TENSORS = {
    "odd": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "wide": torch.arange(5, dtype=torch.float64),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "brain": torch.randn(3, 2, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "channels last": torch.randn(2, 3, 2, 2, 2, generator=torch.Generator().manual_seed(1)).to(
        memory_format=torch.channels_last_3d
    ),
    "flags": torch.tensor([True, False]),
}


def test_the_library_reads_what_we_write(tmp_path):
    """A header that is off by a byte gives shifted numbers or an unreadable checkpoint."""
    path = tmp_path / "x.safetensors"
    tensorfile.write(path, TENSORS, {"facts": "é {}"})
    found = safetensors.torch.load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"facts": "é {}"}


def test_every_tensor_is_aligned_to_its_element(tmp_path):
    """Mapped into memory, a float64 at an odd address faults on some machines."""
    path = tmp_path / "x.safetensors"
    tensorfile.write(path, TENSORS, {"a": "b"})
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for name, tensor in TENSORS.items():
        assert (start + header[name]["data_offsets"][0]) % tensor.element_size() == 0


def test_the_bytes_are_those_of_the_library(tmp_path):
    """One tensor leaves the library no choice of order: the files must then be equal byte for byte."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    tensorfile.write(ours, {"wide": TENSORS["wide"]}, {})
    safetensors.torch.save_file({"wide": TENSORS["wide"]}, theirs, {})
    strip = ours.read_bytes().replace(b'"__metadata__":{},', b"").replace(b" ", b"")[8:]
    assert strip == theirs.read_bytes().replace(b'"__metadata__":{},', b"").replace(b" ", b"")[8:]


def test_the_file_is_readable_by_others(tmp_path):
    """The library's own writer makes files that only their owner can read."""
    path = tmp_path / "x.safetensors"
    tensorfile.write(path, TENSORS, {})
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_an_unknown_type_leaves_nothing_behind(tmp_path):
    """A draft that stays is taken for a running writer's."""
    with pytest.raises(KeyError):
        tensorfile.write(tmp_path / "x", {"c": torch.zeros(1, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []
