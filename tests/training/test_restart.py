"""``restart.sh``: what it starts, whatever the words it was made from."""

import shlex
import subprocess

import pytest
import torch
from training_jobs import study

from scaffold.config import Job
from scaffold.kernels import switches
from scaffold.parallel import devices
from scaffold.parallel.launch import Context
from scaffold.training import graph, restart
from scaffold.training.restart import Command
from scaffold.training.workdir import SEALED

AWKWARD = "a b'c\"$HOME;`x`\\"


@pytest.fixture
def job(tmp_path):
    """A training on four ranks."""
    spec = study(tmp_path / "study.yaml").run("tiny")
    return Job("tiny", spec.config, 4, 5, spec.resources)


def world(launcher="mpi", hosts=("a", "a", "b", "b")):
    context = Context(launcher)
    context.size, context.hosts, context.local_size = len(hosts), list(hosts), hosts.count("a")
    return context


def forget(monkeypatch):
    """Remove from the environment what the script would keep of it."""
    for name in restart.KEPT + devices.HIDING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    """The machine of the tests may itself be a job."""
    for name in ("SLURM_JOB_ID", "SLURM_NNODES", *(name for name, _ in restart._TOLD_BY_SLURM.values())):
        monkeypatch.delenv(name, raising=False)


def scontrol(folder, monkeypatch, says):
    """Put a ``scontrol`` on PATH that answers ``says``, and fails for another job than 7."""
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\n[ "$*" = "--oneliner show job 7" ] && echo {shlex.quote(says)}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def asked_of_slurm(script):
    """Return the options of sbatch in the script's head, which ends at its first command."""
    head = script.read_text().partition("\nset ")[0].splitlines()
    return [line.removeprefix("#SBATCH ") for line in head if line.startswith("#SBATCH ")]


