# SPDX-License-Identifier: Apache-2.0
"""Real torch: what a training program does to tensors behind the checkpoint's back is found and named
(python/ckptd/_watch.py)."""

import copy
import gc
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from memory_ranks import on_ranks, train

import torch
from torch import nn

from ckptd import _watch
from ckptd._types import Entry, Home, Layout, Part
from ckptd._watch import Kind, Watch
from torch_names import fsdp2_on_cpu


def entry(component, name, mapping, key):
    value = mapping[key]
    local = getattr(value, "_local_tensor", value).detach()
    layout = Layout(tuple(value.shape), 0, None, (), (Part(local),))
    return Entry(component, name, 0, 0, 13, layout, Home(mapping, key, value))


def entries_of(model, *optims):
    """The training state as entries, in the way of `_state.collect`."""
    found, names = [], {}
    for path, module in model.named_modules():
        for mapping in (module._parameters, module._buffers):
            for key, value in mapping.items():
                if value is not None and key not in module._non_persistent_buffers_set and id(value) not in names:
                    names[id(value)] = f"{path}.{key}" if path else key
                    found.append(entry("model", names[id(value)], mapping, key))
    for optim in optims:
        for param, inner in optim.state.items():
            for key, value in inner.items():
                if isinstance(value, torch.Tensor):
                    found.append(entry("optim", f"{names[id(param)]}.{key}", inner, key))
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.b = nn.Linear(8, 8, bias=False)
        self.c = nn.Linear(8, 8, bias=False)
        self.c.weight = self.b.weight
        self.register_buffer("once", torch.ones(1), persistent=False)

    def forward(self, x):
        return self.c(self.b(self.norm(self.a(x)))) * self.once


