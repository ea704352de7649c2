"""UniShard checkpoints as a storage of torch.distributed.checkpoint (DCP).

    import torch.distributed.checkpoint as dcp
    from unishard.dcp import Reader, Writer

    dcp.save(state_dict, storage_writer=Writer("runs/job", step=100))        # async_save() too
    dcp.load(state_dict, storage_reader=Reader("runs/job"))                  # any world size and mesh

The state dict, its keys and its planners are DCP's: plain, DDP, FSDP2, HSDP, tensor-parallel and expert-parallel tensors, objects, and
Stateful values. The result is a UniShard checkpoint: with tags, committed atomically, with checksums, and every tool takes it. It has
the catalog that the tools find in a folder of DCP's FileSystemWriter with the same state dict (MAPPING.md says how).
Needs torch 2.5 or newer.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import dataclasses
import gc
import io
import json
import os
import threading
import warnings
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _checkpoint, _native
from . import _ranks as ranks
from . import _runs as runs
from ._background import settle
from ._errors import Error
from ._parts import Part, flat_elements, require_dense, write_shard
from ._saving import path_of, require_arguments, require_count
from ._shards import Box, first_element, run_elements
from ._staging import staged
from ._state_dict import Entry, entries, packed
from ._state_dict_plan import (Description, Labels, Object, box_of, equal_pieces, full_plans, group_objects, names_parameters, object_of,
                               planner_of_caller)
from ._unpickling import require_data
from .torch import _client_json, _read

PathLike = Union[str, "os.PathLike[str]"]

_THREADS = 4
_MOST_THREADS = 1024
_SHARD = MetadataIndex("unishard.shard")  # what the index of a rank's own result is; no key of a state dict
_unfinished: weakref.WeakSet[_OneSave] = weakref.WeakSet()


class _Order(NamedTuple):
    """What the coordinator tells a rank."""

    rank: int
    place: dict[str, str]
    catalog: bytes  # JSON, compressed: the tensors, each with its key
    options: dict[str, Any]


class _Shard(NamedTuple):
    """What a rank tells the coordinator."""

    rank: int
    entry: dict[str, Any]


class _OneSave:
    """What a Writer knows of one save: the checkpoint's place, and on the coordinator the save that has begun."""

    def __init__(self, path: Optional[str], tag: Optional[str], meant: int = 0, step: Optional[int] = None) -> None:
        self._path, self._tag = path, tag
        self._number = runs.begin(path, meant, step) if path and tag and ranks.rank() == 0 else 0
        self._claim: Optional[runs.Claim] = None
        self._save: Optional[_native.Save] = None
        self.is_coordinator = False
        self.description: Optional[Description] = None
        self.tensors: list[dict[str, Any]] = []
        self.planner: Optional[SavePlanner] = None
        self.early: dict[str, Object] = {}

    @property
    def place(self) -> dict[str, str]:
        assert self._save is not None
        return self._save.place

    def begin(self, catalog: dict[str, Any], options: dict[str, Any], fresh: bool) -> dict[str, Any]:
        """Makes the staging folder. Returns the options for the shards."""
        if self._path is None:
            raise Error("invalid argument", "the Writer has no folder", "pass one, or checkpoint_id to dcp.save()")
        path = os.path.abspath(self._path)
        folder, tag = (self._path, self._tag) if self._tag is not None else (os.path.dirname(path), os.path.basename(path))
        options = {**options, "base": _base_path(folder, options["base"])}
        planned = {**catalog, "producer": None}
        if self._tag is None:
            self._save = _native.Save(folder, tag, planned, {**options, "move_latest": False})
        else:
            self._claim = runs.claim(folder, fresh)
            self._save = _native.Save(folder, tag, planned, {**self._claim.options(tag, options), "commit_number": self._number})
        self._tag = tag
        _unfinished.add(self)
        return options

    def publish(self, catalog: dict[str, Any], entries: list[dict[str, Any]]) -> list[str]:
        """Commits the checkpoint. Returns sentences on what failed afterwards."""
        assert self._save is not None and self._tag is not None
        self._save.describe(catalog)
        sentences = self._save.publish(entries)
        if self._claim:
            self._claim.saved(self._tag)
        return sentences

    def close(self) -> None:
        """Removes what is not published. May be called again."""
        if self._save is not None:
            self._save.close()
        self._save, self.planner, self.description = None, None, None
        _unfinished.discard(self)


