"""The U-Net against an independent functional reference, and what it must keep."""

import pytest
import torch
import torch.nn.functional as F

from scaffold.config import RunConfig
from scaffold.model import blocks, unet
from scaffold.model.unet import UNet, build

LAST = torch.channels_last_3d


def network(dtype=torch.float64, **changes):
    torch.manual_seed(1)
    made = UNet(**{"out_channels": 4, "layers": 2, "base_channels": 8, "groups": 4, **changes})
    for name, parameter in made.named_parameters():
        if "norm" in name:  # ones and zeros would hide a missing affine map
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made.to(dtype)


def image(dtype=torch.float64, edge=8):
    torch.manual_seed(2)
    return torch.rand(2, 3, edge, edge, edge, dtype=dtype).contiguous(memory_format=LAST)


def reference(net, x, skip_first=True):
    """The same network from stock functions, written from the specification."""
    p = dict(net.named_parameters())

    def block(x, name):
        for i in (1, 2):
            x = F.conv3d(x, p[f"{name}.conv{i}.weight"], padding=1)
            x = F.relu(F.group_norm(x, 4, p[f"{name}.norm{i}.weight"], p[f"{name}.norm{i}.bias"], 1e-5))
        return x

    level0 = block(x, "encoder.0")
    level1 = block(F.max_pool3d(level0, 2), "encoder.1")
    x = block(F.max_pool3d(level1, 2), "encoder.2")
    for index, skip in ((0, level1), (1, level0)):
        up = F.conv_transpose3d(x, p[f"decoder.{index}.up.weight"], p[f"decoder.{index}.up.bias"], stride=2)
        x = block(torch.cat((skip, up) if skip_first else (up, skip), 1), f"decoder.{index}.block")
    return F.conv3d(x, p["head.weight"], p["head.bias"])


def test_equals_reference_in_float64():
    """Any change of the architecture makes figures of merit incomparable."""
    net, x = network(), image()
    torch.testing.assert_close(net(x), reference(net, x), rtol=0, atol=1e-12)
    assert (net(x) - reference(net, x, skip_first=False)).abs().max() > 1e-3, "control: the order of the halves shows"


def test_state_dict_names_are_stable():
    """A renamed parameter makes every checkpoint and published model unreadable."""
    net = network(layers=1)

    def block(name):
        return [f"{name}.{part}" for i in (1, 2) for part in (f"conv{i}.weight", f"norm{i}.weight", f"norm{i}.bias")]

    up = ["decoder.0.up.weight", "decoder.0.up.bias"]
    expected = [*block("encoder.0"), *block("encoder.1"), *up, *block("decoder.0.block"), "head.weight", "head.bias"]
    assert list(net.state_dict()) == expected
    assert not list(net.buffers()), "buffers would have to be broadcast between replicas with unequal batches"


def test_last_normalisation_and_head_are_one_operation(monkeypatch):
    """The largest tensor that one operation reads would be written, and its gradient."""
    calls = []
    real = unet.group_norm_relu_pointwise
    monkeypatch.setattr(
        unet, "group_norm_relu_pointwise", lambda *args, **how: calls.append((args[1:], how)) or real(*args, **how)
    )
    net = network()
    net(image())
    norm, head = net.decoder[-1].block.norm2, net.head
    assert calls == [((norm.weight, norm.bias, head.weight, head.bias, 4, 1e-5), {"site": head})]


def as_tuple(output):
    """A module's outputs: an encoder block has two, the skip and the pooled one."""
    return output if isinstance(output, tuple) else (output,)


def test_channels_last_from_input_to_logits():
    """Hazard 65: one contiguous tensor in between costs two transposes at every step."""
    net = network(torch.float32)
    seen = {}
    for name, module in net.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            module.register_forward_hook(
                lambda _, __, y, name=name: seen.update(
                    {name: all(part.is_contiguous(memory_format=LAST) for part in as_tuple(y))}
                )
            )
    with torch.autocast("cpu", torch.bfloat16):
        net(image(torch.float32))
    assert len(seen) > 26
    assert all(seen.values()), [name for name, kept in seen.items() if not kept]


def test_bfloat16_between_all_blocks_under_autocast():
    """A float32 activation between blocks doubles the traffic; float32 statistics are the kernel's own matter."""
    net, dtypes = network(torch.float32), set()
    for module in net.modules():
        if isinstance(module, blocks.DoubleBlock | blocks.GroupNormReLU | torch.nn.ConvTranspose3d):
            module.register_forward_hook(lambda _, __, y: dtypes.update(part.dtype for part in as_tuple(y)))
    with torch.autocast("cpu", torch.bfloat16):
        net(image(torch.float32)).float().sum().backward()
    assert dtypes == {torch.bfloat16}
    assert {parameter.grad.dtype for parameter in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("amp", [False, True])
def test_checkpointing_changes_nothing_and_does_recompute(amp, monkeypatch):
    """Hazard 65: checkpointing must change neither outputs nor gradients, bit for bit."""
    calls = []
    for name in ("group_norm_relu", "group_norm_relu_pool"):
        plain = getattr(blocks, name)
        monkeypatch.setattr(blocks, name, lambda *args, plain=plain, **keys: calls.append(1) or plain(*args, **keys))
    results, counts = [], []
    for checkpointing in (False, True):
        calls.clear()
        net = network(torch.float32, activation_checkpointing=checkpointing)
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            # Edge 4 at the bottleneck: at edge 2 oneDNN's bfloat16 weight gradients differ from call to call.
            logits = net(image(torch.float32, edge=16))
        logits.float().square().mean().backward()
        results.append([logits, *(parameter.grad for parameter in net.parameters())])
        counts.append(len(calls))
    # The last normalisation belongs to the head, which is not repeated.
    assert counts == [9, 18], "every block is run again in the backward pass, or checkpointing is off"
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_power_of_two_extents_never_pad(monkeypatch):
    """Hazard 65: no pad call when there is nothing to pad."""
    monkeypatch.setattr(F, "pad", lambda *_: pytest.fail("pad was called"))
    assert network()(image()).shape == (2, 4, 8, 8, 8)
    with pytest.raises(pytest.fail.Exception):
        network()(image(edge=6))


def test_extents_that_poolings_do_not_divide():
    """Logits must have one value per voxel for any extent."""
    assert network()(image(edge=7)).shape == (2, 4, 7, 7, 7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"layers": 0}, "layers = 0"), ({"out_channels": 1}, "out_channels = 1"), ({"groups": 3}, "groups = 3")],
)
def test_impossible_networks_are_refused(wrong, message):
    """Hazards 2 and 65: no level, or no foreground class whose score could be wrong."""
    with pytest.raises(ValueError, match=message):
        network(**wrong)


def test_build_follows_the_config():
    """A key that does not reach the network is a setting without effect."""
    config = RunConfig(
        problem_scale=6, unet_bottleneck_dim=3, unet_base_channels=16, n_categories=2, group_norm_groups=4,
        activation_checkpointing=True,
    )  # fmt: skip
    net = build(config)
    assert (len(net.decoder), net.head.out_channels, net.encoder[0].conv1.out_channels) == (3, 3, 16)
    assert net.encoder[0].norm1.groups == 4
    assert net.activation_checkpointing
    assert net.encoder[1].conv1.weight.is_contiguous(memory_format=LAST)
