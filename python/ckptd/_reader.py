# SPDX-License-Identifier: Apache-2.0
"""`ckptd.open`: the tensors of a committed step, without a daemon and without a model. Only what is asked for is read.

`ckptctl show --json` is asked once. It says which elements of which tensor lie where in which file. The files are
mapped into memory when the first element of them is asked for. `_fill` and `dcp` are built on this.
"""

from __future__ import annotations

import errno
import functools
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple
from typing import Union, overload

from . import _ctl
from ._pieces import (
    Files,
    Range,
    Run,
    boxes_of,
    copy_blocks,
    element_bytes,
    meet,
    resolve_index,
    rounded,
    runs_of,
    torch_dtype,
)
from .errors import error

if TYPE_CHECKING:
    import torch

PICKLES = ("pickle", "torch")  # media that only unpickling can read
EXTRA = "extra."  # begins the names of the blobs that run.attach(extra=...) makes
ALIAS = "ckpt.alias:"  # begins the keys of the attributes that name tied tensors (docs/FORMAT.md)


def _count(lists: Sequence[Sequence[Run]]) -> int:
    numel = 1
    for runs in lists:
        numel *= sum(run.stop - run.start for run in runs)
    return numel


class Piece:
    """Elements of a tensor that lie in one stretch of one file.

    runs: for each dimension the indices that the piece has. extent: how many these are. rank: which rank wrote it.
    """

    __slots__ = ("file", "rank", "runs", "extent", "_record")

    def __init__(self, record: Mapping[str, Any], halve: bool) -> None:
        index = record["index"]
        self._record = record
        self.file: str = record["file"]
        self.rank: Optional[int] = record["rank"]
        self.runs: List[List[Run]] = [runs_of(d, halve and i == len(index) - 1) for i, d in enumerate(index)]
        self.extent: Tuple[int, ...] = tuple(sum(run.stop - run.start for run in runs) for runs in self.runs)

    def boxes(self) -> Iterator[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
        """(start, extent) of each box of elements that it consists of."""
        return boxes_of(self.runs)

    @property
    def is_derived(self) -> bool:
        """It has no bytes: its elements are those of the master, rounded."""
        return self._record["offset"] is None and not self._record["stored_bytes"]

    @property
    def same_as(self) -> Tuple[str, str]:
        """What the piece of a master has in common with that of the tensor that is derived from it."""
        return self.file, repr(self._record["index"])


class Tensor:
    """One tensor of a checkpoint. Nothing is read before an index asks for elements: `t[10:20]`, `t[...]`.

    shape: global, in elements, also if many ranks wrote it (an element of F4 is a byte of two values). dtype: torch's.
    dtype_name: that of ckpt.h. role: "param", "master", "moment1", "buffer", .... layout: how it was cut, as
    "Shard(0)@fsdp", or None. of: the key of the tensor that it belongs to, or None. pieces: who wrote which elements.

    An index is an int, a slice with a positive step, Ellipsis, or a tuple of these; the result is a torch tensor on the
    CPU. If one piece has everything that is asked for, the result is a view of the mapped file: nothing is copied, and
    pages are read when they are touched. Do not write to it: the file never changes, but whether another view of the
    same elements sees what you wrote is not defined. Otherwise the result is a new tensor. The bytes are not checked
    against their sums (Checkpoint.verify does that).
    """

    def __init__(self, owner: "Checkpoint", record: Mapping[str, Any], key: Optional[str] = None) -> None:
        self._owner = owner
        self._record = record
        self._pieces: Optional[List[Piece]] = None
        self.key: str = key or f"{record['component']}/{record['name']}"

    @property
    def stored_key(self) -> str:
        """component/name in the checkpoint: another one than .key in the model of an average."""
        return f"{self._record['component']}/{self._record['name']}"

    @property
    def component(self) -> str:
        """The first half of its key in the checkpoint: "model", "optim", "ema.fast"."""
        return str(self._record["component"])

    @property
    def name(self) -> str:
        """The second half: "wte.weight"."""
        return str(self._record["name"])

    @property
    def shape(self) -> Tuple[int, ...]:
        """Global, in elements."""
        shape = list(self._record["shape"])
        if self._is_f4:
            shape[-1] //= 2
        return tuple(shape)

    @property
    def dtype(self) -> "torch.dtype":
        """torch's dtype. TypeError: the installed torch has none for it."""
        return torch_dtype(self.dtype_name)

    @property
    def dtype_name(self) -> str:
        """The name in ckpt.h and safetensors: "F32"."""
        return str(self._record["dtype"])

    @property
    def role(self) -> str:
        """What it is to the training: "param", "master", "moment1", ...."""
        return str(self._record["role"])

    @property
    def layout(self) -> Optional[str]:
        """As it was declared, as "Shard(0)@fsdp"; None: boxes."""
        return None if self._record["layout"] is None else str(self._record["layout"])

    @property
    def of(self) -> Optional[str]:
        """The key of the tensor that it belongs to; None: none."""
        return self._record["of"] or None

    @property
    def fingerprint(self) -> Optional[str]:
        """Of its elements: equal for equal elements, whatever the mesh. None: not known."""
        return None if self._record["fingerprint"] is None else str(self._record["fingerprint"])

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return int(self._record["bytes"])

    @property
    def is_partial(self) -> bool:
        """Ranks wrote operands of a result (Partial): there are no elements before they are reduced."""
        return "Partial" in (self.layout or "")

    @property
    def pieces(self) -> List[Piece]:
        """Who wrote which elements. Together they are the tensor, each element once."""
        if self._pieces is None:
            self._pieces = [Piece(piece, self._is_f4) for piece in self._record["pieces"]]
        return self._pieces

    @functools.cached_property
    def _masters(self) -> Dict[Tuple[str, str], Tuple["Tensor", Piece]]:
        """The pieces of the master, by what they have in common with those of this tensor: looked up once for each."""
        master = self._owner.find(self.of or "")
        return {} if master is None else {p.same_as: (master, p) for p in master.pieces if not p.is_derived}

    @property
    def _is_f4(self) -> bool:
        return bool(self._record["dtype"] == "F4")

    def __repr__(self) -> str:
        return f"Tensor({self.key!r}, shape={self.shape}, dtype={self.dtype_name}, layout={self.layout})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.key} has no dimensions")
        return self.shape[0]

    def __getitem__(self, index: Any) -> "torch.Tensor":
        ranges, keeps = resolve_index(index, self.shape)
        found = self.read(ranges)
        return found if all(keeps) else found[tuple(slice(None) if keep else 0 for keep in keeps)]

    def read(self, ranges: Sequence[Range]) -> "torch.Tensor":
        """The elements of a Range for each dimension: a view if one piece has them, else a new tensor."""
        return self._read(ranges, None)

    def read_into(self, into: "torch.Tensor", ranges: Sequence[Range]) -> None:
        """Copy these elements into a tensor of their extents, of any device, that has the tensor's dtype."""
        if into.device.type == "cpu":
            self._read(ranges, into)
        else:
            into.copy_(self.read(ranges))

    def _read(self, ranges: Sequence[Range], into: Optional["torch.Tensor"]) -> "torch.Tensor":
        import torch

        if self.is_partial:
            self._refuse("ranks wrote operands of it, which ckptctl export reduces: restore it, and read that file")
        extent = [r.count for r in ranges]
        wanted = _product(extent)
        out = into
        left = wanted
        for piece in self.pieces if wanted else ():
            met = [meet(r, runs) for r, runs in zip(ranges, piece.runs)]
            covered = _product([sum(to.stop - to.start for to, _ in pairs) for pairs in met])
            if not covered:
                continue
            if out is None and covered == wanted and all(len(pairs) == 1 for pairs in met):
                return self._values(piece, tuple(pairs[0][1] for pairs in met))
            if out is None:
                out = torch.empty(extent, dtype=self.dtype)
            self._copy(out, piece, met)
            left -= covered
        if left:
            self._refuse(f"{left} of {wanted} elements are in no piece of it", errno.EBADMSG)
        return torch.empty(extent, dtype=self.dtype) if out is None else out

    def _copy(self, out: "torch.Tensor", piece: Piece, met: Sequence[Sequence[Tuple[slice, slice]]]) -> None:
        """Only what is asked for is rounded: of a derived piece first the span of it that `met` needs."""
        if not piece.is_derived:
            return copy_blocks(out, self._stored(piece), met)
        span = [slice(pairs[0][1].start, pairs[-1][1].stop) for pairs in met]
        moved = [
            [(to, slice(at.start - s.start, at.stop - s.start, at.step)) for to, at in pairs]
            for s, pairs in zip(span, met)
        ]
        copy_blocks(out, self._values(piece, tuple(span)), moved)

    def _values(self, piece: Piece, at: Tuple[slice, ...]) -> "torch.Tensor":
        if not piece.is_derived:
            return self._stored(piece)[at]
        found = self._masters.get(piece.same_as)
        if found is not None:
            return rounded(found[0]._stored(found[1])[at], self.dtype)
        why = f"a piece of it is the rounding of {self.of}, which has no such piece in {piece.file}"
        self._refuse(why, errno.EPROTO)

    def _stored(self, piece: Piece) -> "torch.Tensor":
        """All elements of a piece, as a view of the file."""
        import torch

        record = piece._record
        if record["offset"] is None:
            self._refuse(f"its elements are not packed in {piece.file}: ckptctl cat reads them")
        count = _product(piece.extent)
        buffer = self._owner.files[piece.file]
        end = record["offset"] + count * element_bytes(self.dtype_name)
        if end > len(buffer):
            self._refuse(f"a piece of it ends at byte {end} of {piece.file}, which has {len(buffer)}", errno.EPROTO)
        if not count:
            return torch.empty(piece.extent, dtype=self.dtype)
        flat = torch.frombuffer(buffer, dtype=torch.uint8, count=end - record["offset"], offset=record["offset"])
        return flat.view(self.dtype).view(piece.extent)

    def _refuse(self, why: str, code: int = errno.EOPNOTSUPP) -> NoReturn:
        raise error("restore", code, f"{self.stored_key} of step {self._owner.step} ({self._owner.path}): {why}")


