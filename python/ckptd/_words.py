# SPDX-License-Identifier: Apache-2.0
"""The library's sentences in the words of this package: said(). `_lib` calls it on all that the library says.

libckpt speaks to those who call ckpt.h. Whoever uses this package has never heard of ckpt_guard, and calls run.step.
"""

from __future__ import annotations

import re

# Clauses that would not read well with a word put in place of another; the first that fits counts.
_CLAUSES = (
    (r"blob (\S+) is \d+ bytes long, and has space for \d+: make it shorter, or call ckpt_blob_resize, and then ckpt_seal",
     r"the state of \1 could not be saved"),
    (r"a blob of a rank was longer than its capacity: that rank's ckpt_why names it; use ckpt_blob_resize there",
     "a rank had no state of it to save, and its log says why"),
    (r"the state is changed before ckpt_guard", "the state is changed outside of run.step"),
    (r"after ckpt_snapshot and before ckpt_guard: call ckpt_guard before you modify the state",
     "outside of run.step: put every change of the state into its block"),
    (r"after ckpt_snapshot and before ckpt_guard", "outside of run.step"),
    (r"call ckpt_guard before it is freed", "free it inside of the block of run.step"),
    (r"and had not called ckpt_guard", "and had not entered its next step"),
    (r"without ckpt_guard after this one", "without entering it"),
    (r": use ckpt_alloc, or call ckpt_guard", ': use memory="alloc", or guard="finish"'),
    (r"in the spec of an average ckpt_guard waits", "in the spec of an average run.step waits"),
    (r"ckpt_snapshot takes nothing", "run.step saves nothing"),
    (r"before the first ckpt_snapshot", "before the first step"),
    (r"not every rank has called ckpt_seal after the newest declaration", "not every rank has declared its newest state"),
    (r"(has|have) called ckpt_seal", r"\1 declared its state"),
    (r"(a|every) new ckpt_seal of every rank", "a new declaration by every rank"),
    (r": start ckptd, or set CKPT_AUTOSTART", ": start ckptd"),
    (r"it was marked with CKPT_STAGE_ONLY", "run.step was given persist=False"),
    (r"it was not marked with CKPT_PERSIST", "run.step was not given persist=True"),
    (r"that rank's ckpt_why names it", "that rank's log names it"),
    (r"its ckpt_why says why", "its log says why"),
    (r"ckpt_opts\.(\w+)", r"\1="),
    (r"ckpt_want\.?", "the request "),
)  # fmt: skip

_CALLS = {
    "attach": "ckptd.attach",
    "restore": "run.restore",
    "snapshot": "run.step",
    "guard": "run.step",
    "wait": "run.wait",
    "fresh": "run.fresh",
    "stats": "run.stats",
    "detach": "run.detach",
    "average": "averages=",
    "alloc": 'memory="alloc"',
    "seal": "the declaration",
    "why": "the log",
}

_FLAGS = {
    "EXACT": "exact=True",
    "LENIENT": "strict=False",
    "EXPLICIT": "explicit=True",
    "PERSIST": "persist=True",
    "STAGE_ONLY": "persist=False",
    "NCCL": "nccl=True",
    "REQUIRE": "strict=True",
    "FROM_DISK": 'source="disk"',
    "FROM_MEMORY": 'source="memory"',
}

_clauses = tuple((re.compile(pattern), words) for pattern, words in _CLAUSES)
# Not in the name of a tensor or a file.
_name = re.compile(r"(?<![\w./-])(?:ckpt_([a-z_]+)|CKPT_([A-Z_]+))(?![\w/-])")


def said(text: str) -> str:
    """The sentence, without a name of ckpt.h."""
    if "ckpt_" not in text and "CKPT_" not in text:
        return text
    for pattern, words in _clauses:
        text = pattern.sub(words, text)
    return _name.sub(_word, text)


def _word(found: "re.Match[str]") -> str:
    call, flag = found.groups()
    if call:
        return _CALLS.get(call, call.replace("_", " "))
    return _FLAGS.get(flag, flag.replace("_", " ").strip().lower())