class Hazards(unittest.TestCase):
    """Each of these commits wrong bytes in silence if nobody looks."""

    def setUp(self):
        torch.manual_seed(1)
        self.model = Net()
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        train(self.model, self.optim, 1)
        self.entries = entries_of(self.model, self.optim)
        self.watch = Watch(self.entries, [self.model], [self.optim], step=4)
        self.addCleanup(self.watch.close)
        self.assertEqual(self.watch.check(5), [])

    def found(self, kind, *names, step=6, full=False):
        """The next check finds exactly these, right since step 5, and so does the one after it."""
        for _ in range(2):
            changes = self.watch.check(step, full=full)
            self.assertEqual([(c.kind, c.name) for c in changes], [(kind, name) for name in names])
            self.assertEqual({c.since for c in changes}, {5})
        return changes

    def optimizer_names(self):
        return [e.key for e in self.entries if e.component == "optim"]

    def model_names(self):
        return [e.key for e in self.entries if e.component == "model"]

    def test_training_changes_nothing_that_is_watched(self):
        for step in range(6, 20):
            train(self.model, self.optim, 1, seed=step)
            self.assertEqual(self.watch.check(step, full=step % 2 == 0), [])

    def test_load_state_dict_in_place_changes_nothing(self):
        self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))
        self.assertEqual(self.watch.check(6, full=True), [])

    def test_load_state_dict_with_assign(self):
        self.model.load_state_dict(copy.deepcopy(self.model.state_dict()), assign=True)
        changes = self.found(Kind.REPLACED, *self.model_names())
        self.assertIs(changes[0].value, self.model.a.weight)

    def test_load_state_dict_with_assign_of_one_layer(self):
        self.model.b.load_state_dict(copy.deepcopy(self.model.b.state_dict()), assign=True)
        self.found(Kind.REPLACED, "model/b.weight")

    def test_load_state_dict_while_torch_exchanges_tensors(self):
        torch.__future__.set_swap_module_params_on_conversion(True)
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)
        self.model.a.load_state_dict(copy.deepcopy(self.model.a.state_dict()), assign=True)
        self.found(Kind.REPLACED, "model/a.weight", "model/a.bias")

    def test_to_another_dtype(self):
        self.model.to(torch.bfloat16)
        names = [name for name in self.model_names() if not name.endswith("num_batches_tracked")]
        changes = self.found(Kind.RESHAPED, *names)
        self.assertIn("has dtype bfloat16, and float32 was declared", changes[0].detail)

    def test_to_there_and_back(self):
        self.model.double().float()
        self.found(Kind.REPLACED, *[name for name in self.model_names() if not name.endswith("num_batches_tracked")])

    def test_assigned_data(self):
        self.model.b.weight.data = torch.zeros(8, 8)
        self.found(Kind.REPLACED, "model/b.weight")

    def test_assigned_data_of_another_shape(self):
        self.model.a.bias.data = torch.zeros(5)
        changes = self.found(Kind.RESHAPED, "model/a.bias")
        self.assertIn("has shape [5], and [8] was declared", changes[0].detail)

    def test_assigned_data_at_the_same_address(self):
        """Only a full look sees it: it comes at the latest after sixteen checks."""
        self.model.b.weight.data = self.model.b.weight.data[:4]
        late = []
        for step in range(6, 6 + _watch.DEEP):
            late = late or self.watch.check(step)
        self.assertEqual([(c.kind, c.name) for c in late], [(Kind.RESHAPED, "model/b.weight")])
        self.assertLessEqual(late[0].since, 5)
        self.assertEqual([c.kind for c in self.watch.check(20, full=True)], [Kind.RESHAPED])

    def test_turned_in_place(self):
        with torch.no_grad():
            self.model.a.weight.t_()
        changes = self.watch.check(6, full=True)
        self.assertEqual([(c.kind, c.name) for c in changes], [(Kind.REPLACED, "model/a.weight")])
        self.assertIn("strides", changes[0].detail)

    def test_a_storage_that_was_freed(self):
        self.model.a.weight.untyped_storage().resize_(0)
        self.found(Kind.FREED, "model/a.weight")

    def test_a_storage_that_became_too_small(self):
        self.model.a.weight.untyped_storage().resize_(16)
        changes = self.found(Kind.RESIZED, "model/a.weight")
        self.assertIn("needs 256 bytes of its storage, which has 16", changes[0].detail)

    def test_set_onto_the_storage_of_another(self):
        with torch.no_grad():
            self.model.a.weight.set_(self.model.b.weight.untyped_storage(), 0, (8, 8), (8, 1))
        changes = self.found(Kind.ALIASED, "model/a.weight")
        self.assertIn("shares the memory of model/b.weight now", changes[0].detail)

    def test_two_that_were_apart_become_one(self):
        shared = torch.zeros(8, 8)
        self.model.a.weight.data = shared
        self.model.b.weight.data = shared
        self.found(Kind.ALIASED, "model/a.weight", "model/b.weight")

    def test_columns_of_one_buffer_are_not_aliases(self):
        shared = torch.zeros(8, 16)
        self.model.a.weight.data = shared[:, :8]
        self.model.b.weight.data = shared[:, 8:]
        self.found(Kind.REPLACED, "model/a.weight", "model/b.weight")

    def test_the_optimizer_loads_its_state(self):
        """It replaces its state, the dictionary of each parameter, and the tensors."""
        old = self.optim.state
        self.optim.load_state_dict(copy.deepcopy(self.optim.state_dict()))
        self.assertIsNot(self.optim.state, old)
        changes = self.found(Kind.REPLACED, *self.optimizer_names())
        self.assertIs(changes[1].value, self.optim.state[self.model.a.weight]["exp_avg"])

    def test_the_optimizer_loads_its_own_tensors(self):
        """Other dictionaries, the same tensors: nothing has changed, and the new dictionaries are watched."""
        self.optim.load_state_dict(self.optim.state_dict())
        self.assertEqual(self.watch.check(5), [])
        self.optim.state[self.model.a.weight]["exp_avg"] = torch.zeros(8, 8)
        self.found(Kind.REPLACED, "optim/a.weight.exp_avg")

    def test_the_optimizer_loads_its_own_tensors_twice_and_loses_them(self):
        for _ in range(2):
            self.optim.load_state_dict(self.optim.state_dict())
            self.assertEqual(self.watch.check(5), [])
        self.optim.state.clear()
        self.found(Kind.GONE, *self.optimizer_names())

    def test_the_optimizer_loses_its_state(self):
        self.optim.state.clear()
        self.found(Kind.GONE, *self.optimizer_names())

    def test_one_parameter_loses_its_state(self):
        del self.optim.state[self.model.a.bias]
        self.found(Kind.GONE, *[name for name in self.optimizer_names() if name.startswith("optim/a.bias.")])

    def test_one_tensor_of_the_state_is_gone_or_no_tensor(self):
        inner = self.optim.state[self.model.a.bias]
        inner["step"] = 3
        self.found(Kind.GONE, "optim/a.bias.step")
        del inner["step"]
        self.found(Kind.GONE, "optim/a.bias.step")

    def test_one_tensor_of_the_state_is_replaced(self):
        self.optim.state[self.model.a.bias]["exp_avg"] = torch.zeros(8)
        self.found(Kind.REPLACED, "optim/a.bias.exp_avg")

    def test_the_state_of_one_parameter_is_replaced(self):
        self.optim.state[self.model.a.bias] = copy.deepcopy(self.optim.state[self.model.a.bias])
        self.found(Kind.REPLACED, *[name for name in self.optimizer_names() if name.startswith("optim/a.bias.")])

    def test_state_that_was_not_there(self):
        self.optim.state[self.model.a.bias]["max_exp_avg_sq"] = torch.zeros(8)
        changes = self.found(Kind.NEW, "max_exp_avg_sq of a parameter of shape [8]")
        self.assertIsNone(changes[0].entry)
        self.watch.renew(entries_of(self.model, self.optim), 6)
        self.assertEqual(self.watch.check(7, full=True), [])

    def test_state_of_a_parameter_that_had_none(self):
        model = nn.Linear(3, 3)
        optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        watch = Watch(entries_of(model, optim), [model], [optim])
        self.addCleanup(watch.close)
        train(model, optim, 1, width=3)
        self.assertEqual([c.kind for c in watch.check(1)], [Kind.NEW, Kind.NEW])

    def test_a_buffer_registered_anew(self):
        self.model.norm.register_buffer("running_mean", torch.zeros(8))
        self.found(Kind.REPLACED, "model/norm.running_mean")

    def test_a_buffer_that_is_assigned(self):
        self.model.norm.running_mean = self.model.norm.running_mean * 0.5
        self.found(Kind.REPLACED, "model/norm.running_mean")

    def test_a_new_buffer_and_a_new_layer(self):
        self.model.norm.register_buffer("more", torch.zeros(8))
        self.model.norm.register_buffer("not_saved", torch.zeros(8), persistent=False)
        self.model.d = nn.Linear(2, 2)
        changes = self.watch.check(6)
        self.assertEqual({c.kind for c in changes}, {Kind.NEW})
        self.assertEqual({c.name for c in changes}, {"norm.more", "d.weight", "d.bias"})

    def test_a_layer_that_is_replaced_and_one_that_is_removed(self):
        self.model.a = nn.Linear(8, 8)
        self.found(Kind.REPLACED, "model/a.weight", "model/a.bias")
        del self.model.a
        self.found(Kind.GONE, "model/a.weight", "model/a.bias")

    def test_a_layer_that_is_replaced_by_another_of_other_size(self):
        self.model.a = nn.Linear(8, 3)
        self.found(Kind.RESHAPED, "model/a.weight", "model/a.bias")

    def test_to_empty(self):
        self.model.to_empty(device="cpu")
        self.assertEqual({c.kind for c in self.watch.check(6)}, {Kind.REPLACED})

    def test_shared_memory_is_other_memory(self):
        self.model.a.share_memory()
        self.found(Kind.REPLACED, "model/a.weight", "model/a.bias")

    def test_what_run_has_dealt_with_is_right(self):
        self.model.b.weight.data = torch.zeros(8, 8)
        self.found(Kind.REPLACED, "model/b.weight")
        self.watch.renew(entries_of(self.model, self.optim), 6)
        self.assertEqual(self.watch.check(7, full=True), [])
        self.model.b.weight.data = torch.zeros(8, 8)
        self.assertEqual([c.since for c in self.watch.check(8)], [7])

    def test_the_hooks_go_with_the_watch_and_the_model_can_be_pickled_and_copied(self):
        from torch.nn.modules import module as torch_module

        hooks = torch_module._global_parameter_registration_hooks
        before = len(hooks)
        copy.deepcopy(self.model)
        torch.save(self.model, io.BytesIO())
        watch = Watch(self.entries, [self.model], [self.optim])
        self.assertEqual(len(hooks), before + 1)
        watch.close()
        self.assertEqual(len(hooks), before)
        watch = Watch(self.entries, [self.model], [self.optim])
        del watch
        gc.collect()
        self.assertEqual(len(hooks), before)

    def test_other_mappings_than_dict_are_asked_by_get(self):
        import collections

        mapping = collections.UserDict(w=torch.zeros(3))
        watch = Watch([entry("model", "w", mapping, "w")], step=1)
        self.assertEqual(watch.check(2), [])
        mapping["w"] = torch.zeros(3)
        self.assertEqual([c.kind for c in watch.check(3)], [Kind.REPLACED])