def _product(numbers: Sequence[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


class Pickled:
    """An extra that only unpickling can read, which was not allowed. data: its bytes. media: "pickle" or "torch".

    Unpickling runs what the file says. If you trust who wrote the checkpoint, ask with allow_pickle=True.
    """

    def __init__(self, name: str, media: str, data: bytes) -> None:
        self.name, self.media, self.data = name, media, data

    def __repr__(self) -> str:
        return f"Pickled({self.name!r}, {len(self.data)} bytes; extras(allow_pickle=True) reads it)"


class Model(Mapping[str, Tensor]):
    """The model of an average: its tensors under the names of those that they average, and copied ones of the step."""

    def __init__(self, owner: "Checkpoint", average: str) -> None:
        self.name = average
        self._found = _model_of(owner, average)

    def __getitem__(self, key: str) -> Tensor:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _model_of(owner: "Checkpoint", average: str) -> Dict[str, Tensor]:
    """As `ckptctl export --only ema.NAME` does it. What an average copies is what ckptctl says that it copies."""
    record = next((a for a in owner.averages if a["name"] == average), None)
    if record is None:
        names = ", ".join(repr(a["name"]) for a in owner.averages) or "none"
        text = f"step {owner.step} ({owner.path}) has no average {average!r}; it has {names}"
        raise error("restore", errno.ENOENT, text)
    if record["copied"] is None:
        text = f"a newer version wrote the rules of average {average!r}: which tensors it copies is not known"
        raise error("restore", errno.EPROTONOSUPPORT, text)
    if record["missing_count"]:
        text = f"average {average!r} lacks {record['missing_count']} tensors, so no model can be made of it"
        hint = f"ckptctl export {owner.path} DIR --only {record['component']} lists them"
        raise error("restore", errno.EMEDIUMTYPE, f"{text} ({hint})")
    found: Dict[str, Tensor] = {}
    for tensor in owner.values():
        if tensor.component == record["component"]:
            found[owner.averaged_key(tensor)] = Tensor(owner, tensor._record, owner.averaged_key(tensor))
    for copied in record["copied"]:
        found[_key(copied)] = owner[_key(copied)]
    return found


def _key(record: Mapping[str, Any]) -> str:
    return f"{record['component']}/{record['name']}"


class Checkpoint(Mapping[str, Tensor]):
    """A committed step: a mapping of "component/name" to Tensor, and what was saved beside the tensors.

    step, job, path, id, world_size; notes: a dict of numbers; attributes: a dict of strings; averages: a list of dicts
    (docs/JSON.md, `ckptd.show/1`); meshes: as "dp=2,fsdp=4". blobs: the names of the blobs, and whose they are.
    Any thread may use it. A step that is removed meanwhile stays readable as far as it was used; the rest of it raises
    NothingToRestore. Tensors that were read stay valid after close.
    """

    def __init__(self, answer: Mapping[str, Any]) -> None:
        if answer.get("format") != "native":
            text = f"{answer.get('path')} is of format {answer.get('format')!r}, which ckptd.open does not read"
            raise error("restore", errno.EOPNOTSUPP, text + ": ckptctl convert makes a native step of it")
        self.path: str = answer["path"]
        self.step: int = answer["step"]
        self.job: Optional[str] = answer["job"]
        self.id: Optional[str] = answer["id"]
        self.world_size: int = answer["world_size"]
        self.meshes: List[str] = [mesh["mesh"] for mesh in answer["meshes"]]
        self.notes: Dict[str, Any] = dict(answer["notes"])
        self.attributes: Dict[str, str] = dict(answer["attributes"])
        self.averages: List[Dict[str, Any]] = list(answer["averages"])
        self.files = Files(self.path, {part["file"]: part["bytes"] for part in answer["parts"]})
        self._tensors: Dict[str, Mapping[str, Any]] = {}
        self._blobs: Dict[Tuple[str, Optional[int]], Mapping[str, Any]] = {}
        for record in answer["tensors"]:
            if record["media"] is None:
                self._tensors[_key(record)] = record
            else:
                self._blobs[record["name"], record["rank"]] = record

    # --- the mapping ---

    def __getitem__(self, key: str) -> Tensor:
        try:
            return Tensor(self, self._tensors[key])
        except KeyError:
            raise KeyError(f"{key}: step {self.step} ({self.path}) has no such tensor") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r}, step {self.step}, {len(self)} tensors)"

    def find(self, key: str) -> Optional[Tensor]:
        """The tensor of this key; None: there is none."""
        return self[key] if key in self._tensors else None

    @functools.cached_property
    def aliases(self) -> Dict[str, str]:
        """Tied tensors: "component/alias" to the "component/name" under which the elements are."""
        return {key[len(ALIAS) :]: value for key, value in self.attributes.items() if key.startswith(ALIAS)}

    def average(self, name: str) -> Model:
        """The model of an average, under the model's keys ("model/wte.weight"): F32 averages, and what it copies.

        NothingToRestore: no such average. NotFitting: it is not complete. VersionMismatch: its rules are not known.
        """
        return Model(self, name)

    def averaged_key(self, tensor: Tensor) -> str:
        """The key in the model of a tensor of an average. A master speaks for the parameter that it belongs to."""
        of = tensor.of or tensor.stored_key
        master = self.find(of)
        if master is not None and master.role == "master" and master.of:
            of = master.of
        return of

    # --- blobs ---

    @property
    def blobs(self) -> List[Tuple[str, Optional[int]]]:
        """(name, rank) of each blob; rank None: it belongs to no rank."""
        return list(self._blobs)

    def blob_key(self, name: str, rank: Optional[int] = None) -> str:
        """component/name of a blob."""
        return _key(self._blob(name, rank))

    def blob(self, name: str, rank: Optional[int] = None) -> bytes:
        """The bytes of a blob. rank: of a blob per rank, whose. KeyError: there is none."""
        record = self._blob(name, rank)
        return bytes(memoryview(_whole(self, record)))

    def media(self, name: str, rank: Optional[int] = None) -> str:
        """What a blob's bytes are: "raw", "json", "text", "pickle", "torch", "npy"."""
        return str(self._blob(name, rank)["media"])

    def _blob(self, name: str, rank: Optional[int]) -> Mapping[str, Any]:
        record = self._blobs.get((name, rank)) or (self._blobs.get((name, None)) if rank is not None else None)
        if record is None:
            owners = [str(r) for n, r in self._blobs if n == name]
            have = f"; ranks that have one: {', '.join(owners)}" if owners else ""
            raise KeyError(f"blob {name} of rank {rank}: step {self.step} ({self.path}) has none{have}")
        return record

    def extras(self, rank: int = 0, *, allow_pickle: bool = False) -> Dict[str, Any]:
        """What `attach(extra={...})` saved for a rank, decoded: {"sched": {...}, ...}.

        What only unpickling can read is a Pickled, unless allow_pickle is True: unpickling runs what the file says.
        """
        found: Dict[str, Any] = {}
        for name, owner in self._blobs:
            if name.startswith(EXTRA) and owner in (None, rank):
                found[name[len(EXTRA) :]] = self._extra(name, rank, allow_pickle)
        return found

    def _extra(self, name: str, rank: int, allow_pickle: bool) -> Any:
        from . import _codec

        media, data = self.media(name, rank), self.blob(name, rank)
        if media in PICKLES:  # of another program: attach writes JSON
            if not allow_pickle:
                return Pickled(name[len(EXTRA) :], media, data)
            return _unpickled(media, data)
        if media != "json":
            return data.decode() if media == "text" else data
        try:
            return _codec.decode(data, allow_pickle=allow_pickle)
        except _codec.PickleRefused:
            return Pickled(name[len(EXTRA) :], "pickle", data)
        except _codec.CodecError as e:
            text = f"{self.path}: extra {name[len(EXTRA) :]} of rank {rank} cannot be decoded {e}"
            raise error("restore", errno.EPROTO, text) from e

    # --- all of it ---

    def verify(self) -> None:
        """Read every byte and check it against its sums, as `ckptctl verify --data` does. Damaged: not all is right."""
        _ctl.verify(self.path)

    def close(self) -> None:
        """Let go of the files. Tensors that were read stay valid."""
        self.files.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _unpickled(media: str, data: bytes) -> Any:
    import io
    import pickle

    if media == "pickle":
        return pickle.loads(data)
    import torch

    return torch.load(io.BytesIO(data), weights_only=False)


