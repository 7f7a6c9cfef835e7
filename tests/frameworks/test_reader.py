# SPDX-License-Identifier: Apache-2.0
"""ckptd.open, ckptd.load and ckptd.view: steps that the engine wrote, against ckptctl, and every kind of bad input.

The steps are those of build/trainer, and of torch programs. `ckptctl cat` and `ckptctl export` are the oracles.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from typing import Any, Dict, List, Sequence

import gpt
import ranks
import torch

import ckptd
from ckptd import _fill, _pieces, _reader
from ckptd._reader import Checkpoint, Pickled
from ckptd.errors import CkptdError, Damaged, NothingToRestore, NotFitting, NotRestorable, NotSupported
from torch_names import since, fsdp2_on_cpu


def bits(t: torch.Tensor) -> bytes:
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


class Oracle(ranks.Case):
    """Steps of build/trainer, each made once for all tests."""

    made: Dict[Sequence[str], str] = {}
    directory = ""

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.mkdtemp(prefix="r", dir=os.environ.get("TMPDIR", "/tmp"))
        cls.daemon = subprocess.Popen([ranks.BUILD + "/ckptd", "--socket", cls.directory + "/s", "--idle-exit", "60"])
        cls.made = {}

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.terminate()
        cls.daemon.wait()
        shutil.rmtree(cls.directory)

    def trained(self, mesh: str, *options: str) -> str:
        """A store with two steps of a job."""
        key = (mesh, *options)
        if key not in self.made:
            store = f"{self.directory}/store-{len(self.made)}"
            command = [ranks.BUILD + "/trainer", "--mesh", mesh, "--steps", "20", "--params", "60K", "--root", store]
            command += ["--job", "demo", "--socket", self.directory + "/s", "--guard", "finish", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.made[key] = store
        return self.made[key]

    def ctl(self, *words: str, code: int = 0) -> bytes:
        done = subprocess.run([ranks.BUILD + "/ckptctl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done.stdout

    def copy(self, store: str) -> str:
        """A copy of the newest step, to damage."""
        with ckptd.open(store) as checkpoint:
            target = tempfile.mkdtemp(dir=self.directory) + "/copied"
            shutil.copytree(checkpoint.path, target)
        return target


class Open(Oracle):
    def test_every_element_is_what_ckptctl_cat_prints(self) -> None:
        for mesh, options in (
            ("fsdp=2", ("--derived",)),
            ("fsdp=3", ("--layout", "boxes", "--derived")),
            ("dp=2,fsdp=2", ()),
            ("fsdp=1", ("--average", "fast=constant decay=.9", "--derived", "--frozen", "20")),
        ):
            with self.subTest(mesh=mesh, options=options), ckptd.open(self.trained(mesh, *options)) as checkpoint:
                self.assertEqual((checkpoint.step, checkpoint.job), (20, "demo"))
                checkpoint.verify()
                for key, tensor in checkpoint.items():
                    whole = tensor[...]
                    self.assertEqual((tuple(whole.shape), whole.dtype), (tensor.shape, tensor.dtype), key)
                    self.assertEqual(bits(whole), self.ctl("cat", checkpoint.path, key), key)
                for name, rank in checkpoint.blobs:
                    words = [] if rank is None else ["--rank", str(rank)]
                    want = self.ctl("cat", checkpoint.path, "blob/" + name, *words)
                    self.assertEqual(checkpoint.blob(name, rank), want, name)

    def test_an_index_means_what_it_means_to_torch(self) -> None:
        draw = self.draw()
        for mesh, options in (("fsdp=3", ("--derived",)), ("fsdp=3", ("--layout", "boxes", "--derived"))):
            with ckptd.open(self.trained(mesh, *options)) as checkpoint:
                keys = ("model/fc1.weight", "optim/fc2.weight.exp_avg", "model/out.bias")
                whole = {key: checkpoint[key][...].clone() for key in keys}
                for _ in range(300):
                    key = draw.choice(sorted(whole))
                    index = self._index(draw, checkpoint[key].shape)
                    self.assertTrue(torch.equal(checkpoint[key][index], whole[key][index]), (key, index))

    def test_blocks_that_are_too_many_are_gathered_by_number(self) -> None:
        with unittest.mock.patch.object(_pieces, "RUNS_MAX", 0):
            self.test_an_index_means_what_it_means_to_torch()
            self.test_every_element_is_what_ckptctl_cat_prints()

    def test_progressions_and_values_of_f4(self) -> None:
        runs = _pieces.runs_of([[0, 2], {"start": 6, "len": 2, "stride": 8, "count": 3}])
        self.assertEqual([(r.start, r.stop, r.at) for r in runs], [(0, 2, 0), (6, 8, 2), (14, 16, 4), (22, 24, 6)])
        runs = _pieces.runs_of([[0, 2], {"start": 6, "len": 2, "stride": 8, "count": 2}], halve=True)
        self.assertEqual([(r.start, r.stop, r.at) for r in runs], [(0, 1, 0), (3, 4, 1), (7, 8, 2)])

    @staticmethod
    def _index(draw: Any, shape: Sequence[int]) -> Any:
        items: List[Any] = []
        for n in shape:
            kind = draw.randrange(4)
            a, b = sorted((draw.randrange(-2, n + 3), draw.randrange(-2, n + 3)))
            items.append([draw.randrange(-n, n), slice(a, b), slice(a, b, draw.randrange(1, 5)), slice(None)][kind])
        if draw.random() < 0.4:
            at = draw.randrange(len(items))
            items[at : at + draw.randrange(2)] = [Ellipsis]
        return tuple(items) if len(items) != 1 or draw.random() < 0.5 else items[0]

    def test_an_index_that_means_nothing_is_an_error(self) -> None:
        with ckptd.open(self.trained("fsdp=2", "--derived")) as checkpoint:
            tensor = checkpoint["model/fc1.weight"]
            for index, kind in (
                (131, IndexError), (-132, IndexError), ((0, 0, 0), IndexError), (slice(None, None, -1), IndexError),
                ((..., ...), IndexError), ("a", TypeError), (None, TypeError), (True, TypeError), ([1], TypeError),
            ):  # fmt: skip
                with self.assertRaises(kind, msg=repr(index)):
                    tensor[index]
            with self.assertRaises(KeyError):
                checkpoint["model/none"]

    def test_what_one_piece_has_is_a_view_of_the_file_and_writing_to_it_never_changes_the_file(self) -> None:
        store = self.trained("fsdp=2")
        with ckptd.open(store) as checkpoint:
            tensor = checkpoint["optim/fc1.weight.master"]
            first, second = tensor[:10], tensor[:10]
            self.assertEqual(first.data_ptr(), second.data_ptr())
            self.assertNotEqual(tensor[:100].data_ptr(), first.data_ptr())  # of two ranks
            before = first.clone()
            first.fill_(7)
        self.assertTrue(bool((first == 7).all()))  # still mapped after close
        with ckptd.open(store) as checkpoint:
            self.assertTrue(torch.equal(checkpoint["optim/fc1.weight.master"][:10], before))
            checkpoint.verify()

    def test_no_descriptor_stays_open(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with ckptd.open(self.trained("fsdp=3", "--derived")) as checkpoint:
            kept = [tensor[...] for tensor in checkpoint.values()]
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        del kept

    def test_rounded_elements_have_the_bits_of_the_engine(self) -> None:
        special = [0x0, 0x1, 0x7F, 0x8000, 0x7FFF, 0x8001, 0x18000, 0x7F800000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF]
        special += [0x33000000, 0x33000001, 0x32FFFFFF, 0x33800000, 0x38800000, 0x387FFFFF, 0x387FE000, 0x387FF000]
        special += [0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F802000]
        special += [x | 0x80000000 for x in special]
        numbers = special + [self.draw().getrandbits(32) for _ in range(100000)]
        source = torch.frombuffer(bytearray(struct.pack(f"<{len(numbers)}I", *numbers)), dtype=torch.float32)
        for dtype, of in ((torch.bfloat16, self._bf16), (torch.float16, self._f16)):
            got = _pieces.rounded(source, dtype).view(torch.int16).tolist()
            wrong = [hex(x) for x, y in zip(numbers, got) if y & 0xFFFF != of(x)]
            self.assertEqual(wrong, [])

    @staticmethod
    def _bf16(v: int) -> int:
        return (v >> 16) | 0x40 if v & 0x7FFFFFFF > 0x7F800000 else (v + 0x7FFF + (v >> 16 & 1)) >> 16

    @staticmethod
    def _f16(v: int) -> int:
        sign = v >> 16 & 0x8000
        if v & 0x7FFFFFFF > 0x7F800000:
            return sign | 0x7E00 | (v >> 13 & 0x3FF)
        try:  # Python's own rounding
            return sign | struct.unpack("<H", struct.pack("<e", abs(struct.unpack("<f", struct.pack("<I", v))[0])))[0]
        except OverflowError:
            return sign | 0x7C00

    def test_the_model_of_an_average_is_what_ckptctl_restores(self) -> None:
        from safetensors.torch import load_file

        spec = "fast=constant decay=.9 out.bias=copy kind.weight=skip"
        store = self.trained("fsdp=2", "--derived", "--average", spec)
        with ckptd.open(store) as checkpoint:
            model = checkpoint.average("fast")
            out = tempfile.mkdtemp(dir=self.directory)
            self.ctl("restore", checkpoint.path, out + "/a", "--only", "ema.fast", "--quiet")
            want = load_file(out + "/a/model.safetensors")
            self.assertEqual({key[len("model/") :] for key in model}, set(want))
            for key, tensor in model.items():
                self.assertEqual(bits(tensor[...]), bits(want[key[len("model/") :]]), key)
            self.assertIn("out.bias", want)
            with self.assertRaisesRegex(NothingToRestore, "no average 'slow'; it has 'fast'"):
                checkpoint.average("slow")
        self.assertEqual(len(ckptd.open(store, average="fast")), len(want))

    def test_a_derived_tensor_of_many_pieces_makes_each_piece_once(self) -> None:
        answer = json.loads(self.ctl("show", "latest", "-C", self.trained("fsdp=2", "--derived"), "--json"))
        derived = next(t for t in answer["tensors"] if (t["component"], t["name"]) == ("model", "fc1.weight"))
        master = next(t for t in answer["tensors"] if f"{t['component']}/{t['name']}" == derived["of"])
        for tensor in (derived, master):
            tensor["shape"] = [50, 4]
            tensor["pieces"] = [dict(tensor["pieces"][0], index=[[[i, i + 1]], [[0, 4]]]) for i in range(50)]
        with unittest.mock.patch.object(_reader, "Piece", side_effect=_reader.Piece) as made:
            whole = Checkpoint(answer)["model/fc1.weight"][...]
        self.assertEqual(tuple(whole.shape), (50, 4))
        self.assertEqual(made.call_count, 100)

    def test_names_of_steps(self) -> None:
        store = self.trained("fsdp=2", "--derived")
        for name, options, step in (
            (store, {}, 20), (store + "/demo", {}, 20), (10, {"store": store}, 10), ("step:10", {"store": store}, 10),
            ("latest", {"store": store}, 20), ("demo@latest", {"store": store}, 20),
            (store + "/demo/step-000000000010", {}, 10),
        ):  # fmt: skip
            self.assertEqual(ckptd.open(name, **options).step, step, name)
        with self.assertRaisesRegex(NothingToRestore, "no step 77"):
            ckptd.open(77, store=store)
        with self.assertRaises(NothingToRestore):
            ckptd.open(self.directory + "/nowhere")
        with self.assertRaises(NothingToRestore):
            ckptd.open(tempfile.mkdtemp(dir=self.directory))


class BadInput(Oracle):
    def test_a_damaged_manifest(self) -> None:
        path = self.copy(self.trained("fsdp=2", "--derived"))
        for at in (4096 + 17, 100, os.path.getsize(path + "/MANIFEST") - 2000):
            damaged = path + f"-{at}"
            shutil.copytree(path, damaged)
            with open(damaged + "/MANIFEST", "r+b") as f:
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1]))
            with self.assertRaises(CkptdError, msg=str(at)) as caught:
                ckptd.open(damaged)
            self.assertIsInstance(caught.exception, Damaged)

    def test_a_file_that_is_too_short_missing_or_empty(self) -> None:
        for how in ("short", "missing", "empty", "link"):
            path = self.copy(self.trained("fsdp=2", "--derived"))
            checkpoint = ckptd.open(path)
            tensor = checkpoint["optim/fc1.weight.master"]
            file = os.path.join(path, tensor.pieces[0].file)
            if how in ("missing", "link"):
                os.rename(file, path + ".gone")
            if how == "link":
                os.symlink(path + ".gone", file)
            if how in ("short", "empty"):
                os.truncate(file, os.path.getsize(file) - 4096 if how == "short" else 0)
            with self.subTest(how), self.assertRaises((Damaged, NotRestorable, OSError)) as caught:
                tensor[...]
            self.assertIn(os.path.basename(file), str(caught.exception))
            tensor.pieces[1]
            self.assertEqual(tensor[100:].shape[0], 31)  # the other rank's file is right

    def test_a_step_that_is_removed_meanwhile(self) -> None:
        path = self.copy(self.trained("fsdp=2", "--derived"))
        checkpoint = ckptd.open(path)
        tensor = checkpoint["optim/fc1.weight.master"]
        first = tensor[:10]
        before = first.clone()
        shutil.rmtree(path)
        self.assertTrue(torch.equal(first, before) and torch.equal(tensor[:10], before))  # mapped
        with self.assertRaisesRegex(NothingToRestore, "was removed after it was opened"):
            tensor[100:]
        checkpoint.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            checkpoint["optim/fc1.bias.master"][...]

    def test_changed_bytes_are_found_by_verify_and_before_load_writes(self) -> None:
        path = self.copy(self.trained("fsdp=2", "--derived"))
        with ckptd.open(path) as checkpoint:
            piece = checkpoint["optim/fc1.weight.master"].pieces[0]
            with open(os.path.join(path, piece.file), "r+b") as f:
                f.seek(piece._record["offset"])
                f.write(b"\x00\x01\x02\x03")
            with self.assertRaises(Damaged):
                checkpoint.verify()
        with self.assertRaises(Damaged):
            ckptd.open(path, verify=True)
        with self.assertRaises(Damaged):
            ckptd.load(path)
        self.assertTrue(ckptd.load(path, verify=False))

    def test_what_is_no_native_checkpoint(self) -> None:
        empty = tempfile.mkdtemp(dir=self.directory)
        with open(empty + "/.metadata", "wb") as f:
            pickle.dump({}, f)
        with self.assertRaises(CkptdError):
            ckptd.open(empty + "/.metadata")
        with self.assertRaises(CkptdError):
            ckptd.open(empty)
        answer = json.loads(self.ctl("show", "latest", "-C", self.trained("fsdp=2", "--derived"), "--json"))
        with self.assertRaisesRegex(NotSupported, "ckptctl convert"):
            Checkpoint({**answer, "format": "safetensors"})

    def test_partial_tensors_and_pieces_that_are_not_packed(self) -> None:
        answer = json.loads(self.ctl("show", "latest", "-C", self.trained("fsdp=2", "--derived"), "--json"))
        for tensor in answer["tensors"]:
            if tensor["name"] == "fc1.bias.master":
                tensor["layout"] = "Partial(sum)@fsdp"
            if tensor["name"] == "fc2.bias.master":
                tensor["pieces"][0]["offset"] = None
            if tensor["name"] == "out.bias.master":
                tensor["pieces"].pop()
            if tensor["name"] == "out.bias":
                tensor["of"] = "optim/none"
        checkpoint = Checkpoint(answer)
        with self.assertRaisesRegex(NotSupported, "ckptctl export reduces"):
            checkpoint["optim/fc1.bias.master"][...]
        with self.assertRaisesRegex(NotSupported, "not packed"):
            checkpoint["optim/fc2.bias.master"][...]
        with self.assertRaisesRegex(Damaged, "128 of 256 elements"):
            checkpoint["optim/out.bias.master"][...]
        with self.assertRaisesRegex(CkptdError, "is the rounding of optim/none"):
            checkpoint["model/out.bias"][...]

    def test_nothing_is_unpickled_unless_it_is_allowed(self) -> None:
        answer = json.loads(self.ctl("show", "latest", "-C", self.trained("fsdp=2", "--derived"), "--json"))
        checkpoint = Checkpoint(answer)
        record = dict(next(t for t in answer["tensors"] if t["name"] == "rng" and t["rank"] == 0))
        record.update(name="extra.evil", media="pickle")
        checkpoint._blobs["extra.evil", 0] = record
        evil = checkpoint.extras(0)["evil"]
        self.assertIsInstance(evil, Pickled)
        self.assertEqual(evil.data, checkpoint.blob("rng", 0))


class Lists(unittest.TestCase):
    """held(): which elements a rank holds, against torch's own splitting of arange."""

    @since(2, 5, "no _StridedShard")
    def test_cuts_are_those_of_torch(self) -> None:
        from torch_names import _StridedShard, Shard

        for n in (0, 1, 2, 5, 7, 12, 33):
            for parts in (1, 2, 3, 4):
                for factor in (1, 2, 3):
                    placement = Shard(0) if factor == 1 else _StridedShard(0, split_factor=factor)
                    shards, _ = placement._split_tensor(torch.arange(n), parts, with_padding=False, contiguous=False)
                    for part, want in enumerate(shards):
                        runs = _fill._cut([_pieces.Run(0, n, 0)] if n else [], parts, part, factor)
                        got = [i for r in runs for i in range(r.start, r.stop)]
                        self.assertEqual(got, want.tolist(), (n, parts, factor, part))
                        before = [sum(q.stop - q.start for q in runs[:i]) for i in range(len(runs))]
                        self.assertEqual([r.at for r in runs], before)


