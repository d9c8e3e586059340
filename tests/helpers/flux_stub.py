"""A stand-in for the command ``flux``, as far as profiles/flux uses it. Not Flux: it runs everything here.

``FLUX_STUB`` names its folder. Every command line is noted in ``calls.jsonl`` there. A job whose name is
listed in ``time-limit`` is not run but ends as one that met its limit does, once.
"""

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path


def main() -> int:
    """Do what ``flux VERB ARGUMENTS`` would."""
    folder = Path(os.environ["FLUX_STUB"])
    verb, *arguments = sys.argv[1:]
    with open(folder / "calls.jsonl", "a") as calls:
        calls.write(json.dumps([verb, *arguments]) + "\n")
    leading = takewhile(lambda text: text.startswith("--"), arguments)
    options = dict(text.removeprefix("--").partition("=")[::2] for text in leading)
    if verb == "batch":
        print(batch(folder, options, arguments[-1]))
    elif verb == "run":
        mpiexec = Path(sys.executable).with_name("mpiexec")
        return subprocess.call([mpiexec, "-n", options["ntasks"], *arguments[len(options) :]])
    elif verb == "jobs":
        outcome = folder / "jobs" / arguments[-1]
        if not outcome.exists():
            print(f"flux-jobs: ERROR: {arguments[-1]} does not exist", file=sys.stderr)
            return 1
        states = {"": "RUN ", "0": "INACTIVE COMPLETED", "limit": "INACTIVE TIMEOUT"}
        print(states.get(outcome.read_text(), "INACTIVE FAILED"))
    return 0


def batch(folder: Path, options: dict[str, str], script: str) -> str:
    """Start ``script`` in the background, whose exit code goes to the file of its job; return the job's id."""
    jobs = folder / "jobs"
    jobs.mkdir(exist_ok=True)
    job = jobs / f"ƒ{len(list(jobs.iterdir())) + 1}"
    job.touch()
    limited = folder / "time-limit"
    if limited.exists() and limited.read_text() == options["job-name"]:
        limited.unlink()
        job.write_text("limit")
    else:
        output = options["output"].replace("{{id}}", job.name)
        keep = f'"{script}" >"{output}" 2>&1; printf %s $? >"{job}"'
        null = subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", keep], stdin=null, stdout=null, stderr=null, start_new_session=True)
    return job.name


if __name__ == "__main__":
    sys.exit(main())
