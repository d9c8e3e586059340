"""``python -m scaffold``."""

from scaffold.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
