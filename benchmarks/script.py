"""How a script ends: a mistake of the user is told in one line, as by the verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from scaffold.errors import ScaffoldError


def run(main: Callable[[], None]) -> None:
    """Run ``main``; after a mistake of the user's, end the process with its exit code, as the verbs do."""
    try:
        main()
    except ScaffoldError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
