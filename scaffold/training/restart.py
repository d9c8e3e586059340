"""``restart.sh``: a training's own way to go on, without Snakemake.

It lies in the work folder, with the settings that the training ran with (``config.yaml``), and starts
the same shape again: launcher, nodes, ranks. A scheduler copies a submitted script elsewhere, so it
names everything by its full path.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scaffold import atomic
from scaffold.config import Job
from scaffold.kernels import switches
from scaffold.parallel import environment, mpi
from scaffold.parallel.devices import HIDING
from scaffold.parallel.launch import Context
from scaffold.training import graph
from scaffold.training.workdir import SEALED
from scaffold.wording import count

SCRIPT, SETTINGS = "restart.sh", "config.yaml"

SWITCHES = (*switches.KERNELS, graph.SWITCH)
"""Variables that turn a training's fast paths on and off."""

KEPT = (
    "PYTHONPATH", "OMP_NUM_THREADS", "SCAFFOLD_TIMEOUT", "PROFILE_TORCH", "PROFILE_TORCH_WAIT", "PROFILE_TORCH_WARMUP",
    "PROFILE_TORCH_ACTIVE", "PROFILE_TORCH_RECORD_SHAPES", "PROFILE_TORCH_WITH_STACK", *SWITCHES,
)  # fmt: skip
"""Variables that change what a training does, set again where they were set, be it to nothing."""

_TOLD_BY_SLURM = {
    "mem": ("SLURM_MEM_PER_NODE", "MinMemoryNode"),
    "mem-per-cpu": ("SLURM_MEM_PER_CPU", "MinMemoryCPU"),
    "gres": ("", "TresPerNode"),
    "constraint": ("SLURM_JOB_CONSTRAINTS", "Features"),
    "partition": ("SLURM_JOB_PARTITION", "Partition"),
    "account": ("SLURM_JOB_ACCOUNT", "Account"),
    "qos": ("SLURM_JOB_QOS", "QOS"),
}
"""For options of sbatch: the job's variable, and what ``scontrol show job`` calls it."""

_UNSET = ("", "(null)", "N/A")

_ANSWER_WITHIN_S = 10.0

log = logging.getLogger("scaffold")


@dataclass(frozen=True)
class Command:
    """What a training was started with.

    Attributes:
        meta: ``meta.yaml`` of the data set.
        output: where results go.
        launcher: prefix of the command ("srun -n 4"), empty for none; None if it is not known, then guessed.
        minutes: ``--minutes``, or None.
    """

    meta: Path
    output: Path
    launcher: str | None = None
    minutes: float | None = None


def write(folder: Path, context: Context, job: Job, command: Command) -> Path:
    """Write ``restart.sh`` and the settings that it names into the work folder ``folder``; return its path.

    Raises:
        WriteError: the file system refused.
    """
    settings, path = folder.absolute() / SETTINGS, folder / SCRIPT
    atomic.write_yaml(settings, job.resolved())
    launcher = _guessed(context) if command.launcher is None else command.launcher
    with atomic.write(path, "w") as file:
        file.write(script(context, job, command, settings, launcher, os.environ, described_by_slurm(os.environ)))
        os.fchmod(file.fileno(), 0o755)
    return path


def script(
    context: Context,
    job: Job,
    command: Command,
    settings: Path,
    launcher: str,
    variables: environment.Environment,
    described: str = "",
) -> str:
    """Return the text of ``restart.sh``.

    Args:
        context: the training's world, whose shape is kept.
        job: what it trains.
        command: what it was started with.
        settings: study file of the job alone, as a full path.
        launcher: prefix of the command, as a shell would read it.
        variables: the environment, of which those that matter are kept.
        described: what :func:`described_by_slurm` returned.
    """
    nodes, output = _nodes(context, variables), command.output.absolute()
    complete = (settings.parent / SEALED, output / "result.json")
    arguments = {
        "config": settings,
        "run": job.run,
        "seed": job.seed,
        "ranks": job.ranks,
        "threads": context.threads,
        "data": command.meta.absolute(),
        "output": output,
        "launcher": launcher,
    }
    if command.minutes is not None:
        arguments["minutes"] = f"{command.minutes:g}"
    kept = [name for name in KEPT if name in variables]
    kept += [name for name in HIDING if name in variables and not variables[name].strip()]
    program = {"mpi": "python -m mpi4py -m scaffold", "torchrun": "-m scaffold --"}.get(
        context.launcher, "python -m scaffold"
    )
    lines = [
        "#!/usr/bin/env bash",
        *_directives(context, command.minutes, variables, described),
        f"# Continues the training of {job.run} (ranks {job.ranks}, seed {job.seed}) as it was last started, with",
        f"# {count(job.ranks, 'rank')} on {count(nodes, 'host')}, and publishes its result. Run it in an allocation",
        "# of that size, or submit it: sbatch and flux batch read the lines above. Further arguments go to scaffold",
        "# train. Exit code 75: stopped with everything saved, run it again.",
        "set -euo pipefail",
        f"if {' && '.join(f'[ -e {shlex.quote(str(file))} ]' for file in complete)}; then",
        f"    echo {shlex.quote(f'{output}: this training is complete; there is nothing to continue')}",
        "    exit 0",
        "fi",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        *(f"export {name}={shlex.quote(variables[name])}" for name in kept),
        " ".join(part for part in ("exec", launcher, program, "train \\") if part),
        *(f"    --{name} {shlex.quote(str(value))} \\" for name, value in arguments.items()),
        '    "$@"',
    ]
    return "\n".join(lines) + "\n"