class Many(unittest.TestCase):
    """More than 2,000 tensors: 2,000 each time, in turn, and all of them when there is a sign."""

    def setUp(self):
        self.model = nn.ModuleList(nn.Linear(2, 2) for _ in range(2500))
        self.watch = Watch(entries_of(self.model), [self.model], step=10)
        self.addCleanup(self.watch.close)
        self.turns = 3

    def test_a_change_without_a_sign_is_found_in_its_turn_with_the_step_since_when(self):
        for step in range(11, 11 + self.turns):
            self.assertEqual(self.watch.check(step), [])
        place = self.model[2400]  # the third turn, looked at in step 13
        place.bias.data = torch.zeros(2)  # the weight is the sentinel of the layer
        found = [self.watch.check(step) for step in (14, 15, 16)]
        self.assertEqual([len(changes) for changes in found], [0, 0, 1])
        self.assertEqual((found[2][0].kind, found[2][0].since), (Kind.REPLACED, 13))

    def test_to_on_one_layer_is_found_at_once(self):
        self.model[2400].double()
        names = ["model/2400.weight", "model/2400.bias"]
        self.assertEqual([c.name for c in self.watch.check(11)], names)
        self.assertEqual([c.name for c in self.watch.check(12)], names)

    def test_load_state_dict_with_assign_of_one_tensor_is_found_at_once(self):
        self.model.load_state_dict({"2400.bias": torch.zeros(2)}, assign=True, strict=False)
        self.assertEqual([c.name for c in self.watch.check(11)], ["model/2400.bias"])

    def test_a_full_check_finds_everything(self):
        self.model[2400].bias.data = torch.zeros(2)
        self.assertEqual([c.name for c in self.watch.check(11, full=True)], ["model/2400.bias"])

    def test_a_change_of_an_optimizers_state_is_found_at_once(self):
        optim = torch.optim.AdamW(self.model.parameters(), foreach=True)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        optim.step()
        watch = Watch(entries_of(self.model, optim), [self.model], [optim], step=1)
        self.addCleanup(watch.close)
        self.assertEqual(watch.check(2), [])
        optim.state[self.model[2400].bias]["more"] = torch.zeros(2)
        self.assertEqual([c.kind for c in watch.check(3)], [Kind.NEW])
        del optim.state[self.model[2400].bias]["more"]
        optim.load_state_dict(copy.deepcopy(optim.state_dict()))
        changes = watch.check(4)
        self.assertEqual(len(changes), 15000)
        self.assertEqual({c.kind for c in changes}, {Kind.REPLACED})

    def test_a_check_costs_as_much_for_10000_as_for_2000(self):
        """Not a timed test: it counts the tensors that are looked at."""
        looked = sum(len(turn.entries) for turn in self.watch._turns[:1])
        self.assertLessEqual(looked, _watch.TURN)
        self.assertEqual(len(self.watch._turns), self.turns)


