"""The first stage: a script that knows nothing of the cluster."""

import logging
import sys
import time

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s: [%(process)s] %(name)s: %(message)s")

for x in range(1, 6):
    time.sleep(0.05)
    logging.info("x is now %s", x)
