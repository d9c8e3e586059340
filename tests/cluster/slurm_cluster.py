"""A Slurm of several nodes on this machine, with all of it below one folder but its configuration.

Debian's Slurm can run several slurmd, each a node, on one host. Everything here is started by us and
ended by its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Where Slurm looks by itself: a job's environment loses SLURM_CONF on its way through Snakemake's plugin.
CONFIGURATION = Path("/etc/slurm")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "scancel")
GPUS = 2

_SETTINGS = """\
ClusterName=test
# MPICH names its shared memory by job and step. What a killed job of an earlier test run left
# behind would stop one of the same number in MPI_Init.
FirstJobId={first_job}
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credential of its last start has expired.
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=16817
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdPidFile={root}/%n.pid
SlurmdLogFile={root}/%n.log
SlurmdSpoolDir={root}/spool.%n
StateSaveLocation={root}/state
# No control groups: a container may have none to give.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
# A node that was lost is used again as soon as its slurmd is back.
ReturnToService=2
SlurmdTimeout=10
MinJobAge=600
KillWait=10
GresTypes=gpu
# More processors than there are: ranks that wait for each other need none to themselves.
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
"""


def why_not() -> str | None:
    """Return why no Slurm can be started here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "starting a Slurm needs root"
    if (CONFIGURATION / "slurm.conf").exists() and slurm("scontrol", "ping", check=False).returncode == 0:
        return "this machine is part of a Slurm cluster already"
    return None


def slurm(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=check)


def wait_for(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until ``condition`` holds; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


class SlurmCluster:
    """The daemons, and their nodes.

    Args:
        root: an empty folder.
        partitions: nodes of each partition; the first is the default.
        cpus: of each node.
    """

    def __init__(self, root: Path, partitions: dict[str, list[str]], cpus: int) -> None:
        self.root = root
        self.nodes = [node for nodes in partitions.values() for node in nodes]
        self._partitions = partitions
        self._cpus = cpus

    @contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """Run it inside the block; what was in Slurm's configuration folder is there again afterwards."""
        saved = self.root / "saved"
        if CONFIGURATION.exists():
            shutil.copytree(CONFIGURATION, saved, symlinks=True)
        try:
            self._start()
            yield self
        finally:
            self._stop()
            shutil.rmtree(CONFIGURATION, ignore_errors=True)
            if saved.exists():
                shutil.copytree(saved, CONFIGURATION, symlinks=True)

    def start_node(self, node: str) -> None:
        """Start the slurmd of ``node``."""
        subprocess.run(["slurmd", "-N", node, "-f", CONFIGURATION / "slurm.conf"], check=True, timeout=30)

    def kill_node(self, node: str) -> list[int]:
        """Kill all that runs on ``node`` at once, as its power supply would; return the pids."""
        tasks = {pid for pid in processes() if environment_of(pid).get("SLURMD_NODENAME") == node}
        keepers = {ancestor for pid in tasks for ancestor in ancestors(pid) if name_of(ancestor) == "slurmstepd"}
        killed = [self._pid(node), *sorted(tasks | keepers)]
        for pid in killed:
            _signal(pid, signal.SIGKILL)
        return killed

    def state_of(self, node: str) -> str:
        """Return the state of ``node`` as Slurm sees it."""
        return slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%T").stdout.split()[0]

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.root.glob("*.log")))

    def _start(self) -> None:
        self.root.chmod(0o755)
        munge = self.root / "munge"
        munge.mkdir(mode=0o711)
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        named = [f"--{option}={munge / file}" for option, file in files.items()]
        subprocess.run(["munged", "--force", *named], check=True, timeout=30)
        self._configure()
        for folder in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.root / folder).mkdir()
        subprocess.run(["slurmctld", "-c", "-f", CONFIGURATION / "slurm.conf"], check=True, timeout=30)
        for node in self.nodes:
            self.start_node(node)
        try:
            wait_for(lambda: {self.state_of(node) for node in self.nodes} == {"idle"}, "all nodes idle", 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def _configure(self) -> None:
        lines = [
            f"NodeName={node} NodeHostname=localhost Port={17001 + number} CPUs={self._cpus} RealMemory=16000"
            f" Gres=gpu:{GPUS} State=UNKNOWN"
            for number, node in enumerate(self.nodes)
        ]
        for number, (partition, nodes) in enumerate(self._partitions.items()):
            default = "YES" if number == 0 else "NO"
            lines.append(f"PartitionName={partition} Nodes={','.join(nodes)} Default={default} State=UP")
        shutil.rmtree(CONFIGURATION, ignore_errors=True)
        CONFIGURATION.mkdir(parents=True)
        settings = _SETTINGS.format(root=self.root, first_job=int(time.time()) % 60_000_000)
        (CONFIGURATION / "slurm.conf").write_text(settings + "\n".join(lines) + "\n")
        # Slurm counts these as devices; nobody opens them.
        for number in range(GPUS):
            (self.root / f"gpu{number}").touch()
        (CONFIGURATION / "gres.conf").write_text(f"Name=gpu File={self.root}/gpu[0-{GPUS - 1}]\n")

    def _pid(self, daemon: str) -> int:
        return int((self.root / f"{daemon}.pid").read_text())

    def _stop(self) -> None:
        slurm("scancel", "--user=root", check=False)
        time.sleep(1)
        for node in self.nodes:
            self.kill_node(node)
        for file in ("slurmctld.pid", "munge/pid"):
            path = self.root / file
            if path.exists():
                pid = int(path.read_text())
                _signal(pid, signal.SIGTERM)
                wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"end of {file}", 30)  # type: ignore[misc]


def processes() -> list[int]:
    """Return the pids of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def environment_of(pid: int) -> dict[str, str]:
    """Return what a process was started with; empty if it has ended."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in content.split("\0") if entry)


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent of a process, and its parent, and so on, as far as they live."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid


def _signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
