"""`instep demo`: train on a few local ranks, kill one on purpose and watch the job recover; then search with torch.

    python -m instep.demo [--ranks N] [--no-kill] [--keep DIR] [--no-torch]

`__main__` starts `instep run` and plays the part of the failing machine; `train_torch` and `train_stdlib` are what the
ranks run, with torch and without; `tracking` starts a master and records the run in it; `events` is the file through
which the ranks tell `__main__` how far they are. `search` is the second act, `train_search` what its trials run.
"""
