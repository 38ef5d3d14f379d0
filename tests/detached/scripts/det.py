"""Runs several `det` command lines in one process, because importing the client takes longer than most of them.

Its argument is a JSON list of command lines, each a list of words; it prints a JSON list of their exit statuses and
outputs. Without an argument it reads one command line after the other, and answers each with one outcome. `TYPED` in
the environment is what somebody types who is asked for a password.
"""

import getpass
import json
import os
import sys
import tempfile
import traceback

from determined.cli.cli import main


def outcome(words: list[str]) -> dict[str, object]:
    status: object = 0
    # Some commands write bytes, or run programs that write.
    with tempfile.TemporaryFile() as written:
        kept = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            os.dup2(written.fileno(), number)
        try:
            main(words)
        except SystemExit as end:
            status = end.code or 0
        except Exception:
            traceback.print_exc()
            status = 1
        finally:
            for file in (sys.stdout, sys.stderr):
                file.flush()
            for number, own in zip((1, 2), kept, strict=True):
                os.dup2(own, number)
                os.close(own)
        written.seek(0)
        return {"status": status, "output": written.read().decode()}


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", write_through=True)  # type: ignore[union-attr]
    if typed := os.environ.get("TYPED"):
        getpass.getpass = lambda *_, **__: typed
    if len(sys.argv) > 1:
        print(json.dumps([outcome(words) for words in json.loads(sys.argv[1])]))
    else:
        # `exit()`, which some commands call, closes sys.stdin.
        for line in os.fdopen(os.dup(0)):
            print(json.dumps(outcome(json.loads(line))), flush=True)