# --- DTensor and FSDP2 ---


def gathered_and_replaced(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import fully_shard

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    torch.manual_seed(1)

    def make():
        model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 1))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(model, mesh=mesh)
        optim = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optim, 2)
        return model, optim, Watch(entries_of(model, optim), [model], [optim], step=2)

    model, optim, watch = make()
    for step in range(3, 12):
        train(model, optim, 1, seed=step)
        assert watch.check(step, full=True) == []
    with torch.no_grad():
        model(torch.randn(2, 8))  # an evaluation leaves the root's parameters gathered
    model[0].unshard()
    assert type(model[0].weight) is nn.Parameter
    assert watch.check(12, full=True) == [], "gathered parameters are no change"
    model[0].reshard()
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]

    def expect(kind, since=2, **kw):
        changes = watch.check(20, **kw)
        assert [(c.kind, c.name) for c in changes] == [(kind, "model/" + name) for name in names], changes
        assert {c.since for c in changes} == {since}, changes

    model.to_empty(device="cpu")
    expect(Kind.REPLACED, since=12)
    model, optim, watch = make()
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    expect(Kind.REPLACED)
    model, optim, watch = make()
    model.to(torch.float64)
    expect(Kind.RESHAPED)
    model, optim, watch = make()
    model[0].weight._local_tensor = model[0].weight._local_tensor.clone()
    names = ["0.weight"]
    expect(Kind.REPLACED)
    model, optim, watch = make()
    optim.load_state_dict({k: v for k, v in optim.state_dict().items()})
    assert watch.check(3) == []
    optim.state.clear()
    assert {c.kind for c in watch.check(4)} == {Kind.GONE}


class Ranks(unittest.TestCase):
    @fsdp2_on_cpu
    def test_fsdp2_gathers_moves_and_loads(self):
        on_ranks(2, gathered_and_replaced)


if __name__ == "__main__":
    unittest.main()