# ---- load ----


class Demo(torch.nn.Module):
    """The model of build/trainer, as far as its names and shapes go."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.kind = torch.nn.Embedding(256, 8), torch.nn.Embedding(3, 8)
        self.fc1, self.fc2, self.out = torch.nn.Linear(64, 131), torch.nn.Linear(131, 131), torch.nn.Linear(131, 256)


class Load(Oracle):
    def test_a_plain_model_in_place(self) -> None:
        store = self.trained("fsdp=3", "--derived")
        model = Demo().to(torch.bfloat16)
        at = {name: p.data_ptr() for name, p in model.named_parameters()}
        loaded = ckptd.load(store, model)
        self.assertEqual((loaded.step, loaded.missing, loaded.unexpected), (20, (), ()))
        with ckptd.open(store) as checkpoint:
            for name, p in model.named_parameters():
                self.assertEqual(p.data_ptr(), at[name])
                self.assertEqual(bits(p), bits(checkpoint["model/" + name][...]), name)
        state = ckptd.load(store)
        self.assertEqual({k: bits(v) for k, v in state.items()}, {k: bits(v) for k, v in model.state_dict().items()})
        Demo().to(torch.bfloat16).load_state_dict(state, strict=True)
        self.assertNotEqual(bits(ckptd.load(store, step=10)["fc1.weight"]), bits(state["fc1.weight"]))

    def test_what_does_not_fit_is_listed_and_nothing_is_written(self) -> None:
        store = self.trained("fsdp=2", "--derived")
        model = Demo().to(torch.bfloat16)
        model.more = torch.nn.Linear(2, 2).to(torch.bfloat16)
        model.fc1 = torch.nn.Linear(64, 130).to(torch.bfloat16)
        model.fc2 = model.fc2.to(torch.float32)
        del model.kind
        before = {k: bits(v) for k, v in model.state_dict().items()}
        with self.assertRaises(NotFitting) as caught:
            ckptd.load(store, model)
        for line in (
            "model/fc1.weight: shape (130, 64) in the program, (131, 64) in the step",
            "model/fc2.bias: torch.float32 in the program, torch.bfloat16 in the step",
            "the step lacks model/more.bias", "the program lacks model/kind.weight",
        ):  # fmt: skip
            self.assertIn(line, str(caught.exception))
        with self.assertRaises(NotFitting):  # another shape is never accepted
            ckptd.load(store, model, strict=False, cast=True)
        self.assertEqual({k: bits(v) for k, v in model.state_dict().items()}, before)
        model.fc1 = torch.nn.Linear(64, 131).to(torch.bfloat16)
        loaded = ckptd.load(store, model, strict=False, cast=True)
        self.assertEqual(loaded.missing, ("model/more.weight", "model/more.bias"))
        self.assertEqual(loaded.unexpected, ("model/kind.weight",))
        self.assertEqual(bits(model.fc2.weight), bits(ckptd.load(store)["fc2.weight"].float()))

    def test_one_file_of_parameters_that_are_derived(self) -> None:
        """Issue 16, 9: the masters are dropped, and their roundings are in the file all the same."""
        from safetensors.torch import load_file

        store = self.trained("fsdp=2", "--derived", "--average", "fast=constant decay=.9")
        out = tempfile.mkdtemp(dir=self.directory)
        with open(out + "/view", "w") as f:
            f.write(ckptd.view(store))
        self.ctl("restore", "latest", out + "/a", "-C", store, "--mesh", "rank=1", "--view", out + "/view", "--quiet")
        state = load_file(out + "/a/rank-00000.safetensors")
        Demo().to(torch.bfloat16).load_state_dict(state, strict=True)
        self.assertEqual({k: bits(v) for k, v in state.items()}, {k: bits(v) for k, v in ckptd.load(store).items()})

    def test_an_average(self) -> None:
        store = self.trained("fsdp=2", "--derived", "--average", "fast=constant decay=.9")
        model, half = Demo(), Demo().to(torch.bfloat16)
        ckptd.load(store, model, average="fast")
        ckptd.load(store, half, average="fast")
        with ckptd.open(store) as checkpoint:
            for name, p in model.named_parameters():
                self.assertEqual(bits(p), bits(checkpoint["ema.fast/" + name][...]))
        for p, q in zip(model.parameters(), half.parameters()):
            self.assertEqual(bits(q), bits(p.detach().to(torch.bfloat16)))
        with self.assertRaises(ValueError):
            ckptd.load(store, model, average="fast", only="model")


def write(rank: Any, kind: str, how: str, steps: int) -> None:
    """Train under attach; rank 0 writes what each rank of every mesh must hold."""
    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    run = rank.attach(
        trainer.model, trainer.optim, extra={"sched": trainer.sched, "rng": ckptd.rng()},
        averages={"fast": "constant decay=.5"},
    )  # fmt: skip
    run.restore()
    for step in range(steps):
        trainer.loss(step).backward()
        with run.step(step + 1):
            trainer.update()
    run.wait()
    whole = gpt.gather(trainer, rank.dir)
    if whole is not None:
        torch.save(whole, os.path.join(rank.dir, "whole"))
        with open(os.path.join(rank.dir, "expected"), "wb") as f:
            pickle.dump(gpt.everywhere(whole, tuple(gpt.MESHES)), f)
    run.detach()


def fill(rank: Any, kind: str, how: str, store: str, step_first: bool) -> Dict[str, Any]:
    """ckptd.load into a fresh trainer, or into one that has other values."""
    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    if step_first:
        trainer.loss(0).backward()
        trainer.update()
    for group in trainer.optim.param_groups:
        group["lr"] = 5.0
    loaded = ckptd.load(store, trainer.model, trainer.optim)
    lr = [group["lr"] for group in trainer.optim.param_groups]
    return {"digests": trainer.digests(), "step": loaded.step, "lr": lr}


def fill_damaged(rank: Any, kind: str, how: str, path: str) -> str:
    """What ckptd.load says of a damaged step, and whether it has written anything."""
    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    before = trainer.digests()
    try:
        ckptd.load(path, trainer.model)
        return "loaded"
    except CkptdError as e:
        return type(e).__name__ + ("" if trainer.digests() == before else ", and wrote")


class LoadOnMeshes(ranks.Case):
    """What attach saved on one mesh, filled into models on every other, bit for bit."""

    def _filled(self, kind: str, how: str, others: Sequence[str]) -> ranks.Job:
        job = self.job()
        job.run(gpt.WORLD[kind], write, kind, how, 3)
        with open(os.path.join(job.dir, "expected"), "rb") as f:
            expected = pickle.load(f)
        for other in others:
            done = job.run(gpt.WORLD[other], fill, other, how, job.store, other in ("plain", "tp22"))
            for r, got in enumerate(done):
                want = expected[other][r]
                wrong = [k for k in want if got["digests"].get(k) != want[k]]
                self.assertEqual(wrong, [], f"{kind} to {other}, rank {r}")
                self.assertEqual((sorted(got["digests"]), got["step"]), (sorted(want), 3))
                self.assertNotIn(5.0, got["lr"])
        return job

    @fsdp2_on_cpu
    def test_from_fsdp(self) -> None:
        job = self._filled("fsdp4", "foreach", ("plain", "tp32", "ddp2"))
        with ckptd.open(job.store) as checkpoint:
            self._looks_right(checkpoint)
            self._one_file(job, checkpoint)

    @fsdp2_on_cpu
    def test_from_uneven_fsdp_over_tensor_parallelism_with_masters(self) -> None:
        self._filled("tp32", "masters", ("plain", "tp22", "hsdp22"))

    def test_a_damaged_byte_is_found_by_every_rank_before_it_writes(self) -> None:
        """No collective tells a rank what another one found."""
        job = self.job()
        job.run(2, write, "ddp2", "foreach", 1)
        with ckptd.open(job.store) as checkpoint:
            piece = checkpoint["model/wte.weight"].pieces[-1]
            with open(os.path.join(checkpoint.path, piece.file), "r+b") as f:
                f.seek(piece._record["offset"])
                f.write(b"\x00\x01\x02\x03")
        self.assertEqual(job.run(2, fill_damaged, "ddp2", "foreach", checkpoint.path), ["Damaged", "Damaged"])

    def _looks_right(self, checkpoint: Any) -> None:
        extras = checkpoint.extras(0)
        self.assertEqual(extras["sched"]["last_epoch"], 3)
        self.assertEqual(set(extras), {"sched", "rng"})
        self.assertEqual(checkpoint.aliases, {"model/head.weight": "model/wte.weight"})
        self.assertEqual(checkpoint["optim/wte.weight.step"].role, "counter")
        model = gpt.build("plain")
        ckptd.load(checkpoint.path, model, average="fast")
        raw = ckptd.load(checkpoint.path)
        self.assertNotEqual(bits(model.wte.weight), bits(raw["wte.weight"]))
        self.assertEqual(bits(model.wte.weight), bits(checkpoint["ema.fast/wte.weight"][...]))

    def _one_file(self, job: ranks.Job, checkpoint: Any) -> None:
        """Issue 16, 9: one file that the plain model takes strictly."""
        from safetensors.torch import load_file

        view = subprocess.run(
            [sys.executable, "-m", "ckptd", "view", checkpoint.path], env=dict(os.environ, PYTHONPATH=ranks.PACKAGE),
            stdout=subprocess.PIPE, check=True, text=True,
        ).stdout  # fmt: skip
        self.assertEqual(view, ckptd.view(checkpoint.path))
        with open(job.dir + "/view", "w") as f:
            f.write(view)
        job.ctl("restore", checkpoint.path, job.dir + "/out", "--mesh", "rank=1", "--view", job.dir + "/view")
        files = os.listdir(job.dir + "/out")
        self.assertEqual(files, ["rank-00000.safetensors"])
        model = gpt.build("plain")
        model.load_state_dict(load_file(job.dir + "/out/" + files[0]), strict=True)
        whole = torch.load(job.dir + "/whole")
        for name, value in model.state_dict().items():
            if name != "head.weight":
                self.assertEqual(bits(value), bits(whole["model/" + name]), name)


if __name__ == "__main__":
    unittest.main()