class Writer(StorageWriter):
    """Saves state dicts of DCP as UniShard checkpoints: the argument `storage_writer` of dcp.save() and dcp.async_save().

    folder: of the run. With `tag` or `step` the checkpoint is `folder`/`tag`, and `latest` moves to it; else it is `folder` itself, whose
    name is then the tag. Without a folder, DCP's argument checkpoint_id is the path of the checkpoint.
    The folder of tags is that of one run, and the job holds it until it ends. A job that finds checkpoints there at its first save must
    have loaded one of them with Reader or another loader of this package, or it fails with the code "already exists".
    step: recorded as the checkpoint's step; default: what the optimizer's states count. tag: default global_step<step>.
    client_state: plain data without tensors, beside the state dict's own values. keep_last: complete checkpoints of the folder to keep, 0 for
    all; it needs `tag` or `step`.
    compress: "none", "zstd" or "auto", with a level as in "zstd:3". replace: may an older UniShard checkpoint of this tag be replaced.
    base: path of an older checkpoint of the same world size, or "latest": chunks that it has as well are shared and not written.
    fresh: save beside the checkpoints of another run: none of them is replaced or removed; `latest` names the new ones.
    All ranks pass the same arguments; for base "latest", rank 0 decides. Readers see the older checkpoints only until the new one is
    complete. An error on one rank becomes DCP's CheckpointException on all, and nothing of the save can be seen. What another rank's
    failure leaves on disk goes with close(), the next save of this process, the Writer's end, or the end of the process.
    Thread safety: saves on several threads, as async_save() makes them, may overlap, also those of one Writer; on several ranks only with a
    process group for each, because DCP communicates on these threads. `latest` follows the one
    that DCP began last, and keep_last counts from it, but for a save of a lower `step` whose Writer is the older one, however late it
    begins. Of two that write the same tag, the later one fails with the code "busy".
    For async_save() a Writer is DCP's stager as well: it copies the state to memory of earlier saves, which is pinned for CUDA tensors.
    """

    def __init__(self, folder: Optional[PathLike] = None, *, step: Optional[int] = None, tag: Optional[str] = None,
                 client_state: Optional[dict[str, Any]] = None, keep_last: int = 0, compress: str = "none", replace: bool = True,
                 base: Optional[PathLike] = None, fresh: bool = False) -> None:
        super().__init__()
        require_arguments(step=0 if step is None else step, keep_last=keep_last, tag=tag, compress=compress, client_state=client_state)
        if keep_last and step is None and tag is None:
            raise Error("invalid argument", "keep_last counts the tags of a folder, and this Writer has none", "pass step or tag")
        self._path = None if folder is None else path_of(folder)
        self._step = step
        self._tag = tag if tag is not None or step is None else f"global_step{step}"
        self._client_state = _client_json(client_state or {})
        self._base = None if base is None else os.fspath(base)
        self._options = {"compression": compress, "replace": replace, "keep_last": keep_last}
        self._fresh = fresh
        self._meant = runs.reserve(self._path) if self._path and self._tag and ranks.rank() == 0 else 0
        self._saves: dict[int, _OneSave] = {}  # by thread: DCP makes all calls of one save on one thread

    @property
    def _save(self) -> _OneSave:
        thread = threading.get_ident()
        if thread not in self._saves:
            self._saves[thread] = self._new_save()
        return self._saves[thread]

    def _new_save(self) -> _OneSave:
        return _OneSave(self._path, self._tag, self._meant, self._step)

    def close(self) -> None:
        """Removes what failed saves have left. May be called again, and not while a save runs."""
        for one in self._saves.values():
            one.close()
        self._saves.clear()

    def __del__(self) -> None:
        if getattr(self, "_saves", None):
            self.close()

    # DCP's protocol AsyncStager, which it knows by these names (in every torch from 2.5 on) and close().

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the state dict, whose memory later saves use again. It is complete: training may change the state."""
        return staged(state_dict)

    def synchronize_staging(self) -> None:
        """Returns at once, because stage() has waited for the copies."""

    # What DCP calls, in this order.

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: Optional[PathLike] = None) -> None:
        if former := self._saves.get(threading.get_ident()):
            former.close()
        self._saves[threading.get_ident()] = self._new_save() if checkpoint_id is None else _OneSave(path_of(checkpoint_id), None)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True) and dist.is_initialized() and dist.get_world_size() > 1:
            raise Error("unsupported", "ranks that save without collectives make no checkpoint together", "use_collectives=True")
        settle()
        self._save.is_coordinator = is_coordinator
        if _unfinished:
            gc.collect()  # a Writer whose save has failed may be kept alive by the exception's frames alone

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        planner = planner_of_caller()
        if planner is None:
            return dataclasses.replace(plan, storage_data={})
        self._save.planner = planner if self._save.is_coordinator else None
        is_kept = getattr(planner, "_enable_plan_caching", False)  # a later save with other elements would get the same plan
        return dataclasses.replace(plan, storage_data={} if is_kept else equal_pieces(plan.items, planner))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        plans, save = full_plans(plans), self._save
        labels: list[Labels] = [plan.storage_data if isinstance(plan.storage_data, dict) else {} for plan in plans]
        save.description = Description(plans, labels)
        save.early = group_objects(plans, save.planner) if save.planner else {}
        save.planner = None
        catalog = self._described(save.description.planned({}, save.early), {})
        save.tensors = catalog["tensors"]
        options = save.begin(catalog, {**self._options, "base": self._base}, self._fresh)
        rows = [{key: row[key] for key in ("name", "state", "dtype", "shape", "key")} for row in catalog["tensors"]]
        sent = zlib.compress(json.dumps({"tensors": rows, "step": 0, "world_size": len(plans)}).encode(), 1)
        return [dataclasses.replace(plan, storage_data=_Order(rank, save.place, sent, options)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        try:
            done.set_result(_written(plan, planner))
        except BaseException:
            self._save.close()
            raise
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            self._finish([result for of_rank in results for result in of_rank])
        finally:
            self._saves.pop(threading.get_ident()).close()

    def _finish(self, results: list[WriteResult]) -> None:
        save = self._save
        assert save.description is not None
        shards = sorted((result.storage_data for result in results if isinstance(result.storage_data, _Shard)),
                        key=lambda shard: shard.rank)
        constants = {result.index.fqn: result.storage_data for result in results if isinstance(result.storage_data, bytes)}
        objects = {result.index.fqn: result.storage_data for result in results if isinstance(result.storage_data, Object)}
        nameless = {key: one for key, one in objects.items() if not names_parameters(key)}
        for known in (objects, {**nameless, **save.early}, save.early):
            planned = save.description.planned(constants, known)
            if list(map(_identity, planned["tensors"])) == list(map(_identity, save.tensors)):
                break  # else: objects that were unknown when the tensors were named
        for sentence in save.publish(self._described(planned, objects), [shard.entry for shard in shards]):
            warnings.warn(sentence, stacklevel=4)

    def _described(self, planned: dict[str, Any], objects: dict[str, Object]) -> dict[str, Any]:
        """Returns the catalog with what the state dict itself does not say."""
        producer = planned["producer"]
        exact = packed({key: one.pickle for key, one in objects.items() if one.pickle is not None})
        for row in producer["state_dict"]["objects"]:
            key = row[0]
            if key in exact:
                row.append(exact[key])
            elif key in objects:
                row[2] = objects[key].value
        producer["state_dict"]["order"] = self._save.description.order(producer["state_dict"]) if self._save.description else []
        if notes := [*planned["notes"], *planned["remarks"]]:
            producer["notes"] = notes
        producer["torch"] = torch.__version__
        client_state = planned["client_state"]
        if self._client_state:
            client_state = {**(client_state if isinstance(client_state, dict) else {}), **self._client_state}
        return {**planned, "client_state": client_state, "step": planned["step"] if self._step is None else self._step}


@atexit.register
def _close_unfinished() -> None:
    for save in list(_unfinished):
        save.close()


def _identity(row: dict[str, Any]) -> Any:
    return row["name"], row["state"], row["key"]


def _base_path(folder: str, base: Optional[str]) -> str:
    """Returns the folder of the base; "" where "latest" names none."""
    if base != "latest":
        if base and not (Path(base) / "manifest.json").exists():
            raise Error("not found", f"{base} is no UniShard checkpoint with which chunks could be shared",
                        "name the folder of an older tag, or \"latest\"")
        return base or ""
    try:
        return os.path.join(folder, (Path(folder) / "latest").read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return ""


def _written(plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
    """Writes one rank's shard."""
    order = plan.storage_data
    if not isinstance(order, _Order):
        raise Error("invalid argument", "the planner has lost the plan's storage_data", "keep it in finish_plan()")
    catalog = json.loads(zlib.decompress(order.catalog))
    numbers = {row["key"]: number for number, row in enumerate(catalog["tensors"])}
    parts: list[tuple[int, Part]] = []  # with their first elements
    results: list[WriteResult] = []
    for item in plan.items:
        key = item.index.fqn
        if item.tensor_data is None:
            value = object_of(planner, item)
            results.append(WriteResult(item.index, value.size, value))
            continue
        box, shape = box_of(item), tuple(item.tensor_data.size)
        if box.elements == 0:
            continue
        if key in numbers:
            local = _local(planner, item, box)
            parts.append((first_element(box, shape), Part(_fragment(numbers[key], box, shape), local, 0)))
            results.append(WriteResult(item.index, local.numel() * local.element_size(), None))
        elif box.elements == 1 and len(shape) == shape.count(1):
            content = flat_elements(_local(planner, item, box)).view(torch.uint8).cpu().numpy().tobytes()
            results.append(WriteResult(item.index, len(content), content))
    parts.sort(key=lambda placed: (placed[1].fragment[0], placed[0]))
    entry = write_shard(order.place, catalog, order.rank, [part for _, part in parts], order.options)
    return [*results, WriteResult(_SHARD, 0, _Shard(order.rank, entry))]


