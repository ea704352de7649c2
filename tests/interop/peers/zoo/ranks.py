"""Makers whose runs have several ranks: DCP folders and rank files of FSDP1 and FSDP2, DeepSpeed, Megatron-Core."""

import logging
import multiprocessing
import os
import random
import time
import traceback

import torch
from free_port import free_port

from . import models


def spawn(function, world, *arguments):
    """Runs function(rank, world, *arguments) in `world` processes with gloo."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_rank, args=(rank, world, port, function, arguments)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    late = time.monotonic() + 120
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < late:
        if any(rank.exitcode for rank in ranks):  # the others would wait for it
            late = min(late, time.monotonic() + 3)
        time.sleep(0.02)
    for rank in ranks:
        if rank.is_alive():
            rank.kill()
            rank.join()
    failed = [i for i, rank in enumerate(ranks) if rank.exitcode != 0]
    if failed:
        raise RuntimeError(f"ranks {failed} failed")


def run_rank(rank, world, port, function, arguments):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        LOCAL_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    status = 0
    try:
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=rank, world_size=world)
        function(rank, world, *arguments)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        status = 1
    os.sys.stderr.flush()
    os._exit(status)  # threads of gloo and DeepSpeed may outlive the group


def kept(folder):
    return torch.load(folder / "rank0.pt", weights_only=False)


def keep(folder, truth):
    torch.save(truth, folder / "rank0.pt")


def sharded_net(rng, rank, world, features, kind, dtype="fp32"):
    """A model and its optimizer under FSDP1, FSDP2, HSDP, DDP or FSDP2 beside tensor parallelism, after two steps."""
    from torch.distributed.device_mesh import init_device_mesh

    net = models.make_net(rng, features, dtype)
    blocks = getattr(net, net.blocks)
    layout = rng.random()
    optimizer_kind, ways = (
        rng.choice(("adamw", "adamw", "adamw amsgrad", "sgd momentum", "sgd", "adagrad")),
        ("one", "decay", "layers", "shuffled"),
    )
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        if any(not p.requires_grad for p in net.parameters()):  # a flat parameter is frozen as a whole
            origin = True
        else:
            origin = layout < 0.6
        vocabulary = net.vocabulary
        net = FullyShardedDataParallel(
            net, use_orig_params=origin, auto_wrap_policy=ModuleWrapPolicy({models.Block}), device_id=torch.device("cpu")
        )
        net.vocabulary = vocabulary
        kind += " use_orig_params" if origin else " flat"
        if not origin:
            ways = ("one",)
        optimizer_kind = optimizer_kind.replace(" amsgrad", "")  # torch's own full state dict mixes up its states
    elif kind == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
        net.vocabulary = net.module.vocabulary
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(
            "cpu",
            (2, world // 2) if kind == "hsdp" and world % 2 == 0 else (world,),
            mesh_dim_names=("replicate", "shard") if kind == "hsdp" and world % 2 == 0 else ("shard",),
        )
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    parameters, way = models.arrange(net, rng, ways)
    optimizer = models.OPTIMIZERS[optimizer_kind](parameters)
    models.train(net, optimizer, 2, rank)
    for buffer in net.buffers():  # each rank has statistics of its own, and any rank's may be saved
        torch.distributed.broadcast(buffer, 0)
    optimizer.kind = optimizer_kind
    return net, optimizer, f"{kind} on {world}, {optimizer_kind}, {way}, {features}"


def whole_state(net, optimizer):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    return get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def truth_of_sharded(net, optimizer, gathered=None):
    """The truth under the names of get_state_dict(), in full shapes."""
    whole, states = gathered or whole_state(net, optimizer)
    if not whole:  # ranks other than 0
        return {}
    first, aliases = {}, {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        bare = name
        for wrapper in ("module.", "_fsdp_wrapped_module.", "_orig_mod."):
            bare = bare.replace(wrapper, "") if wrapper != "module." or bare.startswith(wrapper) and bare not in whole else bare
        if id(parameter) in first:
            aliases[bare] = first[id(parameter)]
        first.setdefault(id(parameter), bare)
    aliases = {second: target for second, target in aliases.items() if second in whole and target in whole}
    order = [name for group in states["param_groups"] for name in group["params"]]
    inner = {name: models.copied(state) for name, state in states["state"].items()}
    return {
        "weights": models.copied(dict(whole)),
        "masters": {},
        "aliases": aliases,
        "states": inner,
        "order": order,
        "groups": [models.copied(group) for group in states["param_groups"]],
        "step": models.steps_of(inner),
        "optimizer": optimizer.kind,
        "others": [],
    }


def states_of_keys(states, flat):
    """The same states with the values of a DCP folder."""
    found = {key.split("state.", 1)[1]: value for key, value in flat.items() if "state." in key}
    return {name: {state: found.get(f"{name}.{state}", value) for state, value in inner.items()} for name, inner in states.items()}


def dcp_rank(rank, world, folder, seed):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict

    rng = random.Random(seed)
    features = models.draw(rng, ("tied", "frozen", "batchnorm", "buffer", "dead", "deep", "conv", "unused", "empty"))
    kind = rng.choice(("fsdp2", "fsdp2", "fsdp1", "hsdp", "ddp"))
    if kind in ("fsdp1",):
        features = [feature for feature in features if feature not in ("frozen", "dead", "tied", "empty")]
    if "unused" in features and kind in ("hsdp", "fsdp2"):
        features.remove("unused")
    net, optimizer, about = sharded_net(rng, rank, world, features, kind, rng.choice(("fp32", "fp32", "bf16")))
    layout = rng.choice(("model-optim", "model-optim", "app", "flat", "titan", "lightning", "weights", "values", "twice"))
    weights, states = get_state_dict(net, optimizer)
    others = []
    if layout == "model-optim":
        state = {"model": weights, "optim": states}
    elif layout == "app":
        state = {"app": {"model": weights, "optim": states, "epoch": 4}}
    elif layout == "flat":
        state = {**weights, "optim": states}
    elif layout == "titan":
        flat = get_optimizer_state_dict(net, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        state = {
            **weights,
            "optimizer": flat,
            "lr_scheduler": {"last_epoch": 2, "_last_lr": [1e-3]},
            "train_state": {"step": torch.tensor(2, dtype=torch.int32), "losses": b"\x80\x04K\x01."},
            "dataloader": {"dp_rank_0": b"\x80\x04K\x01.", "world_size": world},
        }
        if rng.random() < 0.5:
            state = {
                **weights,
                **{f"optimizer.{key}": value for key, value in flat.items()},
                **{k: state[k] for k in ("lr_scheduler", "train_state", "dataloader")},
            }
    elif layout == "lightning":
        state = {"model": weights, "optimizer_0": states}
    elif layout == "weights":
        state = {"model": get_model_state_dict(net)} if rng.random() < 0.5 else get_model_state_dict(net)
    elif layout == "values":
        state = {
            "model": weights,
            "optim": states,
            "extra": torch.arange(5),
            "rng": torch.get_rng_state(),
            "text": "a",
            "list": [1, torch.ones(2), {"a": 2.5}],
        }
        others = ["extra", "rng"]
    else:
        average = {key: value + 1 if value.is_floating_point() else value for key, value in weights.items()}
        state = {"model": weights, "ema": average, "optim": states}
        others = [f"ema.{key}" for key in weights]
    path = "run/step-2" if rng.random() < 0.3 else "run"
    dcp.save(state, checkpoint_id=folder / path)
    if rank == 0 and layout == "lightning":
        torch.save(
            {
                "epoch": 3,
                "global_step": 2,
                "pytorch-lightning_version": "2.6.6",
                "loops": {},
                "callbacks": {},
                "lr_schedulers": [{"last_epoch": 1}],
                "hyper_parameters": {"lr": 1e-2},
            },
            folder / path / "meta.pt",
        )
    truth = truth_of_sharded(net, optimizer)
    if rank == 0:
        if kind == "fsdp1":  # its full state dict of torch 2.15 mixes up the states of a parameter, its sharded one does not
            from .judge import read_dcp

            truth["states"] = states_of_keys(truth["states"], read_dcp(folder / path))
        if layout == "weights":
            truth.update(states={}, groups=[], step=None)
        keep(folder, {**truth, "format": "dcp", "input": path, "others": others, "about": f"{layout}: {about}"})


def dcp(folder, rng):
    """DCP folders of FSDP1, FSDP2, HSDP and DDP in the arrangements of scripts."""
    spawn(dcp_rank, rng.choice((1, 2, 2, 3, 4)), folder, rng.random())
    return kept(folder)


def verl_rank(rank, world, folder, seed):
    """verl's saver: model_world_size_N_rank_R.pt and optim_... with the sharded state dicts of each rank."""
    rng = random.Random(seed)
    features = models.draw(rng, ("batchnorm", "buffer", "deep", "conv", "tied", "frozen"))
    kind = rng.choice(("fsdp2", "fsdp1", "hsdp"))
    if kind == "fsdp1":
        features = [feature for feature in features if feature not in ("frozen", "tied")]
    net, optimizer, about = sharded_net(rng, rank, world, features, kind, rng.choice(("fp32", "bf16")))
    place = folder / "global_step_2" / "actor"
    place.mkdir(parents=True, exist_ok=True)

    def write():
        torch.save(net.state_dict(), place / f"model_world_size_{world}_rank_{rank}.pt")
        torch.save(optimizer.state_dict(), place / f"optim_world_size_{world}_rank_{rank}.pt")
        torch.save(
            {"lr_scheduler": {"last_epoch": 2}, "rng": {"cpu": torch.get_rng_state()}},
            place / f"extra_state_world_size_{world}_rank_{rank}.pt",
        )

    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType

        with FullyShardedDataParallel.state_dict_type(
            net,
            StateDictType.SHARDED_STATE_DICT,
            ShardedStateDictConfig(offload_to_cpu=True),
            ShardedOptimStateDictConfig(offload_to_cpu=True),
        ):
            write()
    else:
        write()
    truth = truth_of_sharded(net, optimizer)
    if rank == 0:
        if kind == "fsdp1":  # see dcp_rank
            truth["states"] = {}
        keep(folder, {**truth, "format": "ranks", "input": "global_step_2/actor", "about": f"verl: {about}"})


