"""A live DeepSpeed engine as vectors and the parameters in them. All that this package knows of DeepSpeed's insides is here.

Tried with DeepSpeed 0.19.8. An attribute that another version lacks is an error that names the version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import deepspeed  # type: ignore[import-untyped,unused-ignore]
import torch
import torch.distributed as dist

from ._errors import Error

# The optimizers that DeepSpeed wraps around a user's, by class name. Others, for example ZenFlow's, keep state elsewhere too.
_ZERO_1_2, _ZERO_3, _BF16 = "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer"
_FUSED, _UNFUSED, _WITHOUT = "FP16_Optimizer", "FP16_UnfusedOptimizer", "DeepSpeedZeRoOffload"


class Span(NamedTuple):
    """Elements [begin, end) of a parameter, which begin at element `at` of an optimizer's vector on this rank."""

    name: str
    begin: int
    end: int
    vector: int
    at: int


class Vector(NamedTuple):
    """A tensor that the optimizer steps, for example this rank's partition of a parameter group, and all parameters cut into it."""

    master: torch.Tensor
    group: int
    names: list[str]


class LiveEngine:
    """The state of an engine on this rank.

    order: all names in the module's order, without second names. parameters, buffers: by name; the persistent buffers. aliases: pairs of
    second name and name. groups: the names in each parameter group, in the group's order. whole: every rank holds every span.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.wrapper = _need(engine, "optimizer")
        self.kind = _kind(engine, self.wrapper)
        self.stage = int(_need(engine, "zero_optimization_stage")())
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.aliases: list[tuple[str, str]] = []
        self.buffers: dict[str, torch.Tensor] = {}
        self.order: list[str] = []
        self._name_tensors()
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.vectors: list[Vector] = []
        self.spans: list[Span] = []
        self.groups: list[list[str]] = []
        self.whole = self.kind in (None, _FUSED, _UNFUSED)
        self.inner: Optional[torch.optim.Optimizer] = None
        if self.wrapper is not None and self.kind != _WITHOUT:
            self.inner = self.wrapper if self.kind is None else _need(self.wrapper, "optimizer")
            self._find_spans()

    # Names.

    def _name_tensors(self) -> None:
        module = _need(self.engine, "module")
        parameters = {id(one) for one in module.parameters()}
        buffers = {id(one) for one in module.buffers()}
        first: dict[int, str] = {}
        values = module.state_dict(keep_vars=True)
        for name, value in values.items():
            if id(value) in parameters:
                if first.setdefault(id(value), name) != name:
                    self.aliases.append((name, first[id(value)]))
                else:
                    self.parameters[name] = value
            elif id(value) in buffers:
                self.buffers[name] = value
            else:
                raise Error("unsupported", f"{name} of the module's state_dict is neither a parameter nor a buffer, "
                            f"but {type(value).__name__}")
        self.order = [name for name in values if name in self.parameters or name in self.buffers]
        for name, parameter in module.named_parameters():
            if id(parameter) not in first:
                raise Error("unsupported", f"the module's state_dict leaves out the parameter {name}")

    def _name(self, parameter: torch.nn.Parameter) -> str:
        if id(parameter) not in self._names:
            raise Error("unsupported", f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not in the module")
        return self._names[id(parameter)]

    def shape(self, name: str) -> tuple[int, ...]:
        parameter = self.parameters[name]
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def dtype(self, name: str) -> torch.dtype:
        parameter = self.parameters[name]
        dtype: torch.dtype = parameter.ds_tensor.dtype if hasattr(parameter, "ds_tensor") else parameter.dtype
        return dtype

    def weights(self, name: str) -> tuple[int, int, torch.Tensor]:
        """Returns the elements [begin, end) of the module's own copy of a parameter that this rank holds, and the tensor with them."""
        parameter: Any = self.parameters[name]
        if not hasattr(parameter, "ds_tensor"):
            return 0, parameter.numel(), parameter.data
        count, elements = parameter.ds_tensor.numel(), parameter.ds_numel
        begin = min(elements, _rank_of(parameter.ds_process_group) * count)
        return begin, min(elements, begin + count), parameter.ds_tensor.data

    # Where the optimizer keeps what.

    def _find_spans(self) -> None:
        {None: self._in_module, _UNFUSED: self._of_parameters, _FUSED: self._flat, _ZERO_1_2: self._partitioned,
         _BF16: self._partitioned_bf16, _ZERO_3: self._sliced}[self.kind]()

    def _add(self, master: torch.Tensor, group: int, named: list[tuple[str, int, int, int]]) -> None:
        """named: name, begin, end and place of each parameter that is cut into the vector."""
        for name, begin, end, at in named:
            if begin < end:
                self.spans.append(Span(name, begin, end, len(self.vectors), at))
        self.vectors.append(Vector(master, group, [name for name, *_ in named]))

    def _in_module(self) -> None:
        """Without a wrapper the optimizer steps the module's parameters."""
        for number, group in enumerate(self.wrapper.param_groups):
            self.groups.append([self._name(one) for one in group["params"]])
            for name, one in zip(self.groups[-1], group["params"]):
                self._add(one, number, [(name, 0, one.numel(), 0)])

    def _of_parameters(self) -> None:
        for number, (lower, masters) in enumerate(zip(_need(self.wrapper, "fp16_groups"), _need(self.wrapper, "fp32_groups"))):
            self.groups.append([self._name(one) for one in lower])
            for name, master in zip(self.groups[-1], masters):
                self._add(master, number, [(name, 0, master.numel(), 0)])

    def _flat(self) -> None:
        for number, (lower, master) in enumerate(zip(_need(self.wrapper, "fp16_groups"), _need(self.wrapper, "fp32_groups_flat"))):
            self.groups.append([self._name(one) for one in lower])
            self._add(master, number, [(name, 0, size, at) for name, size, at in self._laid_out(lower)])

    def _laid_out(self, parameters: list[torch.nn.Parameter]) -> Iterator[tuple[str, int, int]]:
        at = 0
        for one in parameters:
            yield self._name(one), one.numel(), at
            at += one.numel()

    def _partitioned(self) -> None:
        groups, laid_out = _need(self.wrapper, "bit16_groups"), _need(self.wrapper, "round_robin_bit16_groups")
        offsets, masters = _need(self.wrapper, "round_robin_bit16_offsets"), _need(self.wrapper, "single_partition_of_fp32_groups")
        for number, master in enumerate(masters):
            self.groups.append([self._name(one) for one in groups[number]])
            self._add_partition(number, master, [(self._name(one), one.numel(), at)
                                                 for one, at in zip(laid_out[number], offsets[number])])

    def _partitioned_bf16(self) -> None:
        for number, (lower, master) in enumerate(zip(_need(self.wrapper, "bf16_groups"),
                                                     _need(self.wrapper, "fp32_groups_flat_partition"))):
            self.groups.append([self._name(one) for one in lower])
            self._add_partition(number, master, list(self._laid_out(lower)))

    def _add_partition(self, group: int, master: torch.Tensor, laid_out: list[tuple[str, int, int]]) -> None:
        low = _rank_of(_need(self.wrapper, "real_dp_process_group")[group]) * master.numel()
        high = low + master.numel()
        cut = ((name, at, max(low, at), min(high, at + size)) for name, size, at in laid_out)
        self._add(master, group, [(name, begin - at, end - at, begin - low) for name, at, begin, end in cut])

    def _sliced(self) -> None:
        owners, counts = _need(self.wrapper, "sub_group_to_group_id"), _need(self.wrapper, "sub_group_partition_counts")
        if any(count != dist.get_world_size() for count in counts):
            raise Error("unsupported", "the engine partitions parameters among a part of the ranks (MiCS, experts)")
        self.groups = [[] for _ in self.wrapper.optimizer.param_groups]
        for number, (lower, master) in enumerate(zip(_need(self.wrapper, "fp16_groups"),
                                                     _need(self.wrapper, "fp32_partitioned_groups_flat"))):
            named, at = [], 0
            for name in [self._name(one) for one in lower]:
                begin, end, part = self.weights(name)
                named.append((name, begin, end, at))
                at += part.numel()
                self.groups[owners[number]].append(name)
            if master.numel() != at:
                raise Error("unsupported", f"sub-group {number} has {master.numel()} elements in memory, and its parameters {at}")
            self._add(master, owners[number], named)

    # Changing the engine.

    def begin_load(self) -> None:
        """All ranks: frees what was gathered of partitioned parameters."""
        if hasattr(self.wrapper, "checkpoint_event_prologue"):
            self.wrapper.checkpoint_event_prologue()

    @torch.no_grad()
    def end_load(self) -> None:
        """All ranks: makes the module's copy whole again where each rank changed its own part only, and links states to it."""
        if self.kind in (_ZERO_1_2, _BF16):
            from deepspeed.runtime.utils import all_gather_dp_groups  # type: ignore[import-untyped,unused-ignore]

            is_bf16 = self.kind == _BF16
            all_gather_dp_groups(
                groups_flat=_need(self.wrapper, "bf16_groups_flat" if is_bf16 else "bit16_groups_flat"),
                partitioned_param_groups=_need(self.wrapper, "bf16_partitioned_groups" if is_bf16 else "parallel_partitioned_bit16_groups"),
                dp_process_group=_need(self.wrapper, "real_dp_process_group"),
                start_alignment_factor=_need(self.wrapper, "nccl_start_alignment_factor"),
                allgather_bucket_size=_need(self.wrapper, "allgather_bucket_size"))
        if hasattr(self.wrapper, "_hp_optimizer_states_linked"):
            self.wrapper._hp_optimizer_states_linked = False  # the next step links them
        if hasattr(self.wrapper, "checkpoint_event_epilogue"):
            self.wrapper.checkpoint_event_epilogue()

    def adopt_states(self) -> None:
        """Lets the optimizer convert states that were set from outside, as it does in its load_state_dict()."""
        assert self.inner is not None
        if self.kind == _ZERO_3:
            _need(self.wrapper, "_set_fp32_optimizer_param_groups")()
        try:
            self.inner.__setstate__({"state": self.inner.state, "param_groups": self.inner.param_groups})
        except KeyError as error:
            raise Error("mismatch", f"the checkpoint lacks the optimizer state {error}, which {type(self.inner).__name__} needs",
                        "the engine has lost its own states: load a checkpoint that has them") from None
        if self.kind == _ZERO_3:
            _need(self.wrapper, "_clear_fp32_optimizer_param_groups")()

    # The loss scaler.

    def _scaler(self) -> Any:
        if self.kind in (_ZERO_1_2, _ZERO_3):
            return _need(self.wrapper, "loss_scaler")
        return _need(self.wrapper, "loss_scale_config") if self.kind in (_FUSED, _UNFUSED) else None

    def scaler_state(self) -> Optional[dict[str, Any]]:
        """Returns the fields that DeepSpeed saves of the loss scaler; None for an engine without one."""
        scaler = self._scaler()
        if self.kind not in (_FUSED, _UNFUSED):
            return None if scaler is None else dict(vars(scaler))
        if self.kind == _FUSED and not scaler.use_grad_scaling:
            return None
        names = ["dynamic_loss_scale", "cur_scale", "cur_iter"]
        names += ["last_overflow_iter", "scale_factor", "scale_window"] if scaler.dynamic_loss_scale else []
        return {name: _need(scaler, name) for name in names}

    def set_scaler_state(self, state: dict[str, Any]) -> None:
        """Takes the fields that this engine's scaler has too. A scaler of another kind, static or dynamic, stays as it is."""
        scaler = self._scaler()
        if scaler is None:
            return
        own = vars(scaler)
        is_dynamic = own.get("dynamic", own.get("dynamic_loss_scale", False))
        if bool(state.get("dynamic", state.get("dynamic_loss_scale", False))) == bool(is_dynamic):
            for name, value in state.items():
                if isinstance(own.get(name), (int, float)) and isinstance(value, (int, float)):
                    setattr(scaler, name, value)


