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
