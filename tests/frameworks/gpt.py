# SPDX-License-Identifier: Apache-2.0
"""The GPT that the tests train, on every mesh, and what each rank of a mesh must hold of it.

It is made to be awkward. No dimension divides by the number of ranks: 43 or 331 columns and so on; `kind` has 3 rows,
fewer than there are ranks. The head is the embedding (tied), `frozen` is not trained, running statistics change in each
forward, residuals have dropout, and the learning rate follows a schedule.

Kinds of mesh: plain (1 rank), ddp2, fsdp4, hsdp22, tp22 and tp32 (FSDP2 on 2 or 3 times tensor parallel on 2).

`expected` and `assemble` say by torch.chunk alone how a tensor is cut: neither DTensor nor ckptd is asked. Tensor
parallelism cuts first, FSDP2 cuts what is left along dimension 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

MESHES: Dict[str, Dict[str, int]] = {
    "plain": {},
    "ddp2": {},
    "fsdp4": {"fsdp": 4},
    "hsdp22": {"dp": 2, "fsdp": 2},
    "tp22": {"fsdp": 2, "tp": 2},
    "tp32": {"fsdp": 3, "tp": 2},
}
WORLD = {"plain": 1, "ddp2": 2, "fsdp4": 4, "hsdp22": 4, "tp22": 4, "tp32": 6}
OPTIMS = ("foreach", "fused", "bf16", "masters")


@dataclasses.dataclass(frozen=True)
class Size:
    vocab: int
    heads: int  # even: tensor parallelism gives each rank whole heads
    head: int
    hidden: int
    layers: int
    tokens: int
    batch: int

    @property
    def width(self) -> int:
        return self.heads * self.head


TINY = Size(vocab=101, heads=2, head=21, hidden=85, layers=2, tokens=8, batch=2)
LARGE = Size(vocab=30011, heads=6, head=55, hidden=1321, layers=8, tokens=16, batch=1)  # 20.4 M parameters
SIZES = {"tiny": TINY, "large": LARGE}


class Running(nn.Module):
    """Running mean and variance of what passes, equal on all ranks as SyncBatchNorm's are. It changes in each
    forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                flat = x.detach().float().reshape(-1, x.shape[-1])
                now = torch.stack([flat.mean(0), flat.var(0)])
                if dist.is_initialized():
                    dist.all_reduce(now)
                    now /= dist.get_world_size()
                self.mean.mul_(0.9).add_(now[0].to(self.mean.dtype), alpha=0.1)
                self.var.mul_(0.9).add_(now[1].to(self.var.dtype), alpha=0.1)
                self.batches += 1
        # What has passed so far matters to what comes out: a wrong buffer is a wrong loss.
        return (x - self.mean) / (self.var + 1e-3).sqrt()


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.head
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.q, self.k, self.v = (nn.Linear(size.width, size.width) for _ in range(3))
        self.o = nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, size.hidden), nn.Linear(size.hidden, size.width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        heads = [lin(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for lin in (self.q, self.k, self.v)]
        score = (heads[0] @ heads[1].transpose(-1, -2)) / math.sqrt(self.head)
        mask = torch.ones(score.shape[-2:], dtype=torch.bool).tril()
        y = (score.masked_fill(~mask, -1e4).softmax(-1) @ heads[2]).transpose(1, 2).flatten(-2)
        x = x + self.drop(self.o(y))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.vocab, size.width)
        nn.init.normal_(self.wte.weight, std=0.05)
        self.kind = nn.Parameter(torch.randn(3, size.width) * 0.02)
        self.frozen = nn.Linear(size.width, size.width)
        self.frozen.requires_grad_(False)
        self.running = Running(size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocab, bias=False)
        self.head.weight = self.wte.weight
        self.tp: Any = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.kind[tokens % 3]
        x = self.running(x + self.frozen(x))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.tp is None:
            return self.head(x)
        from torch_names import DTensor, Replicate

        return F.linear(DTensor.from_local(x, self.tp, [Replicate()]), self.head.weight).full_tensor()


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on FP32 masters of BF16 parameters. The masters are in its state, as those of many trainers are."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"] = torch.zeros(())
                    s["master"] = p.detach().float()
                    s["exp_avg"], s["exp_avg_sq"] = torch.zeros_like(s["master"]), torch.zeros_like(s["master"])
                s["step"] += 1
                g, n = local(p.grad).float(), s["step"].item()
                m, v, w = local(s["exp_avg"]), local(s["exp_avg_sq"]), local(s["master"])
                m.lerp_(g, 0.1)
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.addcdiv_(m / (1 - 0.9**n), (v / (1 - 0.99**n)).sqrt() + 1e-8, value=-group["lr"])
                local(p).copy_(w)


def local(t: torch.Tensor) -> torch.Tensor:
    return t.to_local() if hasattr(t, "to_local") else t