def started(script, tmp_path):
    """Return the words that the script gives to its launcher, the program ``launch`` in its folder."""
    subprocess.run(["bash", "-n", script], check=True)
    launch = tmp_path / "launch"
    launch.write_text('#!/bin/bash\nprintf "%s\\0" "$PWD" "${PROFILE_TORCH-unset}" "${PYTHONPATH-unset}" "$@"\n')
    launch.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([script, "--minutes", "7"], cwd="/", env=environment, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_every_word_arrives_as_it_was(job, tmp_path, monkeypatch):
    """Hazard 59: a path with a blank or a quote in it, or a launcher with an option that is quoted."""
    folder = tmp_path / AWKWARD
    folder.mkdir()
    monkeypatch.chdir(folder)
    forget(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", AWKWARD)
    launcher = f"{tmp_path}/launch -x 'two words'"
    script = restart.write(folder, world(), job, Command(folder / "meta.yaml", folder / "out", launcher, 0.5))
    where, profiled, path, *words = started(script, tmp_path)

    assert (where, profiled, path) == (str(folder), "unset", AWKWARD)
    assert words[:8] == ["-x", "two words", "python", "-m", "mpi4py", "-m", "scaffold", "train"]
    options = dict(zip(words[8::2], words[9::2], strict=True))
    assert options == {
        "--config": str(folder / "config.yaml"), "--run": "tiny", "--seed": "5", "--ranks": "4",
        "--threads": str(world().threads), "--data": str(folder / "meta.yaml"), "--output": str(folder / "out"),
        "--launcher": launcher, "--minutes": "7",
    }  # fmt: skip
    assert words[-4:] == ["--minutes", "0.5", "--minutes", "7"], "what is added on the command line wins"


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        *(({name: "0"}, {name: "0"}) for name in (*switches.KERNELS, graph.SWITCH, "SCAFFOLD_TIMEOUT")),
        ({"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": ""}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"CUDA_VISIBLE_DEVICES": "3"}, {}),
    ],
    ids=str,
)
def test_what_was_set_is_set_again(job, tmp_path, monkeypatch, variables, kept):
    """The restarted training would run on other kernels, or on a GPU that was hidden; or take another job's GPU."""
    forget(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = restart.write(tmp_path, world(), job, Command(tmp_path / "meta.yaml", tmp_path, f"{tmp_path}/show"))
    show = tmp_path / "show"
    show.write_text("#!/bin/bash\nenv -0\n")
    show.chmod(0o755)
    done = subprocess.run([script], env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.decode().split("\0")[:-1])
    assert {name: found[name] for name in restart.KEPT + devices.HIDING if name in found} == kept


@pytest.mark.parametrize(
    ("context", "variables", "command"),
    [
        (world("single", ["a"]), {}, "exec python -m scaffold train"),
        (world(), {}, "exec mpiexec -n 4 python -m mpi4py -m scaffold train"),
        (world(), {"SLURM_JOB_ID": "7"}, "exec srun --nodes 2 --ntasks 4 python -m mpi4py -m scaffold train"),
        (world(), {"FLUX_URI": "local:///x"}, "exec flux run --nodes 2 --ntasks 4 python -m mpi4py -m scaffold train"),
        (world("torchrun", ["a"] * 4), {}, "exec torchrun --nproc-per-node 4 --nnodes 1 -m scaffold -- train"),
    ],
)
def test_the_launcher_of_a_training_started_by_hand_is_guessed(job, tmp_path, monkeypatch, context, variables, command):
    """Without the workflow nobody says what the launcher was."""
    for name in ("SLURM_JOB_ID", "FLUX_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = restart.write(tmp_path, context, job, Command(tmp_path / "meta.yaml", tmp_path)).read_text()
    assert f"\n{command} \\\n" in script


def test_a_scheduler_reads_the_shape(job, tmp_path, monkeypatch):
    """Submitted as it is, the script must get what the training had; the lines end at the first command."""
    for name, value in {"SLURM_MEM_PER_NODE": "4501", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": ""}.items():
        monkeypatch.setenv(name, value)
    context = world()
    context.threads, context.device = 3, torch.device("cuda", 0)
    path = restart.write(tmp_path, context, job, Command(tmp_path / "meta.yaml", tmp_path, minutes=89.5))
    head = path.read_text().partition("\nset ")[0].splitlines()
    assert asked_of_slurm(path) == [
        "--nodes=2", "--ntasks=4", "--cpus-per-task=3", "--time=90", "--ntasks-per-node=2", "--gres=gpu:2",
        "--mem=4501", "--partition=gpu",
    ]  # fmt: skip
    assert [line.removeprefix("# flux: ") for line in head if line.startswith("# flux: ")] == [
        "--nodes=2", "--nslots=4", "--cores-per-slot=3", "--time-limit=90m", "--gpus-per-slot=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("says", "asked"),
    [
        (
            "JobId=7 JobName=x Account=ab12 QOS=(null) Partition=gpu MinCPUsNode=2 MinMemoryNode=300M Features=(null)"
            " TresPerNode=gres:gpu:a100:2 ",
            ["--gres=gpu:a100:2", "--mem=300M", "--partition=gpu", "--account=ab12"],
        ),
        (
            "JobId=7 JobName=x Account=(null) QOS=long Partition=gpu MinMemoryCPU=100M Features=a100&nvme"
            " TresPerNode=gres/gpu:2,gres/shard:1",
            ["--gres=gpu:2,shard:1", "--mem-per-cpu=100M", "--constraint=a100&nvme", "--partition=gpu", "--qos=long"],
        ),
    ],
)
def test_slurm_is_asked_for_what_the_workflow_strips(job, tmp_path, monkeypatch, says, asked):
    """Hazard 59: of a job's variables its id alone reaches a training; submitted without its memory it is killed."""
    scontrol(tmp_path, monkeypatch, says)
    context = world()
    context.device = torch.device("cuda", 0)
    arguments = tmp_path, context, job, Command(tmp_path / "meta.yaml", tmp_path)
    shape = ["--nodes=2", "--ntasks=4", f"--cpus-per-task={context.threads}", "--ntasks-per-node=2"]
    assert asked_of_slurm(restart.write(*arguments)) == [*shape, "--gres=gpu:2"], "control: not in a job"

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    # A step's terms beside the job's own would be refused: --mem and --mem-per-cpu.
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "150")
    assert sorted(asked_of_slurm(restart.write(*arguments))) == sorted([*shape, *asked])


def test_gpus_of_a_kind_are_asked_for_once_where_ranks_are_uneven(job, tmp_path, monkeypatch):
    """Two options that say differently how many GPUs: which one counts is up to the version of Slurm."""
    scontrol(tmp_path, monkeypatch, "JobId=7 Partition=gpu TresPerNode=gres/gpu:a100:2")
    context = world(hosts=["a", "a", "b"])
    context.device = torch.device("cuda", 0)
    arguments = tmp_path, context, job, Command(tmp_path / "meta.yaml", tmp_path)
    asked = asked_of_slurm(restart.write(*arguments))
    assert "--gpus-per-task=1" in asked, "control: not in a job"
    assert not [option for option in asked if "ntasks-per-node" in option], "three ranks are not one on each of two"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert [option for option in asked_of_slurm(restart.write(*arguments)) if "gpu" in option] == [
        "--gres=gpu:a100:2", "--partition=gpu",
    ]  # fmt: skip


@pytest.mark.parametrize("job_id", ["8", ""])
def test_slurm_may_give_no_answer(job, tmp_path, monkeypatch, caplog, job_id):
    """A node without scontrol, or a controller that is down, must not end the training; its variables then count."""
    scontrol(tmp_path, monkeypatch, "Partition=other")
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    script = restart.write(tmp_path, world(), job, Command(tmp_path / "meta.yaml", tmp_path))
    assert asked_of_slurm(script)[-1] == "--partition=gpu"
    assert ("which scontrol did not tell" in caplog.text) == bool(job_id)


def test_nodes_are_those_that_slurm_tells(job, tmp_path, monkeypatch):
    """Two nodes on one host would come back as one, which is not enough for the launcher's --nodes=2."""
    monkeypatch.setenv("SLURM_NNODES", "2")
    context = world(hosts=["a"] * 4)
    script = restart.write(tmp_path, context, job, Command(tmp_path / "meta.yaml", tmp_path)).read_text()
    assert "#SBATCH --nodes=2\n" in script
    monkeypatch.setenv("SLURM_NNODES", "many")
    assert "#SBATCH --nodes=1\n" in restart.write(tmp_path, context, job, Command(tmp_path, tmp_path)).read_text()


def test_a_complete_training_is_left_alone(job, tmp_path):
    """A script still in the queue would train a published result once more, and replace it."""
    output, show = tmp_path / "out put", tmp_path / "show"
    output.mkdir()
    show.write_text("#!/bin/bash\necho started\n")
    show.chmod(0o755)
    script = restart.write(tmp_path, world(), job, Command(tmp_path / "meta.yaml", output, str(show)))

    def run():
        return subprocess.run([script], capture_output=True, text=True, check=True).stdout

    (output / "result.json").touch()
    assert run() == "started\n", "published, but not known to be complete: it publishes again"
    (tmp_path / SEALED).touch()
    assert "is complete" in run()
    (output / "result.json").unlink()
    assert run() == "started\n"
