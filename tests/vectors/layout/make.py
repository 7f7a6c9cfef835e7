#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the vectors of tests/unit/test_layout_vectors.c: python3 make.py DIRECTORY-OF-JSONL

The *.jsonl were answered by PyTorch 2.15.0, one case a line:
    {"shape":[7,5],"mesh":[3,2],"ranks":[..]?,"placements":["_S(0, 2)","S(0)"],
     "order":[[0,[1,0]]]?,"mode":"order"?,"expect":[{"coord":[0,0],"runs":[[[0,2]],[[0,5]]]},..]}
They become NAME.txt, one case a line, decimal numbers and letters between spaces:
    NAME:LINE ndim shape.. mesh_ndim sizes.. nrank ranks..
    nplace (R mesh_dim | P mesh_dim reduce | S mesh_dim tensor_dim split_factor)..
    E, or nrank times: rank coord.. per dimension: nruns (start stop)..
Placements stand in order of application, reduce is of enum ckpt_reduce. modes.jsonl becomes
flat.txt and unflatten_pad.txt, whose placements are read in that mode. Split factors of
"mode":"order" are decoded to that order.
What only a reader of text can refuse (a negative size, f < 1, a bad order) is left out and counted
in a line "# skip NAME N".

strided_order.txt: NAME:LINE mesh_ndim sizes.. per mesh dimension (R | P | S tensor_dim
split_factor); the order that these say: E (none), or n mesh_dim.., by tensor dimension and then the
first applied first; 0, or 1 and the order that they are made of: n (mesh_dim tensor_dim)..

torch_order.txt: the cases with "mode":"order", also the refused ones, with their placements in the order
of the mesh and with their split factors, as torch prints them.

owned.txt: the ownership rule v1 of ckpt/layout/layout.h, computed here by itself:
    NAME:LINE as above with ONLY as "O mesh_dim coordinate"; then elem_bytes component name; then as
    above with the number of elements owned between the coordinate and the dimensions.
