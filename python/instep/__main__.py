"""`python -m instep`: the `instep` command, found through this interpreter instead of PATH."""

from __future__ import annotations

import sys

from instep import _binary

if __name__ == "__main__":
    _binary.execute(sys.argv[1:])