def verl(folder, rng):
    """verl's rank files."""
    spawn(verl_rank, rng.choice((1, 2, 2, 3)), folder, rng.random())
    return kept(folder)


def full_rank(rank, world, folder, seed):
    """A full state dict, gathered and saved by rank 0 as Lightning's FSDP strategy and torchtune do."""
    rng = random.Random(seed)
    features = models.draw(rng, ("batchnorm", "buffer", "deep", "conv", "tied"))
    kind = rng.choice(("fsdp2", "fsdp1", "hsdp"))
    if kind == "fsdp1":
        features = [feature for feature in features if feature != "tied"]
    net, optimizer, about = sharded_net(rng, rank, world, features, kind)
    whole, states = whole_state(net, optimizer)
    truth = truth_of_sharded(net, optimizer, (whole, states))
    if rank == 0:
        style = rng.choice(("pair", "lightning"))
        state = (
            {
                "state_dict": whole,
                "optimizer_states": [states],
                "epoch": 1,
                "global_step": 2,
                "pytorch-lightning_version": "2.6.6",
                "loops": {},
                "callbacks": {},
                "lr_schedulers": [],
            }
            if style == "lightning"
            else {"model": whole, "optimizer": states}
        )
        torch.save(state, folder / "full.ckpt")
        keep(folder, {**truth, "format": "torch", "input": "full.ckpt", "about": f"{style}: {about}"})