def described_by_slurm(variables: environment.Environment) -> str:
    """Return what ``scontrol show job`` says of the present job, empty where there is none or no answer.

    A job that Snakemake submitted has lost its variables, all but its id, on the way to the training.
    """
    job = variables.get("SLURM_JOB_ID", "").strip()
    if not job:
        return ""
    try:
        return subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=True,
        ).stdout  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("restart.sh may lack memory and account of job %s, which scontrol did not tell: %s", job, error)
        return ""


def _directives(
    context: Context, minutes: float | None, variables: environment.Environment, described: str
) -> list[str]:
    """Return what tells Slurm and Flux how much the job needs, which to bash are comments.

    What a site alone knows (memory, partition, account, kind of GPU) is the present job's, where Slurm tells it.
    """
    nodes, gpus = _nodes(context, variables), int(context.device.type == "cuda")
    slurm: dict[str, object] = {"nodes": nodes, "ntasks": context.size, "cpus-per-task": context.threads}
    flux: dict[str, object] = {"nodes": nodes, "nslots": context.size, "cores-per-slot": context.threads}
    if minutes is not None:
        whole = math.ceil(minutes)
        slurm["time"], flux["time-limit"] = whole, f"{whole}m"
    evenly, rest = divmod(context.size, nodes)
    if rest == 0:
        # Slurm fills one node after another with tasks, and with their GPUs, unless it is told otherwise.
        slurm["ntasks-per-node"] = evenly
    told = _told_by_slurm(variables, described)
    if gpus:
        if "gres" not in told:
            slurm |= {"gres": f"gpu:{evenly * gpus}"} if rest == 0 else {"gpus-per-task": gpus}
        flux["gpus-per-slot"] = gpus
    slurm |= told
    return [
        *(f"#SBATCH --{name}={value}" for name, value in slurm.items()),
        *(f"# flux: --{name}={value}" for name, value in flux.items()),
    ]


def _told_by_slurm(variables: environment.Environment, described: str) -> dict[str, str]:
    """Return the options of sbatch that make a job like the present one, of what Slurm says of it."""
    options = {}
    for option, (variable, field) in _TOLD_BY_SLURM.items():
        found = re.search(rf"\s{field}=(\S+)", described)
        # Never of both: the variables of a step may have a job's memory in other terms, which sbatch refuses together.
        value = (found[1] if found else "") if described else variables.get(variable, "")
        if value not in _UNSET:
            options[option] = re.sub(r"\bgres[:/]", "", value) if option == "gres" else value
    return options


def _nodes(context: Context, variables: environment.Environment) -> int:
    """Return the number of nodes; Slurm may run several on one host, and knows better."""
    told = variables.get("SLURM_NNODES", "")
    return int(told) if told.isdecimal() and 0 < int(told) <= context.size else len(set(context.hosts))


def _guessed(context: Context) -> str:
    """Return the launcher that most likely starts such a training, started by hand, again."""
    nodes = len(set(context.hosts))
    if context.launcher == "single":
        return ""
    if context.launcher == "torchrun":
        # The hosts would have to be told where they meet, which only they know.
        return f"torchrun --nproc-per-node {context.local_size} --nnodes {nodes}"
    return mpi.launcher(context.size, nodes)