def version() -> str:
    return str(deepspeed.__version__)


def _rank_of(group: Any) -> int:
    return dist.get_rank(group)


def _need(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        raise Error("unsupported", f"{type(holder).__name__} of DeepSpeed {version()} has no {name}",
                    "use a version of DeepSpeed near 0.19.8, or engine.save_checkpoint() and unishard convert") from None


def _kind(engine: Any, wrapper: Any) -> Optional[str]:
    """Returns the class of the optimizer's wrapper, None without one. Raises Error for engines that are not saved."""
    refused = {"a pipeline": getattr(engine, "pipeline_parallelism", False), "experts (MoE)": getattr(engine, "has_moe_layers", False),
               "tensor parallelism (AutoTP)": getattr(engine, "mp_world_size", 1) > 1 or _need(engine, "autotp_size")() > 1,
               "state that is offloaded to NVMe": getattr(wrapper, "swap_optimizer", False) or
               getattr(wrapper, "params_in_nvme_and_cpu", False),
               "quantized frozen weights": _need(engine, "zero_quantized_nontrainable_weights")()}
    for what, is_there in refused.items():
        if is_there:
            raise Error("unsupported", f"a DeepSpeed engine with {what} is not saved or loaded",
                        "use engine.save_checkpoint() and engine.load_checkpoint()")
    name = type(wrapper).__name__
    if name in (_ZERO_1_2, _ZERO_3, _BF16, _FUSED, _UNFUSED, _WITHOUT):
        return name
    if wrapper is None or isinstance(wrapper, torch.optim.Optimizer) and int(engine.zero_optimization_stage()) == 0:
        return None
    raise Error("unsupported", f"the engine's optimizer is a {name} of DeepSpeed {version()}, which is not known",
                "use engine.save_checkpoint() and engine.load_checkpoint()")
