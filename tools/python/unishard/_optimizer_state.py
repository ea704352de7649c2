"""The states of a torch optimizer by the names of its parameters, read and made without a change to what it trains."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import torch

from . import _checkpoint
from ._errors import Error

_NAMED_BY_MODEL = "parameters have numbers: named in the order of the model"  # in the notes on a checkpoint
SCALARS = "optimizer_scalars"  # key of client_state: {state: {name: value}}, optimizer states that are one number or no tensor
Names = dict[str, torch.nn.Parameter]


def named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer, plain_name: Callable[[str], str]) -> Names:
    """Returns the optimizer's parameters by the first names that the model has for them. Raises Error for one that is not the model's."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    named = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise Error("mismatch", f"group {number} of the optimizer has a parameter of size {tuple(parameter.shape)} that is not the "
                            "model's", "pass the optimizer that was made of the parameters of this model")
            named[names[id(parameter)]] = parameter
    return named


def live_state(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """Returns the optimizer's own states and copies of its groups in the form of a state dict, with names for numbers.

    torch's get_state_dict() makes states where there are none yet: it does a step of the optimizer, which counts.
    """
    by_parameter = {id(parameter): name for name, parameter in names.items()}
    groups = [{**group, "params": [by_parameter[id(parameter)] for parameter in group["params"]]} for group in optimizer.param_groups]
    return {"state": {name: optimizer.state[parameter] for name, parameter in names.items() if optimizer.state.get(parameter)},
            "param_groups": groups}


def require_order(checkpoint: _checkpoint.Checkpoint, groups: list[list[str]]) -> None:
    """Raises Error where the states were named in the order of the model, and the optimizer has its parameters in another one.

    groups: the names of the parameters of each group of the optimizer.
    """
    named = [note for note in checkpoint.notes if _NAMED_BY_MODEL in note]
    saved = checkpoint.groups if named and isinstance(checkpoint.groups, list) else []
    for theirs, now in zip((group.get("params", []) for group in saved), groups):
        if set(theirs) == set(now) and theirs != now:
            raise Error("mismatch", f"{checkpoint.path}: {named[0]}; this optimizer has another order",
                        "load the file with torch.load() and load_state_dict()")


def recorded_scalars(checkpoint: _checkpoint.Checkpoint) -> dict[str, dict[str, Any]]:
    """Returns the states that are no tensors of the checkpoint, by state and name of the parameter."""
    client_state = checkpoint.client_state if isinstance(checkpoint.client_state, dict) else {}
    recorded = client_state.get(SCALARS)
    return recorded if isinstance(recorded, dict) else {}


def optimizer_states(checkpoint: _checkpoint.Checkpoint, name: str) -> set[str]:
    """Returns the states of an optimizer that the checkpoint has as tensors for a parameter, which it may lack."""
    states = checkpoint.states(name) if name in checkpoint else []
    return set(states) - {*_checkpoint._WEIGHT_STATES, "extra"}


def unused_states(checkpoint: _checkpoint.Checkpoint, known: Container[str]) -> list[str]:
    """Returns a sentence for each name in the checkpoint that has states of an optimizer and is not `known`."""
    return [f"{name} has states of an optimizer, and is no parameter of the model"
            for name in checkpoint.names() if name not in known and optimizer_states(checkpoint, name)]


def lost_states(checkpoint: _checkpoint.Checkpoint, live: dict[str, Any], model: Iterable[str]) -> list[str]:
    """Returns a sentence for each parameter of the model with states in the checkpoint that the optimizer does not have.

    live: the optimizer's states, by the names of its parameters.
    """
    having = {checkpoint.aliases.get(name, name): set(states) for name, states in live.items()}
    lost = {name: sorted(optimizer_states(checkpoint, name) - having.get(name, set())) for name in model if name not in checkpoint.aliases}
    return [f"{name} [{states[0]}] is in the checkpoint, and this optimizer has no such state" for name, states in lost.items() if states]


def make_states(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Makes the states of those parameters that have none, by a step whose gradients and learning rates are zero; returns these."""
    lacking = [one for one in parameters if one.requires_grad and not optimizer.state.get(one)]
    if not lacking:
        return []
    gradients = [(one, one.grad) for group in optimizer.param_groups for one in group["params"]]
    rates = [group.get("lr") for group in optimizer.param_groups]
    # In float16 eps may be 0, and 0 / 0 is not 0: the step then changes the values, which a refused load must not.
    halves = [(one, one.detach().clone()) for one in lacking if one.dtype is torch.float16]
    try:
        for one, _ in gradients:
            one.grad = None
        for one in lacking:
            one.grad = torch.zeros_like(one)
        for group, rate in zip(optimizer.param_groups, rates):
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        optimizer.step()
    except TypeError as error:  # it needs a closure
        raise Error("unsupported", f"{type(optimizer).__name__} makes no states without its closure ({error})",
                    "do a step with the optimizer before the load") from None
    finally:
        with torch.no_grad():
            for one, values in halves:
                one.copy_(values)
        for one, gradient in gradients:
            one.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates):
            if rate is not None:
                group["lr"] = rate
    return lacking


def forget_states(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.nn.Parameter]) -> None:
    for one in parameters:
        optimizer.state.pop(one, None)
