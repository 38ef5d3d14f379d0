"""`instep demo`: train on a few local ranks, kill one on purpose and watch the job recover.

    python -m instep.demo [--ranks N] [--no-kill] [--keep DIR] [--no-torch]

`__main__` starts `instep run` and plays the part of the failing machine; `train_torch` and `train_stdlib` are what the
ranks run, with torch and without; `tracking` records the run in a master; `events` is the file through which the ranks
tell `__main__` how far they are.
"""
