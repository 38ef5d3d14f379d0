"""`python -m instep.run`: starts training scripts, with the same options as `python -m torch.distributed.run`.

The launcher itself is the native binary; workers run under the interpreter that runs this module, unless PYTHON_EXEC
names another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from instep import _binary


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Launch workers as `instep run ARGS` does and exit with its status. Without `args`, take the command line's."""
    arguments = sys.argv[1:] if args is None else args
    _binary.execute(["run", *_binary.python_option(), *arguments])


if __name__ == "__main__":
    main()
