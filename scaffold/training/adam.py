"""Adam whose step a CUDA graph can capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scaffold.kernels.adam import AdamTensors, Rate, Settings, Workspaces, clipped_adam

_DEVICE_KEYS = ("foreach", "capturable", "fused")
_UNSUPPORTED_KEYS = ("weight_decay", "amsgrad", "maximize", "differentiable")


class Adam(torch.optim.Adam):
    """Adam (Kingma and Ba, 2015) that can clip the gradients' norm as it goes.

    On a GPU nothing in a step waits for the device, and what a step reads lies there at addresses that
    stay: the state exists from the beginning, and loading a state copies into it. The state dict is
    that of ``torch.optim.Adam``. The learning rate is the number in ``param_groups`` and a copy of it on
    the device; a replayed graph reads the copy, which :meth:`publish_rate` brings up to date.

    Args:
        parameters: on their device already; one group.
        lr: learning rate.
    """

    _rate: Rate
    _workspaces: Workspaces

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        parameters = list(parameters)
        on_gpu = bool(parameters) and all(parameter.is_cuda for parameter in parameters)
        super().__init__(parameters, lr=lr, capturable=on_gpu, fused=on_gpu or None)
        for parameter in parameters:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self._make_scratch()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become the optimizer that was copied or pickled; loading a state dict passes here too."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_workspaces" not in self.__dict__:
            self._make_scratch()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the only group of parameters.

        Raises:
            ValueError: there is one already.
        """
        if self.param_groups:
            raise ValueError("this optimizer has one group of parameters")
        super().add_param_group(param_group)

    def publish_rate(self) -> None:
        """Write the learning rate to the device, if it has changed."""
        rate = float(self.param_groups[0]["lr"])
        if rate != self._rate.host:
            self._rate = Rate(rate, self._rate.device.fill_(rate))

    def state_tensors(self) -> list[Tensor]:
        """Return all tensors of the state."""
        return [tensor for entries in self.state.values() for tensor in entries.values()]

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, max_norm: float | None = None
    ) -> float | None:
        """Take a step.

        Args:
            closure: as in ``torch.optim.Adam``; not with ``max_norm``.
            max_norm: scale all gradients together so that their L2 norm is at most this; None leaves them.
                The gradients are undefined afterwards.
        """
        if max_norm is None:
            return super().step(closure)  # type: ignore[no-any-return]
        if not (self._rate.device.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.publish_rate()
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        settings = Settings(beta1, beta2, group["eps"], max_norm)
        with torch.no_grad():
            clipped_adam(self._tensors(), self._rate, settings, self._workspaces)
        return None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy ``state_dict`` into the state, whose tensors stay where they are; what it lacks becomes zero.

        It may come from ``torch.optim.Adam``, and from another kind of device.

        Raises:
            ValueError: it belongs to other parameters, or to a form of Adam that this is not; nothing is loaded.
        """
        kept = dict(self.state)
        here = {key: self.defaults[key] for key in _DEVICE_KEYS}
        groups = [group | here for group in state_dict["param_groups"]]
        for key, value in ((key, group.get(key)) for group in groups for key in _UNSUPPORTED_KEYS):
            if value:
                raise ValueError(f"the state is of an Adam with {key}={value}, which this optimizer does not have")
        names = [name for group in groups for name in group["params"]]
        saved = [state_dict["state"].get(name, {}) for name in names]
        for name, loaded, entries in zip(names, saved, kept.values(), strict=False):
            for key, tensor in entries.items():
                if key in loaded and loaded[key].shape != tensor.shape:
                    raise ValueError(
                        f"{key} of parameter {name} has shape {tuple(loaded[key].shape)}, not {tuple(tensor.shape)}"
                    )
        super().load_state_dict({"state": {}, "param_groups": groups})
        for loaded, (parameter, entries) in zip(saved, kept.items(), strict=True):
            for key, tensor in entries.items():
                tensor.copy_(loaded[key]) if key in loaded else tensor.zero_()
            self.state[parameter] = entries

    def _make_scratch(self) -> None:
        group = self.param_groups[0]
        rate = float(group["lr"])
        self._rate = Rate(rate, torch.tensor(rate, dtype=torch.float64, device=group["params"][0].device))
        self._workspaces = Workspaces()

    def _tensors(self) -> AdamTensors:
        tensors = AdamTensors([], [], [], [], [])
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            entries: tuple[Tensor, ...] = (
                parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]
            )  # fmt: skip
            for part, tensor in zip(tensors, entries, strict=True):
                part.append(tensor)
        return tensors
