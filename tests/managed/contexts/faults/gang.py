"""One share of a gang: says that it runs, waits to be released, and never runs twice at the same time.

The test sees and steers it through the folder WATCH: `runs` gets a line `TRIAL RANK` for every start, `hold` holds it,
`twice` appears if two processes run the same share.
"""

import fcntl
import os
import pathlib
import sys
import time

import instep

WATCH = pathlib.Path(os.environ["WATCH"])

cluster = instep.get_cluster_info()
assert cluster is not None, "it runs on a cluster only"
trial, rank = cluster.trial.trial_id, cluster.container_rank
lock = (WATCH / f"lock-{trial}-{rank}").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    (WATCH / "twice").write_text(f"{trial} {rank}\n")
    sys.exit("the share runs already")
with (WATCH / "runs").open("a") as file:
    file.write(f"{trial} {rank}\n")
while (WATCH / "hold").exists():
    time.sleep(0.05)
