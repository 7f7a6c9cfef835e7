# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of this package. Every module raises these; users catch them.

The text of an error is the library's own: what, where, why and what to do, in one or more lines. `.errno` is the
positive errno of ckpt.h's vocabulary. The kind of an error follows from this code and from the call that failed.
"""

from __future__ import annotations

import errno as _errno
from typing import Dict, Optional, Tuple, Type


class CkptdError(OSError):
    """A call of the library failed. str(e): its sentence. e.errno: the positive errno."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(abs(code), text)

    def __str__(self) -> str:
        return str(self.strerror)


class InvalidCall(CkptdError, ValueError):
    """A call or a declaration is malformed, or the ranks disagree (EINVAL)."""


class NotSupported(CkptdError):
    """This version does not do that yet (EOPNOTSUPP)."""


class AlreadyDeclared(CkptdError):
    """Declared twice, or too late in the life of the handle (EALREADY)."""


class ForkedError(CkptdError):
    """The handle belongs to the parent process: a forked child cannot use it (ECHILD)."""


class NoDaemon(CkptdError):
    """No daemon listens; it, or a rank, ended during the call; or restore has failed on another rank (ECONNREFUSED, ECONNRESET)."""


class AlreadyAttached(CkptdError):
    """Another process, or another handle, is this rank of the job already, or another run has the job (EBUSY)."""


class Superseded(CkptdError):
    """A newer launch of the job took over: this one must end; or it must restore again (ESTALE)."""


class NotPermitted(CkptdError, PermissionError):
    """The socket or the store belongs to another user (EACCES, EPERM)."""


class VersionMismatch(CkptdError):
    """The library, the daemon or the step is of another version than what uses it (EPROTO, EPROTONOSUPPORT)."""


class NothingToRestore(CkptdError):
    """There is no step, or not the one that was asked for (ENOENT, from restore, tensors, unmatched, blob_read)."""


class NotSaved(CkptdError):
    """The step was skipped or torn, was never marked, or could not be written (ENOENT, EIO, ENOSPC, from wait)."""


class NotRestorable(CkptdError):
    """There are steps, and none can be restored; or memory is undefined after a restore that failed (EUCLEAN)."""


class NotFitting(CkptdError):
    """The checkpoint does not fit the declarations (EMEDIUMTYPE). The text lists every mismatch, one a line."""


class Damaged(CkptdError):
    """Bytes of the checkpoint are damaged (EBADMSG)."""


class NotMapped(CkptdError):
    """Memory that was declared is not mapped, or not writable (EFAULT, from restore)."""


class TimedOut(CkptdError, TimeoutError):
    """The time that was given ran out (ETIMEDOUT)."""


class NoRoom(CkptdError):
    """No memory here or in the daemon, no space in the store, or too many of one kind (ENOMEM, ENOSPC, E2BIG)."""


class WrongThread(CkptdError, RuntimeError):
    """Another thread is inside a call of the same handle: one thread at a time may use a handle (EDEADLK).

    From detach also: a signal's handler called it while this thread was inside a call.
    """


class Detached(CkptdError, RuntimeError):
    """The handle was detached, by this thread or by another one during the call (ESHUTDOWN)."""


class ExtraError(CkptdError):
    """The state of an extra cannot be saved, or not be restored (EINVAL). The text says what was restored and what not.

    name: the extra, as the step has it: "extra.sched". restored: None: nothing was changed. Otherwise what Run.restore
    would have returned: the tensors are those of that step, and so are the extras in `loaded`; the object `name` may
    have taken half of its state; those in `untried` are as they were.
    """

    name: str = ""
    restored: Optional[int] = None
    loaded: Tuple[str, ...] = ()
    untried: Tuple[str, ...] = ()


class LibraryMissing(CkptdError):
    """libckpt.so, ckptd or ckptctl was not found. The text lists where it was looked for (ELIBACC)."""


class Preempted(Exception):
    """The job was told to stop, and stopped after the same step on every rank.

    step: the last step. committed: whether it is committed, so that the next launch continues from it.
    """

    def __init__(self, step: int, committed: bool, text: Optional[str] = None) -> None:
        self.step = step
        self.committed = committed
        if text is None:
            how = "it is committed" if committed else "it could not be committed in the time that was left"
            text = "the job was told to stop: step %d is its last one, and %s" % (step, how)
        super().__init__(step, committed, text)

    def __str__(self) -> str:
        return str(self.args[2])


class CkptdWarning(UserWarning):
    """What a program should know, and goes on with. Those below are kinds of it."""


class StateMoved(CkptdWarning):
    """A tensor of the training state was replaced, moved, freed or resized behind the checkpoint's back."""


class ReplicasDrifted(CkptdWarning):
    """Ranks that should hold the same elements of a tensor hold different ones."""


class AveragesLeftOut(CkptdWarning):
    """Averages of the weights have left out more than 1 % of the steps: the same run may end with other averages."""


class StepsPassed(CkptdWarning):
    """Newer steps than the one that was restored are damaged, and were passed over."""


class NotSaving(CkptdWarning):
    """Training continues, and at the moment its steps are not saved."""


class UnguardedUpdate(NotSaving):
    """The state was changed outside of `with run.step`: a step is not saved, for it might have half of the change."""


class UnattachedOptimizer(NotSaving):
    """An optimizer that attach was not given updates the parameters: no step is saved until it is attached."""


_BY_CODE: Dict[int, Type[CkptdError]] = {
    _errno.EINVAL: InvalidCall,
    _errno.EOPNOTSUPP: NotSupported,
    _errno.EALREADY: AlreadyDeclared,
    _errno.ECHILD: ForkedError,
    _errno.ECONNREFUSED: NoDaemon,
    _errno.ECONNRESET: NoDaemon,
    _errno.EBUSY: AlreadyAttached,
    _errno.ESTALE: Superseded,
    _errno.EACCES: NotPermitted,
    _errno.EPERM: NotPermitted,
    _errno.EPROTO: VersionMismatch,
    _errno.EPROTONOSUPPORT: VersionMismatch,
    _errno.ETIMEDOUT: TimedOut,
    _errno.EMEDIUMTYPE: NotFitting,
    _errno.EBADMSG: Damaged,
    _errno.EUCLEAN: NotRestorable,
    _errno.EFAULT: NotMapped,
    _errno.ENOMEM: NoRoom,
    _errno.ENOSPC: NoRoom,
    _errno.E2BIG: NoRoom,
    _errno.EDEADLK: WrongThread,
    _errno.ESHUTDOWN: Detached,
    _errno.ELIBACC: LibraryMissing,
}

_BY_CALL: Dict[Tuple[str, int], Type[CkptdError]] = {
    ("wait", _errno.ENOENT): NotSaved,
    ("wait", _errno.EIO): NotSaved,
    ("wait", _errno.ENOSPC): NotSaved,
    ("restore", _errno.ENOENT): NothingToRestore,
    ("tensors", _errno.ENOENT): NothingToRestore,
    ("unmatched", _errno.ENOENT): NothingToRestore,
    ("blob_read", _errno.ENOENT): NothingToRestore,
}


def error(call: str, code: int, text: str) -> CkptdError:
    """The exception for a call ("restore") that returned `code`, a negative errno, with `text`."""
    code = abs(code)
    kind = _BY_CALL.get((call, code)) or _BY_CODE.get(code, CkptdError)
    return kind(code, text)