def submesh_rank(kind: str, rank: int) -> Dict[str, int]:
    """The coordinate of a rank, by name of the mesh dimension."""
    coordinate, names = {}, list(MESHES[kind].items())
    for name, n in reversed(names):
        coordinate[name] = rank % n
        rank //= n
    return coordinate


def data_rank(kind: str, rank: int) -> int:
    """Which share of the data a rank takes: ranks of one tensor parallel group take the same."""
    return rank // MESHES[kind].get("tp", 1)


def build(kind: str, size: str = "tiny", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model on this mesh, with the same values on every mesh."""
    torch.manual_seed(11)
    model = GPT(SIZES[size]).to(dtype)
    if kind == "plain":
        return model
    if kind == "ddp2":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh

    names = MESHES[kind]
    mesh = init_device_mesh("cpu", tuple(names.values()), mesh_dim_names=tuple(names))
    if "tp" in names:
        _tensor_parallel(model, mesh["tp"])
    from torch_names import fully_shard

    data = mesh["dp", "fsdp"] if "dp" in names else mesh["fsdp"]
    for block in model.blocks:
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)
    return model


def _tensor_parallel(model: GPT, mesh: Any) -> None:
    from torch_names import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        # Where a dimension is cut unevenly, only a DTensor knows how long it is as a whole.
        plan = {
            "q": ColwiseParallel(),
            "k": ColwiseParallel(),
            "v": ColwiseParallel(),
            "o": RowwiseParallel(),
            "up": ColwiseParallel(use_local_output=False),
            "down": RowwiseParallel(input_layouts=Shard(-1)),
        }
        parallelize_module(block, mesh, plan)
    parallelize_module(model.wte, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()))
    model.head.weight = model.wte.weight
    model.tp = mesh


def optimizer(model: nn.Module, how: str) -> torch.optim.Optimizer:
    """Two groups: matrices, which decay, and the rest."""
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    if how == "masters":
        return MasterAdamW(groups, lr=3e-3)
    return torch.optim.AdamW(groups, lr=3e-3, foreach=how in ("foreach", "bf16"), fused=how == "fused" or None)


def schedule(optim: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optim, lambda step: min(1.0, (step + 1) / 4) * 0.97**step)


def dtype_of(how: str) -> torch.dtype:
    return torch.bfloat16 if how in ("bf16", "masters") else torch.float32


class Trainer:
    """Everything that a training loop has."""

    agreeing = True

    def __init__(self, kind: str, how: str, size: str = "tiny", rank: int = 0) -> None:
        self.kind, self.how, self.size, self.rank = kind, how, SIZES[size], rank
        self.model = build(kind, size, dtype_of(how))
        self.optim = optimizer(self.model, how)
        self.sched = schedule(self.optim)
        # Dropout: one stream for each share of the data, the same within a tensor parallel group.
        torch.manual_seed(1000 + data_rank(kind, rank))

    def loss(self, step: int) -> torch.Tensor:
        """Of the batch with which `step` steps become step + 1."""
        g = torch.Generator().manual_seed(step * 100 + data_rank(self.kind, self.rank))
        tokens = torch.randint(self.size.vocab, (self.size.batch, self.size.tokens + 1), generator=g)
        logits = self.model(tokens[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def agree(self) -> None:
        """Make gradients equal within a tensor parallel group where parameters are replicated.

        They are not by themselves: where tensor parallelism cuts unevenly, gloo cuts the buffers of two FSDP groups of
        three ranks at other places, and adds some elements in another order.
        """
        if "tp" not in MESHES[self.kind] or not self.agreeing:
            return
        named = [(clean(n), p) for n, p in self.model.named_parameters() if p.grad is not None]
        grads = [local(p.grad) for n, p in named if tp_dim("model/" + n) is None]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat, group=self.model.tp.get_group())
        for g, mean in zip(grads, flat.div_(2).split([g.numel() for g in grads])):
            g.copy_(mean.view_as(g))

    def update(self) -> None:
        self.agree()
        self.optim.step()
        self.sched.step()
        self.optim.zero_grad()

    def half_update(self) -> None:
        """What an update that is killed in the middle leaves: one group of parameters is new, the other is old."""
        self.agree()
        groups = self.optim.param_groups
        self.optim.param_groups = groups[:1]
        try:
            self.optim.step()
        finally:
            self.optim.param_groups = groups

    def state(self) -> Dict[str, torch.Tensor]:
        """All that must be restored, by the checkpoint's keys, as the framework has it: DTensors where they are."""
        found = named(self.model)
        names = {p: clean(name) for name, p in self.model.named_parameters()}
        for p, state in self.optim.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    found[f"optim/{names[p]}.{key}"] = value.detach()
        return found

    def tensors(self) -> Dict[str, torch.Tensor]:
        """The same, local tensors only."""
        return {key: local(t) for key, t in self.state().items()}

    def digests(self) -> Dict[str, str]:
        return {key: digest(t) for key, t in self.tensors().items()}


def named(model: nn.Module) -> Dict[str, torch.Tensor]:
    """Parameters and buffers, by the checkpoint's keys."""
    found = {"model/" + clean(name): p.detach() for name, p in model.named_parameters()}
    return {**found, **{"model/" + clean(name): b.detach() for name, b in model.named_buffers()}}


def clean(name: str) -> str:
    for prefix in ("_orig_mod.", "module."):
        name = name.replace(prefix, "")
    return name


def digest(t: torch.Tensor) -> str:
    """Of dtype, shape and bytes."""
    t = t.detach().contiguous()
    h = hashlib.blake2b(f"{t.dtype} {tuple(t.shape)}".encode(), digest_size=12)
    if t.numel():
        h.update(t.reshape(-1).view(torch.uint8).numpy())
    return h.hexdigest()


# ---- how a tensor is cut ----

_TP_DIM = {"q": 0, "k": 0, "v": 0, "up": 0, "wte": 0, "o": 1, "down": 1}


def tp_dim(key: str) -> Optional[int]:
    """Along which dimension tensor parallelism cuts a tensor; None: not at all."""
    part, _, rest = key.partition("/")
    words = rest.split(".")
    if part == "optim":
        words = words[:-1]  # .exp_avg
    for word in words:
        if word in _TP_DIM:
            # The bias of what is cut by columns is added once, by every rank.
            return None if words[-1] == "bias" and _TP_DIM[word] == 1 else _TP_DIM[word]
    return None


def piece(t: torch.Tensor, dim: int, n: int, i: int) -> torch.Tensor:
    """Piece i of n, as torch.chunk cuts; an empty one where there are fewer."""
    pieces = torch.chunk(t, n, dim)
    return pieces[i] if i < len(pieces) else t.narrow(dim, t.shape[dim], 0)


def cut(key: str) -> bool:
    """Buffers and counters are replicated."""
    return not key.startswith("model/running.") and not key.endswith(".step")


def expected(full: torch.Tensor, key: str, kind: str, rank: int) -> torch.Tensor:
    """What a rank of a mesh holds of a tensor."""
    if not cut(key):
        return full
    names, at = MESHES[kind], submesh_rank(kind, rank)
    dim = tp_dim(key)
    if "tp" in names and dim is not None:
        full = piece(full, dim, names["tp"], at["tp"])
    if "fsdp" in names:
        full = piece(full, 0, names["fsdp"], at["fsdp"])
    return full


def assemble(parts: List[Dict[str, torch.Tensor]], kind: str) -> Dict[str, torch.Tensor]:
    """The whole tensors of what all ranks hold."""
    names = MESHES[kind]
    by = {tuple(submesh_rank(kind, r).get(n, 0) for n in ("dp", "fsdp", "tp")): part for r, part in enumerate(parts)}
    whole = {}
    for key in parts[0]:
        if not cut(key):
            whole[key] = parts[0][key]
            continue
        dim = tp_dim(key)
        blocks = []
        for tp in range(names.get("tp", 1) if dim is not None else 1):
            blocks.append(
                torch.cat([by[0, f, tp][key] for f in range(names.get("fsdp", 1))])
                if parts[0][key].ndim
                else parts[0][key]
            )
        whole[key] = torch.cat(blocks, dim) if len(blocks) > 1 else blocks[0]
    return whole


def gather(trainer: Trainer, directory: str) -> Optional[Dict[str, torch.Tensor]]:
    """All whole tensors, on rank 0: by files, so that no code of DTensor is asked."""
    world = WORLD[trainer.kind]
    torch.save(trainer.tensors(), os.path.join(directory, f"part-{trainer.rank}"))
    if world > 1:
        dist.barrier()
    whole = None
    if trainer.rank == 0:
        parts = [torch.load(os.path.join(directory, f"part-{r}"), mmap=True) for r in range(world)]
        whole = {k: t.clone() for k, t in assemble(parts, trainer.kind).items()}
    if world > 1:
        dist.barrier()
    return whole


def everywhere(whole: Dict[str, torch.Tensor], kinds: Tuple[str, ...]) -> Dict[str, List[Dict[str, str]]]:
    """The digests of what each rank of each kind of mesh must hold."""
    known: Dict[Any, str] = {}
    result = {}
    for kind in kinds:
        result[kind] = []
        for rank in range(WORLD[kind]):
            mine = {}
            for key, t in whole.items():
                at = submesh_rank(kind, rank)
                names = MESHES[kind] if cut(key) else {}
                tp = (names.get("tp", 1), at.get("tp", 0)) if tp_dim(key) is not None and "tp" in names else (1, 0)
                where = (key, tp, (names.get("fsdp", 1), at.get("fsdp", 0) if "fsdp" in names else 0))
                if where not in known:
                    known[where] = digest(expected(t, key, kind, rank))
                mine[key] = known[where]
            result[kind].append(mine)
    return result