"""
import itertools, json, math, os, random, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))


def ceil(a, b):
    return -(-a // b)


def decode(placements, mesh):
    """Split factors as a shard order: {tensor dim: mesh dims}, or None."""
    order = {}
    for m in reversed(range(len(mesh))):
        if placements[m][0] != "S":
            continue
        dims, acc = order.setdefault(placements[m][1], []), 1
        for i in range(len(dims) + 1):
            if acc == placements[m][2]:
                dims.insert(i, m)
                break
            if i < len(dims):
                acc *= mesh[dims[i]]
        else:
            return None
    return order


def placement(text, ndim):
    if text == "R":
        return ("R",)
    if text.startswith("P"):
        return ("P", ["sum", "avg", "min", "max", "product"].index(text[2:-1]))
    m = re.fullmatch(r"S\((-?\d+)\)|_S\((-?\d+), ?(-?\d+)\)", text)
    d = int(m[1] if m[1] is not None else m[2])
    f = 1 if m[3] is None else int(m[3])
    if d < 0:
        d += ndim
    if d < 0 or f < 1:
        return None
    return ("S", d, f)


def case(c):
    """The fields of a line before its answer; None if C structs cannot say it."""
    shape, mesh, mode = c["shape"], c["mesh"], c.get("mode", "literal")
    ranks = c.get("ranks", list(range(math.prod(mesh))))
    if any(x < 0 for x in shape + mesh + ranks) or len(c["placements"]) != len(mesh):
        return None
    p = [placement(t, len(shape)) for t in c["placements"]]
    if None in p or mode not in ("literal", "order", "flat", "unflatten_pad"):
        return None
    order = c.get("order")
    if mode == "order":
        order = decode(p, mesh)
        if order is None or "order" in c:
            return None
        p = [("S", x[1], 1) if x[0] == "S" else x for x in p]
        order = sorted(order.items())
    elif order is not None:
        flat = [m for _, ms in order for m in ms]
        cut = [m for m, x in enumerate(p) if x[0] == "S"]
        if sorted(flat) != cut or any(not ms or d < 0 for d, ms in order):
            return None
        if any(p[m][1] != d for d, ms in order for m in ms) or order != sorted(order):
            return None
    else:
        order = [(None, [m for m, x in enumerate(p) if x[0] == "S"])]
    out = [len(shape), *shape, len(mesh), *mesh, len(ranks), *ranks]
    places = [("S", m, *p[m][1:]) for _, ms in order for m in ms]
    places += [(x[0], m, *x[1:]) for m, x in enumerate(p) if x[0] != "S"]
    out += [len(places), *itertools.chain(*places)]
    return out


def answer(rows):
    """rows: (rank, coord, runs[, numel])"""
    out = []
    for rank, coord, runs, *numel in rows:
        out += [rank, *coord, *numel]
        for dim in runs:
            out += [len(dim), *itertools.chain(*dim)]
    return out


def convert(source, name, mode=None):
    skipped = 0
    out = os.path.join(HERE, (mode or name) + ".txt")
    with open(os.path.join(source, name + ".jsonl")) as f, open(out, "w") as o:
        for n, line in enumerate(f, 1):
            c = json.loads(line)
            if mode and c["mode"] != mode:
                continue
            head = case(c)
            if head is None or (not mode and c.get("mode") in ("flat", "unflatten_pad")):
                skipped += 1
                continue
            if isinstance(c["expect"], dict):
                tail = ["E"]
            else:
                ranks = sorted(c.get("ranks", range(math.prod(c["mesh"]))))
                tail = answer([(r, e["coord"], e["runs"]) for r, e in zip(ranks, c["expect"])])
            print("%s:%d" % (name, n), *head, *tail, file=o)
        if skipped:
            print("# skip", name, skipped, file=o)


def make_strided_order(source):
    out = os.path.join(HERE, "strided_order.txt")
    with open(os.path.join(source, "strided_order.jsonl")) as f, open(out, "w") as o:
        for n, line in enumerate(f, 1):
            c = json.loads(line)
            p = [placement(t, 16) for t in c["strided"]]
            head = [len(c["mesh"]), *c["mesh"]]
            head += itertools.chain(*(x if x[0] == "S" else x[:1] for x in p))
            if c["decoded"] is None:
                tail = ["E"]
            else:
                dims = [m for _, ms in c["decoded"] for m in ms]
                tail = [len(dims), *dims]
            plain = [(m, d) for d, ms in c.get("order") or [] for m in ms]
            tail += [1, len(plain), *itertools.chain(*plain)] if "order" in c else [0]
            print("strided_order:%d" % n, *head, *tail, file=o)


def make_torch_order(source):
    with open(os.path.join(HERE, "torch_order.txt"), "w") as o:
        for name in ("fsdp", "order", "errors"):
            with open(os.path.join(source, name + ".jsonl")) as f:
                for n, line in enumerate(f, 1):
                    c = json.loads(line)
                    shape, mesh = c["shape"], c["mesh"]
                    p = [placement(t, len(shape)) for t in c["placements"]]
                    if c.get("mode") != "order" or "order" in c or None in p:
                        continue
                    if any(x < 0 for x in shape + mesh) or len(p) != len(mesh):
                        continue
                    ranks = c.get("ranks", list(range(math.prod(mesh))))
                    places = [(x[0], m, *x[1:]) for m, x in enumerate(p)]
                    out = [len(shape), *shape, len(mesh), *mesh, len(ranks), *ranks]
                    out += [len(places), *itertools.chain(*places)]
                    if isinstance(c["expect"], dict):
                        out += ["E"]
                    else:
                        rows = zip(sorted(ranks), c["expect"])
                        out += answer([(r, e["coord"], e["runs"]) for r, e in rows])
                    print("%s:%d" % (name, n), *out, file=o)


# ---- ownership, written from the rule's text and independent of the C code


def cut(runs, a, b):
    out, p = [], 0
    for s, e in runs:
        low, high = max(a, p), min(b, p + e - s)
        if low < high:
            if out and out[-1][1] == s + low - p:
                out[-1][1] = s + high - p
            else:
                out.append([s + low - p, s + high - p])
        p += e - s
    return out


def total(runs):
    return sum(e - s for s, e in runs)


def shard(runs, k, r, f):
    n, out = total(runs), []
    w = ceil(n, f)
    for j in range(f if n else 0):
        a, b = min(j * w, n), min((j + 1) * w, n)
        c = ceil(b - a, k)
        out += cut(runs, min(a + r * c, b), min(a + (r + 1) * c, b))
    return cut(out, 0, n)


def mix(component, name, first):
    h = 0xCBF29CE484222325
    for b in component.encode() + b"\0" + name.encode() + b"\0" + first.to_bytes(8, "little"):
        h = ((h ^ b) * 0x100000001B3) % 2**64
    h = ((h ^ (h >> 33)) * 0xFF51AFD7ED558CCD) % 2**64
    h = ((h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53) % 2**64
    return h ^ (h >> 33)


def owned(shape, mesh, places, coord, elem, component, name):
    """The runs that the coordinate owns, their elements, and by which part of the rule."""
    nothing = [[] for _ in shape]
    runs = [[[0, n]] if n else [] for n in shape]
    for p in places:
        if p[0] == "O" and coord[p[1]] != p[2]:
            return nothing, 0, "empty"
        if p[0] == "S":
            runs[p[2]] = shard(runs[p[2]], mesh[p[1]], coord[p[1]], p[3])
    numel = math.prod(total(r) for r in runs)
    if numel == 0:
        return nothing, 0, "empty"
    free = [m for m in range(len(mesh)) if not any(p[1] == m and p[0] != "R" for p in places)]
    replicas, mine = math.prod(mesh[m] for m in free), 0
    for m in free:
        mine = mine * mesh[m] + coord[m]
    wide = [d for d in range(len(shape)) if total(runs[d]) >= replicas]
    if numel * elem < replicas * 2**20 or not wide:
        first = 0
        for d, n in enumerate(shape):
            first = first * n + runs[d][0][0]
        if mix(component, name, first) % replicas == mine:
            return runs, numel, "small" if replicas > 1 else "alone"
        return nothing, 0, "small"
    d = wide[0]
    w, x = divmod(total(runs[d]), replicas)
    runs[d] = cut(runs[d], mine * w + min(mine, x), (mine + 1) * w + min(mine + 1, x))
    return runs, math.prod(total(r) for r in runs), "large" if replicas > 1 else "alone"


def make_owned():
    rng, kinds = random.Random(20260901), {}
    sizes = [1, 2, 3, 7, 64, 100, 1000, 1024, 4096, 5003]
    with open(os.path.join(HERE, "owned.txt"), "w") as o:
        for n in range(1, 561):
            mesh = [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
            ndim = rng.randint(0, 3)
            shape = [rng.choice(sizes + [0] * (rng.random() < 0.1)) for _ in range(ndim)]
            places = []
            for m in rng.sample(range(len(mesh)), len(mesh)):
                t = rng.random()
                if t < 0.3 and shape:
                    places.append(("S", m, rng.randrange(len(shape)), rng.choice([1, 1, 2, 3, 8])))
                elif t < 0.4:
                    places.append(("O", m, rng.randrange(mesh[m])))
                elif t < 0.5:
                    places.append(("R", m))
                elif t < 0.75 and n > 500:
                    places.append(("P", m, 0))
            count = math.prod(mesh)
            ranks = rng.sample(range(count + 3), count)
            elem = rng.choice([1, 2, 4, 8, 16])
            component = rng.choice(["model", "optim", "x"])
            name = "layers.%d.w%s" % (rng.randrange(99), "\u00e9" * rng.randrange(2))
            rows = []
            for r, c in zip(ranks, itertools.product(*map(range, mesh))):
                runs, numel, kind = owned(shape, mesh, places, c, elem, component, name)
                kinds[kind] = kinds.get(kind, 0) + 1
                rows.append((r, c, runs, numel))
            head = [len(shape), *shape, len(mesh), *mesh, count, *ranks]
            head += [len(places), *itertools.chain(*places)]
            print("owned:%d" % n, *head, elem, component, name, *answer(sorted(rows)), file=o)
    print("ranks owning by each part of the rule:", kinds)


for which in ("literal", "strided", "order", "ranks", "large", "errors", "fsdp"):
    convert(sys.argv[1], which)
for which in ("flat", "unflatten_pad"):
    convert(sys.argv[1], "modes", which)
make_strided_order(sys.argv[1])
make_torch_order(sys.argv[1])
make_owned()