def full(folder, rng):
    """Full state dicts of FSDP in one file, whose optimizers have names for numbers."""
    spawn(full_rank, 2, folder, rng.random())
    return kept(folder)


STATES = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "sgd momentum": ("momentum_buffer",),
    "sgd": (),
    "adagrad": ("sum",),
}


def deepspeed_rank(rank, world, folder, seed):
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    logging.disable(logging.WARNING)
    get_accelerator().is_fp16_supported = lambda: True  # torch computes fp16 on any CPU
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)
    rng = random.Random(seed)
    stage, dtype = rng.choice((0, 1, 2, 2, 3, 3)), rng.choice(("fp32", "fp32", "bf16", "fp16"))
    features = models.draw(rng, ("tied", "frozen", "buffer", "batchnorm", "deep", "conv", "dead", "twice"))
    if stage == 3 or dtype != "fp32":
        features = [feature for feature in features if feature not in ("batchnorm",)]
    net = models.make_net(rng, features)
    kind = rng.choice(list(STATES))
    parameters, way = models.arrange(net, rng, ("one", "decay", "shuffled", "reversed") if stage < 3 else ("one", "decay"))
    optimizer = models.OPTIMIZERS[kind](parameters)
    names = {id(p): name for name, p in net.named_parameters()}
    groups = [
        {
            **models.copied({key: value for key, value in group.items() if key != "params"}),
            "params": [names[id(p)] for p in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": rng.choice((0, 20, 100000)),
            "sub_group_size": rng.choice((100, 10**9)),
            "reduce_bucket_size": rng.choice((50, 10**8)),
        },
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True, **({"initial_scale_power": 4} if dtype == "fp16" else {})}
    if dtype == "bf16" and stage and rng.random() < 0.2:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]
    if kind == "adagrad" and stage:  # ZeRO makes Adagrad anew with its defaults, and trains with these
        for group in groups:
            group.update(models.copied(optimizer.defaults))
    for step in range(2):
        engine.backward(engine(models.batch(net, rank, step)))
        engine.step()
    steps = 2 - engine.skipped_steps  # fp16 may overflow
    kept_states = STATES[kind] if steps else ()
    without_frozen = "frozen" in features and rng.random() < 0.3
    engine.save_checkpoint(
        str(folder / "run"), client_state={"epoch": 2, "note": "text", "values": [1, 2.5]}, exclude_frozen_parameters=without_frozen
    )
    truth = {
        "weights": {},
        "masters": {},
        "aliases": models.aliases_of(net),
        "states": {},
        "order": [name for group in groups for name in group["params"]],
        "groups": groups,
        # With 16 bits at stage 0 DeepSpeed's optimizer has counted one that makes its states.
        "step": models.steps_of(getattr(engine.optimizer, "optimizer", engine.optimizer).state) or steps or None,
        "optimizer": kind,
        "others": [],
    }
    trained = stage > 0 or dtype != "fp32"
    left_out = {}
    for name, p in net.named_parameters():
        if stage == 3:
            with deepspeed.zero.GatheredParameters([p]):
                truth["weights"][name] = p.detach().clone()
        else:
            truth["weights"][name] = p.detach().clone()
        if not p.requires_grad:
            if without_frozen:
                left_out[name] = truth["weights"].pop(name)
            continue
        if trained and stage > 0:
            truth["masters"][name] = safe_get_full_fp32_param(p).clone()
            truth["states"][name] = {state: safe_get_full_optimizer_state(p, state).clone() for state in kept_states}
        elif dtype == "fp32":
            truth["states"][name] = {key: value.clone() for key, value in optimizer.state[p].items() if key != "step"}
    truth["weights"].update({name: buffer.clone() for name, buffer in net.named_buffers()})
    for second, first in truth["aliases"].items():
        if first in truth["weights"]:
            truth["weights"][second] = truth["weights"][first]
        if first in left_out and stage < 3:
            truth["weights"][second] = left_out[first]  # DeepSpeed leaves out the first name of a tied parameter only
        if first in truth["masters"]:
            truth["masters"][second] = truth["masters"][first]
    truth["aliases"] = {second: first for second, first in truth["aliases"].items() if first in truth["weights"]}
    if rank == 0:
        keep(
            folder,
            {
                **truth,
                "format": "deepspeed",
                "input": "run",
                "masters_known": stage > 0,
                "world": world,
                "partial": without_frozen,
                "stage": stage,
                "about": f"stage {stage} on {world}, {dtype}, {kind}, {way}, {features}{', without frozen' if without_frozen else ''}, "
                f"{config['zero_optimization']}",
            },
        )


