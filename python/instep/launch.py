"""`python -m instep.launch`: the older spelling, for scripts written for `python -m torch.distributed.launch`.

Without `--use-env`, each worker also receives `--local-rank=N` as its first argument. New scripts should use
`instep.run` and read the LOCAL_RANK environment variable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from instep import _binary


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Launch workers as `instep launch ARGS` does and exit with its status. Without `args`, take the command line's."""
    arguments = sys.argv[1:] if args is None else args
    _binary.execute(["launch", *_binary.python_option(), *arguments])


if __name__ == "__main__":
    main()
