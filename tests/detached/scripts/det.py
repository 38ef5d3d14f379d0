"""Runs several `det` command lines in one process, because importing the client takes longer than most of them.

Its argument is a JSON list of command lines, each a list of words; it prints a JSON list of their exit statuses and
outputs.
"""

import contextlib
import io
import json
import sys

from determined.cli.cli import main


def outcome(words: list[str]) -> dict[str, object]:
    # Some commands write bytes.
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
    status: object = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(words)
        except SystemExit as end:
            status = end.code or 0
    return {"status": status, "output": written.getvalue().decode()}


if __name__ == "__main__":
    print(json.dumps([outcome(words) for words in json.loads(sys.argv[1])]))