def _whole(owner: Checkpoint, record: Mapping[str, Any]) -> memoryview:
    """The bytes of a blob, without torch."""
    pieces = record["pieces"]
    if not record["bytes"]:
        return memoryview(b"")
    if len(pieces) != 1 or pieces[0]["offset"] is None:
        text = f"blob {record['name']} of step {owner.step} is not in one stretch of a file: ckptctl cat reads it"
        raise error("restore", errno.EOPNOTSUPP, text)
    at, length = pieces[0]["offset"], record["bytes"]
    buffer = owner.files[pieces[0]["file"]]
    if at + length > len(buffer):
        text = f"blob {record['name']} of step {owner.step} ends behind the end of {pieces[0]['file']}"
        raise error("restore", errno.EPROTO, text)
    return memoryview(buffer)[at : at + length]


@overload
def open(path: Any, *, store: Any = None, verify: bool = False, average: None = None) -> Checkpoint: ...
@overload
def open(path: Any, *, store: Any = None, verify: bool = False, average: str) -> Model: ...
def open(
    path: Any, *, store: Any = None, verify: bool = False, average: Optional[str] = None
) -> Union[Checkpoint, Model]:
    """Open a committed step to read it; no daemon is needed.

    path: a step's directory, also a copied one; a store or a job's directory in it (its newest step); or with store a
    step's number or a name ("latest", "tag:best"). verify: check every byte first; without it nothing checks the
    elements that are read against their sums (Checkpoint.verify does). average: the model of this average instead, as
    Checkpoint.average returns it.

    NothingToRestore: no such step. Damaged: its metadata is. NotRestorable: not committed. VersionMismatch: a newer
    version wrote it. NotPermitted.
    """
    checkpoint = Checkpoint(_ctl.show(_ctl.arguments(path, store)))
    if verify:
        checkpoint.verify()
    return checkpoint if average is None else checkpoint.average(average)
