"""Runs ``scaffold check-launch`` with a rank that hangs: HANG="WHERE RANK".

* ``start``: before MPI is started;
* ``roll-call``: once it is;
* ``sum``: in its first all-reduce.

The others judge after a second that it does not answer.
"""

import os
import sys
import time

from scaffold.cli import main
from scaffold.parallel import environment, mpi, probe

where, rank = os.environ["HANG"].split()


def hang(*arguments, **options):
    time.sleep(1000)


probe._VERDICT_S = 1.0
if int(rank) == environment.world_rank():
    if where == "start":
        hang()
    elif where == "roll-call":
        mpi.roll_call = hang
    else:
        probe.dist.all_reduce = hang

if __name__ == "__main__":
    sys.exit(main())
