# SPDX-License-Identifier: Apache-2.0
"""ckptctl export for the programs that take its files: load_state_dict(strict=True) and transformers' from_pretrained.

The models are tiny ones of transformers, with tied weights, trained for a step by two FSDP2 ranks. What rank 0 gathers
of the state is the oracle.
"""

import json
import os
import unittest

import ranks
import torch
from torch_names import fsdp2_on_cpu

try:
    import transformers
except ImportError as e:
    transformers = None
    why = f"transformers cannot be imported: {e}"
else:
    why = ""


def config_of(family):
    if family == "gpt2":
        return transformers.GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    return transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=family == "tied",
    )


def make(family):
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(config_of(family))


# ---- what ranks do ----


def train(rank, family, path):
    """A step; the whole state goes to the file, by torch alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import fully_shard

    model = make(family)
    fully_shard(model, mesh=init_device_mesh("cpu", (rank.world,), mesh_dim_names=("fsdp",)))
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim)
    run.restore()
    tokens = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(9))
    with run.step(1):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optim.step()
    run.wait()
    state = {k: t.full_tensor() if hasattr(t, "full_tensor") else t for k, t in model.state_dict().items()}
    run.detach()
    if rank.rank == 0:
        torch.save(state, path)


class Tied(torch.nn.Module):
    """Two names of one tensor, and a third in a module of its own."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.wte = torch.nn.Embedding(24, 8)
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 24, bias=False)
        self.tail = torch.nn.ModuleDict({"head": torch.nn.Linear(8, 24, bias=False)})
        self.head.weight = self.tail["head"].weight = self.wte.weight


class SaveModel(ranks.Case):
    """What safetensors.torch.save_model wrote, by every way through ckptctl, for load_model."""

    def setUp(self):
        from safetensors.torch import save_model

        self.job_of_files = self.job("files")
        self.model = Tied(3)
        save_model(self.model, self.path("m.safetensors"), metadata={"note": "kept"})

    def path(self, name):
        return os.path.join(self.job_of_files.dir, name)

    def ctl(self, *words):
        self.job_of_files.ctl(*words)

    def names(self, path):
        from safetensors import safe_open

        with safe_open(path, "pt") as f:
            return sorted(f.keys()), f.metadata()

    def loaded(self, path):
        """It is taken by load_model, strictly and not, and is the model that was saved."""
        from safetensors.torch import load_model

        for strict in (True, False):
            model = Tied(4)
            self.assertEqual(load_model(model, path, strict=strict), (set(), []), path)
            for name, tensor in self.model.state_dict().items():
                self.assertTrue(torch.equal(model.state_dict()[name], tensor), f"{path}: {name}")

    def test_load_model_takes_what_comes_out_again(self):
        self.ctl("convert", self.path("m.safetensors"), self.path("native"))
        self.ctl("convert", self.path("native"), self.path("moved"), "--mesh", "fsdp=3", "--layout", "*=Shard(0)@fsdp")
        ways = {
            "same.safetensors": ("convert", "m.safetensors"),
            "export.safetensors": ("export", "native"),
            "convert.safetensors": ("convert", "native"),
            "only.safetensors": ("export", "moved", "--only", "*"),
            "once.safetensors": ("export", "moved", "--tied", "once"),
        }
        want = self.names(self.path("m.safetensors"))
        self.loaded(self.path("m.safetensors"))
        for out, (verb, source, *options) in ways.items():
            with self.subTest(out=out):
                self.ctl(verb, self.path(source), self.path(out), *options)
                keys, meta = self.names(self.path(out))
                self.assertEqual(keys, want[0])
                self.assertEqual({k: meta.get(k) for k in want[1]}, want[1])
                self.loaded(self.path(out))

    def test_files_of_ranks_keep_the_names(self):
        self.ctl("export", self.path("m.safetensors"), self.path("r"), "--mesh", "fsdp=2", "--layout", "*=Shard(0)@fsdp")
        self.ctl("convert", self.path("r"), self.path("again.safetensors"))
        self.loaded(self.path("again.safetensors"))

    def test_copies_are_for_load_state_dict(self):
        from safetensors.torch import load_file, load_model

        self.ctl("convert", self.path("m.safetensors"), self.path("c.safetensors"), "--tied", "copy")
        state = load_file(self.path("c.safetensors"))
        self.assertEqual(sorted(state), sorted(self.model.state_dict()))
        Tied(4).load_state_dict(state, strict=True)
        with self.assertRaisesRegex(RuntimeError, "Unexpected key"):  # so the default matters
            load_model(Tied(4), self.path("c.safetensors"))

    def test_shards_hold_each_tensor_once(self):
        from safetensors.torch import load_file

        self.ctl("export", self.path("m.safetensors"), self.path("shards"), "--shard-size", "500")
        with open(os.path.join(self.path("shards"), "model.safetensors.index.json")) as f:
            index = json.load(f)["weight_map"]
        keys, meta = self.names(self.path("m.safetensors"))
        self.assertEqual(sorted(index), keys)
        state, ties = {}, {}
        for name in set(index.values()):
            path = os.path.join(self.path("shards"), name)
            held, said = self.names(path)
            state |= load_file(path)
            ties |= {k: v for k, v in said.items() if v in held}
        self.assertEqual(ties, {k: v for k, v in meta.items() if v in keys})
        self.assertEqual(sorted(set(self.model.state_dict()) - set(state)), sorted(ties))
        for name, tensor in state.items():
            self.assertTrue(torch.equal(tensor, self.model.state_dict()[name]), name)