def deepspeed(folder, rng):
    """DeepSpeed's engine at stages 0 to 3 with optimizers of torch."""
    spawn(deepspeed_rank, rng.choice((1, 2, 2, 3)), folder, rng.random())
    return kept(folder)


def megatron_rank(rank, world, folder, seed):
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_stream = lambda *a: None
    import megatron.core
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories, is_main_replica
    from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    rng = random.Random(seed)
    tensor = rng.choice((1, world))
    pipeline = world // tensor
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)
    experts = rng.choice((None, None, 2)) if pipeline == 1 and tensor == 1 else None
    dtype = torch.bfloat16 if rng.random() < 0.4 else torch.float32
    options = {
        "num_layers": 2 * pipeline,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "ffn_hidden_size": 24,
        "add_bias_linear": rng.random() < 0.5 and not experts,
        "gated_linear_unit": rng.random() < 0.5,
        "num_moe_experts": experts,
        "normalization": rng.choice(("LayerNorm", "LayerNorm")),
        "qk_layernorm": rng.random() < 0.3,
    }
    config = TransformerConfig(
        use_cpu_initialization=True,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        **options,
    )
    torch.manual_seed(rng.randrange(1000))
    shared = rng.random() < 0.5
    net = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False, qk_layernorm=options["qk_layernorm"]),
        vocab_size=32,
        max_sequence_length=16,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=shared,
    )
    parameters = list(net.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=0.01, weight_decay=0.1)
    for step in range(2):
        for master in masters:
            master.grad = master.detach() * (0.1 + step) + 0.01
        optimizer.step()
    with torch.no_grad():
        for p, master in zip(parameters, masters):
            p.copy_(master)
    states = optimizer.state_dict()
    steps = {int(state.pop("step")) for state in states["state"].values()}
    for number, master in enumerate(masters):
        states["state"][number]["fp32_param"] = master.detach().clone()
    optim_state_to_sharding_state(states, get_param_id_to_sharded_param_map(net.sharded_state_dict(), parameters))
    states["param_groups"][0]["step"] = max(steps)
    generator = ShardedObject("rng_state", [{"torch_rng_state": torch.get_rng_state()}], (1, 1), (0, 0), replica_id=rank)
    state = {
        "model": net.sharded_state_dict(),
        "optimizer": states,
        "iteration": 2,
        "checkpoint_version": 3.0,
        "rng_state": generator,
        "opt_param_scheduler": {"num_steps": 2, "max_lr": 0.01},
        "args": {"hidden_size": 16},
    }
    copy, pieces = {"model": net.sharded_state_dict(), "optimizer": {**states, "state": dict(states["state"])}}, []
    apply_factories(copy)
    for value in nested_values(copy):
        if isinstance(value, ShardedTensor) and is_main_replica(value.replica_id):
            pieces.append(
                (value.key, tuple(value.global_shape), tuple(value.global_offset), value.prepend_axis_num, value.data.detach().clone())
            )
    place = folder / "run" / "iter_0000002"
    if rank == 0:
        place.mkdir(parents=True)
        (folder / "run" / "latest_checkpointed_iteration.txt").write_text("2")
    torch.distributed.barrier()
    dist_checkpointing.save(state, str(place))
    everything = [None] * world
    torch.distributed.all_gather_object(everything, pieces)
    if rank == 0:
        keep(
            folder,
            {
                **whole_of_pieces([piece for some in everything for piece in some]),
                "format": "megatron",
                "input": "run",
                "step": 2,
                "about": f"Megatron-Core {megatron.core.__version__}, tp {tensor}, pp {pipeline}, {dtype}, {options}, shared {shared}",
            },
        )


def whole_of_pieces(pieces):
    truth = {"weights": {}, "masters": {}, "aliases": {}, "states": {}, "order": [], "groups": [], "others": []}
    whole = {}
    for key, shape, offset, prepended, data in pieces:
        tensor = whole.setdefault(key, torch.zeros(shape, dtype=data.dtype))
        view = data.reshape((1,) * prepended + tuple(data.shape))
        tensor[tuple(slice(o, o + n) for o, n in zip(offset, view.shape))] = view
    for key, tensor in whole.items():
        for state in ("fp32_param", "exp_avg", "exp_avg_sq"):
            prefix = f"optimizer.state.{state}."
            if key.startswith(prefix):
                name = key[len(prefix) :]
                if state == "fp32_param":
                    truth["masters"][name] = tensor
                else:
                    truth["states"].setdefault(name, {})[state] = tensor
                break
        else:
            truth["weights"][key] = tensor
    return truth


def megatron(folder, rng):
    """Megatron-Core's torch_dist with tensor or pipeline parallelism, an AdamW beside the model."""
    spawn(megatron_rank, rng.choice((1, 2)), folder, rng.random())
    return kept(folder)
