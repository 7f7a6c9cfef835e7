# SPDX-License-Identifier: Apache-2.0
"""`python -m ckptd VERB ...` is ckptctl, `python -m ckptd daemon ...` is ckptd, `python -m ckptd view` writes a view.

The console scripts ckptctl and ckptd of the wheel begin here, too. The programs replace this process, so their exit
status, signals and terminal are their own. torch is not imported.
"""

from __future__ import annotations

import os
import sys
from typing import List, NoReturn

from . import _find, errors


def _become(name: str, arguments: List[str]) -> NoReturn:
    try:
        path = _find.program(name)
        sys.stdout.flush()
        os.execv(path, [name] + arguments)
    except (errors.CkptdError, OSError) as e:
        raise SystemExit("%s: %s" % (name, e)) from None


def ckptctl() -> NoReturn:
    """The console script ckptctl."""
    _become("ckptctl", sys.argv[1:])


def daemon() -> NoReturn:
    """The console script ckptd."""
    _become("ckptd", sys.argv[1:])


def main() -> None:
    """python -m ckptd"""
    verb, rest = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if verb == "daemon":
        _become("ckptd", rest)
    if verb == "view":
        from . import _view

        raise SystemExit(_view.view_main(rest))
    _become("ckptctl", sys.argv[1:])


if __name__ == "__main__":
    main()