@unittest.skipIf(why, why)
class Export(ranks.Case):
    def setUp(self):
        self.jobs = {}

    def trained(self, family):
        """The job, and the state that it has saved."""
        if family not in self.jobs:
            job = self.job(family)
            path = os.path.join(job.dir, "state.pt")
            job.run(2, train, family, path)
            job.daemon_stop()
            self.jobs[family] = job, torch.load(path)
        return self.jobs[family]

    def export(self, family, out, *options):
        job, want = self.trained(family)
        out = os.path.join(job.dir, out)
        job.ctl("export", "-C", os.path.join(job.store, family), "latest", out, "--only", "model", *options)
        return out, want

    def same(self, got, want, what):
        self.assertEqual(sorted(got), sorted(want), what)
        for name, tensor in want.items():
            self.assertEqual(got[name].dtype, tensor.dtype, f"{what}: {name}")
            self.assertTrue(torch.equal(got[name], tensor), f"{what}: {name}")

    @fsdp2_on_cpu
    def test_tied_weights_are_under_each_name_and_load_state_dict_takes_them_strictly(self):
        from safetensors.torch import load_file

        for family in ("gpt2", "tied"):
            with self.subTest(family=family):
                job, want = self.trained(family)
                out = os.path.join(job.dir, "strict.safetensors")
                store = os.path.join(job.store, family)
                job.ctl("export", "-C", store, "latest", out, "--only", "model")
                state = load_file(out)
                self.assertIn("lm_head.weight", state)
                self.same(state, want, family)
                plain = make(family)
                plain.load_state_dict(state, strict=True)
                self.same(plain.state_dict(), want, family)
                self.assertIs(plain.get_output_embeddings().weight, plain.get_input_embeddings().weight)

    @fsdp2_on_cpu
    def test_load_model_takes_tied_weights_of_a_job_that_are_stored_once(self):
        from safetensors.torch import load_model

        for family in ("gpt2", "tied"):
            with self.subTest(family=family):
                out, want = self.export(family, "once.safetensors", "--tied", "once")
                for strict in (True, False):
                    model = make(family)
                    missing, unexpected = load_model(model, out, strict=strict)
                    self.assertFalse(missing or unexpected, family)
                    self.same(model.state_dict(), want, family)

    @fsdp2_on_cpu
    def test_from_pretrained_takes_shards_with_their_index(self):
        for family in ("gpt2", "tied", "llama"):
            with self.subTest(family=family):
                out, want = self.export(family, "hub", "--shard-size", "16K")
                with open(os.path.join(out, "model.safetensors.index.json")) as f:
                    index = json.load(f)
                self.assertGreater(len(set(index["weight_map"].values())), 2)
                config_of(family).save_pretrained(out)
                model, told = transformers.AutoModelForCausalLM.from_pretrained(
                    out, dtype=torch.float32, output_loading_info=True
                )
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(told[kind], f"{family}: {kind}")
                self.same(model.state_dict(), want, family)
                tokens = torch.arange(8).reshape(1, 8)
                plain = make(family)
                plain.load_state_dict(want)
                self.assertTrue(torch.equal(model.eval()(tokens).logits, plain.eval()(tokens).logits), family)

    def rules(self, job, text):
        path = os.path.join(job.dir, "rules")
        with open(path, "w") as f:
            f.write(text + "\n")
        return path

    @fsdp2_on_cpu
    def test_a_view_casts_and_reshapes_as_torch_does(self):
        from safetensors.torch import load_file

        job, _ = self.trained("llama")
        rules = self.rules(
            job,
            "reshape model/*.q_proj.weight 4,-1,2,32\n"
            "transpose model/*.q_proj.weight dims 0,2,1,3\n"
            "reshape model/*.q_proj.weight 32,32\n"
            "reshape model/*.k_proj.weight -1\n"
            "cast model/* BF16\n"
            "cast model/*norm* F32",
        )
        out, want = self.export("llama", "seen.safetensors", "--view", rules)
        for name in want:
            if name.endswith("q_proj.weight"):
                want[name] = want[name].reshape(4, -1, 2, 32).permute(0, 2, 1, 3).reshape(32, 32)
            if name.endswith("k_proj.weight"):
                want[name] = want[name].reshape(-1)
            if "norm" not in name:
                want[name] = want[name].bfloat16()
        self.same(load_file(out), want, "a view")


if __name__ == "__main__":
    unittest.main()
