"""The life of loader processes: deaf to requests to stop, and over when training is.

They are forked from a server of their own, not from the training process, whose MPI, gloo and
checkpoint threads may hold locks that a fork would copy.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver, resource_tracker

from scaffold.parallel.stopping import SIGNALS


def start_loader_server() -> None:
    """Start the process that loader processes are forked from, deaf to requests to stop.

    A scheduler signals every process of a job. Loaders that obeyed at once would fail the step in which
    training itself is about to end in good order.
    """
    multiprocessing.set_forkserver_preload(["scaffold.dataset.reader"])
    # Starting the resource tracker unblocks signals, so it comes first.
    resource_tracker.ensure_running()
    # What is blocked here stays blocked in the new process and in all that it forks.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def end_with_trainer(worker: int) -> None:
    """Let this loader process end when the process that it loads for does, even by ``kill -9``.

    PyTorch watches the parent's process id, which is the fork server's; the fork server in turn waits
    for its children, so both would stay for ever, and keep a job's pipes open.

    Args:
        worker: number of the loader process; not used, but given by ``DataLoader``.
    """
    trainer = multiprocessing.parent_process()

    def wait() -> None:
        if trainer is not None:
            trainer.join()
            os._exit(0)

    threading.Thread(target=wait, name="trainer watch", daemon=True).start()
