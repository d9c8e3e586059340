"""How a script ends: by a line for a mistake of the user, as the verbs do, and never before what it has started."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from scaffold.errors import ScaffoldError


def run(main: Callable[[], None]) -> None:
    """Run ``main``; after a mistake of the user's, end the process with its exit code, as the verbs do."""
    # Leaves by an exception, so that `subprocess.run` kills what it waits for, which would go on alone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main()
    except ScaffoldError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