def _fragment(number: int, box: Box, shape: tuple[int, ...]) -> _native.Fragment:
    begin = first_element(box, shape)
    is_range = run_elements(box, shape) == box.elements
    return (number, begin, begin + box.elements) if is_range else (number, box.offset, box.sizes)


def _local(planner: SavePlanner, item: Any, box: Box) -> torch.Tensor:
    local = planner.resolve_data(item)
    if not isinstance(local, torch.Tensor):
        raise Error("mismatch", f"{item.index.fqn} is planned as a tensor, and the planner resolves it to {type(local).__name__}")
    require_dense(local, item.index.fqn)
    local = local.detach()
    planned = item.tensor_data.properties.dtype
    if tuple(local.shape) != box.sizes or local.dtype != planned:
        raise Error("mismatch", f"{item.index.fqn} is {local.dtype} of size {tuple(local.shape)}, and was planned as {planned} of size "
                    f"{box.sizes}", "do not change the state dict while it is saved")
    return local


class Reader(StorageReader):
    """Loads state dicts of DCP from checkpoints: the argument `storage_reader` of dcp.load().

    path: what unishard.open() takes; default: DCP's argument checkpoint_id. tag: chooses one of several checkpoints; default: what
    `latest` names. threads: that read at the same time. weights_only: as torch.load has it, refuse objects of classes that are no data;
    False makes any object of the checkpoint again, which can run code that the checkpoint names. assume_model_order: as unishard.open() has it.
    Keys: a checkpoint that Writer saved has those that it was saved with. Any other checkpoint, of any format, has the keys that
    `unishard convert --to dcp` gives it: model.<name>, optim.state.<name>.<state>, optim.param_groups; MAPPING.md lists them.
    Each rank reads the elements that its part of the state dict needs, and their checksums are compared; on several ranks, a checksum
    of a torch.save file or a DeepSpeed folder only where one rank reads all that it covers. Errors become DCP's CheckpointException on
    all ranks.
    Thread safety: a Reader makes one load at a time.
    """

    def __init__(self, path: Optional[PathLike] = None, *, tag: Optional[str] = None, threads: int = _THREADS,
                 weights_only: bool = True, assume_model_order: bool = False) -> None:
        super().__init__()
        self._assume_model_order = assume_model_order
        self._path = None if path is None else os.fspath(path)
        self._tag = tag
        require_count("threads", threads, _MOST_THREADS, least=1)
        self._threads = threads
        self._weights_only = weights_only
        self._checkpoint: Optional[_checkpoint.Checkpoint] = None
        self._entries: dict[str, Entry] = {}

    # What DCP calls, in this order.

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: Optional[PathLike] = None) -> None:
        if checkpoint_id is not None:
            self._path, self._tag = os.fspath(checkpoint_id), None
        self._checkpoint, self._entries = None, {}

    # Without `kwargs`, so that DCP does not take a second try for the success of ranks that saved each for itself.
    def read_metadata(self, *args: Any) -> Metadata:
        if self._path is None:
            raise Error("invalid argument", "the Reader has no path", "pass one, or checkpoint_id to dcp.load()")
        settle()
        self._checkpoint = _checkpoint.open(self._path, tag=self._tag, threads=1, assume_model_order=self._assume_model_order)
        self._entries = entries(self._checkpoint)
        paths = {key: entry.path for key, entry in self._entries.items()}
        return Metadata({key: _storage_metadata(entry) for key, entry in self._entries.items()},
                        planner_data=paths if None not in paths.values() else None, storage_data={})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._checkpoint is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._checkpoint is not None
        return dataclasses.replace(plan, storage_data=(self._checkpoint.tag, self._checkpoint.identity))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        if len({plan.storage_data for plan in plans}) > 1:
            raise Error("mismatch", f"the ranks have opened different checkpoints of {self._path}, since a new one was saved meanwhile",
                        "name a tag")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._checkpoint is not None
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            reads = []
            for item in plan.items:
                entry = self._entries[item.storage_index.fqn]
                if item.type == LoadItemType.BYTE_IO:
                    if entry.is_foreign and self._weights_only:
                        require_data(entry.pickle or b"", item.storage_index.fqn)
                    planner.load_bytes(item, io.BytesIO(entry.pickle or b""))
                else:
                    target = planner.resolve_tensor(item).detach()
                    reads.append((pool.submit(_fill, item, entry, target), item, target))
            for read, item, target in reads:
                read.result()
                planner.commit_tensor(item, target)
        if ranks.world_size() == 1:
            self._checkpoint.verify_reads()
        runs.note_loaded(self._checkpoint)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _storage_metadata(entry: Entry) -> Union[TensorStorageMetadata, BytesStorageMetadata]:
    if entry.tensor is not None:
        dtype, shape = getattr(torch, entry.tensor.dtype), torch.Size(entry.tensor.shape)
    elif entry.constant is not None:
        dtype, shape = entry.constant.dtype, entry.constant.shape
    else:
        return BytesStorageMetadata()
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
    return TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=shape, chunks=[whole])


def _fill(item: ReadItem, entry: Entry, target: torch.Tensor) -> None:
    sizes = tuple(item.lengths)
    if tuple(target.shape) != sizes:
        raise Error("mismatch", f"{item.storage_index.fqn}: the planner has {tuple(target.shape)} for elements of size {sizes}")
    if entry.tensor is not None:
        _read(entry.tensor, Box(tuple(item.storage_offsets), sizes), target)
    else:
        assert entry.constant is not None
        target.copy_(entry.constant)
