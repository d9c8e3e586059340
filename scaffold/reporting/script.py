"""What the workflow's plotting scripts share: their log file, and errors without a traceback.

Snakemake runs a ``script:`` in a process of its own but does not direct its output to the rule's log.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scaffold.errors import ScaffoldError


@contextmanager
def logged(log: Sequence[str]) -> Iterator[None]:
    """Send log lines and the exception of the block to the rule's log; end the job with its exit code.

    Args:
        log: ``snakemake.log``; with no file declared, standard error takes its place.

    Raises:
        SystemExit: with the code of a :class:`ScaffoldError`; any other exception goes on as it is.
    """
    handler = logging.FileHandler(Path(log[0]), mode="w", encoding="utf-8") if log else logging.StreamHandler()
    logger = logging.getLogger("scaffold")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    except ScaffoldError as error:
        logger.error("%s", error)
        print(error, file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
    except Exception:
        logger.error("%s", traceback.format_exc())
        raise
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
