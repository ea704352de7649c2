"""Copies of state dicts, as async_save() of torch.distributed.checkpoint (DCP) has them written beside the training."""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.tensor import DTensor

from ._parts import Part
from ._snapshot import Snapshot

_PATIENCE = 0.1  # seconds; DCP's thread lets go of the tensors just after its future has the result
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_loans: set[Snapshot] = set()  # whose copies exist


def staged(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of the state dict on the host, which shares no memory with the job, and waits for it.

    The tensors lie in the memory of earlier saves. It is given back when none of them exists any longer, however their save has ended.
    """
    _wait_for_memory()
    return copy.deepcopy(state_dict, _copies(list(_tensors(state_dict))))


def _copies(tensors: list[torch.Tensor]) -> dict[int, Any]:
    """Returns the copies by the id() of what they replace, as deepcopy() takes it. Tensors with the same elements in memory share one."""
    locals_ = {id(one): one.to_local().detach() if isinstance(one, DTensor) else one.detach() for one in tensors if _is_copied(one)}
    distinct = {_memory(one): one for one in locals_.values()}
    snapshot = Snapshot([Part((0, 0, one.numel()), one, 0) for one in distinct.values()])
    made = dict(zip(distinct, map(torch.Tensor.view, _lent(snapshot), [one.shape for one in distinct.values()])))
    by_id: dict[int, Any] = {}
    for one in tensors:
        if id(one) in locals_:
            local = made[_memory(locals_[id(one)])]
            by_id[id(one)] = _with_local(one, local) if isinstance(one, DTensor) else local
        else:
            by_id[id(one)] = one.detach().clone() if type(one) in _PLAIN else _copied_by_dcp({"": one})[""]
    return by_id


def _lent(snapshot: Snapshot) -> list[torch.Tensor]:
    """Returns the copies, each in a storage of its own, as torch.save() needs it. When the last storage is gone, the snapshot is released."""
    array = snapshot.content.numpy()  # what all the storages hold
    begin = array.ctypes.data
    _loans.add(snapshot)
    weakref.finalize(array, _end_loan, snapshot).atexit = False
    lent = []
    for _, local, _ in snapshot.parts:
        at = local.data_ptr() - begin
        lent.append(torch.frombuffer(array[at:at + local.numel() * local.element_size()], dtype=torch.uint8).view(local.dtype))
    return lent


def _end_loan(snapshot: Snapshot) -> None:
    _loans.discard(snapshot)
    snapshot.release()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _is_copied(tensor: torch.Tensor) -> bool:
    """Returns true for a block of elements in memory, or such a part of a DTensor."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return (type(local) in _PLAIN and local.layout is torch.strided and local.numel() > 0
            and not (local.is_meta or local.is_nested or local.is_quantized))


def _memory(one: torch.Tensor) -> Any:
    return one.data_ptr(), one.shape, one.stride(), one.dtype, one.device, one.is_conj(), one.is_neg()


def _with_local(tensor: DTensor, local: torch.Tensor) -> DTensor:
    """Returns a DTensor on the host. The function from_local() would move it to the device of the mesh."""
    detached = tensor.detach()
    names, context = detached.__tensor_flatten__()
    inner = {name: getattr(detached, name) for name in names}
    return DTensor.__tensor_unflatten__({**inner, "_local_tensor": local}, context, tensor.shape, tensor.stride())


def _copied_by_dcp(state_dict: dict[str, Any]) -> dict[str, Any]:
    return _copy_state_dict(state_dict, _create_cpu_state_dict(state_dict), type_check=False)


def _wait_for_memory() -> None:
    """Waits a moment for the end of an earlier save. One that lasts longer keeps its memory, and the next save has its own."""
    end = time.monotonic() + _PATIENCE
    while _loans and time.monotonic() < end:
        time.sleep(0.001)
