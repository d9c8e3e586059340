"""From a study file to the plan of jobs, and what is said where that cannot be."""

import re
import shutil

import pytest
from pipeline_workspace import ROOT, STUDY, Workspace

from scaffold.config import Study, dataset_name
from scaffold.study_files import write_resolved

pytestmark = pytest.mark.pipeline


@pytest.mark.parametrize("name", ["config", "scale7", "scale8", "llnl_scale11"])
def test_shipped_studies_plan(fresh: Workspace, name: str) -> None:
    """A study that we ship and that does not plan fails on a cluster, after the wait in its queue."""
    study = Study.load(ROOT / "config" / f"{name}.yaml")
    plan = fresh.plan("--configfile", str(ROOT / "config" / f"{name}.yaml"))

    assert plan["train"] == len(study.jobs())
    assert plan["render_part"] == next(iter(study.runs.values())).config.n_parts
    assert plan.keys() >= {"search_categories", "generate_instances", "publish_dataset", "fom", "plot_run", "summary"}


def test_runs_share_what_they_have_in_common(fresh: Workspace) -> None:
    """Runs that differ in the training alone must not search and render twice."""
    runs = {"narrow": {}, "wide": {"unet_base_channels": 4}, "labels": {"storage": {"image": "labels"}}}
    fresh.write_study({**STUDY, "runs": runs})
    plan = fresh.plan()
    assert plan["train"] == 3
    assert (plan["search_categories"], plan["generate_instances"]) == (1, 2)
    assert (plan["render_part"], plan["render_part_labels"], plan["publish_dataset"]) == (1, 1, 2)


def test_wrong_study_creates_nothing(fresh: Workspace) -> None:
    """Hazard 57: every mistake is told at once, an unknown key among them, before anything is made."""
    fresh.change(problem_scale=3, seeed=4)
    done = fresh.snakemake()

    assert done.returncode == 1
    assert "config/config.yaml: 2 problems" in done.stdout
    assert "defaults.problem_scale = 3: must be greater than or equal to 4" in done.stdout
    assert "defaults.seeed: unknown key; did you mean seed?" in done.stdout
    assert "Traceback" not in done.stdout
    assert "File " not in done.stdout
    assert {path.name for path in fresh.folder.iterdir()} <= {"config", ".snakemake"}


def test_merging_two_studies_is_refused(fresh: Workspace) -> None:
    """Without a profile Snakemake merges --configfile into the default study: runs that nobody asked for."""
    other = fresh.folder / "other.yaml"
    shutil.copy(ROOT / "config" / "scale7.yaml", other)
    done = fresh.snakemake("--cores", "1", "--dry-run", "--configfile", str(other), profile=None)
    assert done.returncode == 1
    assert "--configfile other.yaml would be merged with config/config.yaml" in done.stdout


def test_other_study_replaces_the_default(fresh: Workspace) -> None:
    """The other half: with a profile the same command plans the other study alone."""
    output = fresh.make("--dry-run", "--configfile", str(ROOT / "config" / "scale7.yaml"))
    assert "results/runs/scale7/" in output
    assert "results/runs/small/" not in output


def test_keys_of_the_command_line(fresh: Workspace) -> None:
    """The command of the user guide: what Snakemake makes of the text must still be the study's types."""
    study = Study.load(fresh.folder / "config/config.yaml", ["seed=7", "n_fracts_per_vol=1"])
    output = fresh.make("--dry-run", "--config", "defaults={seed: 7, n_fracts_per_vol: 1}")
    assert f"results/datasets/{dataset_name(study.runs['small'].config)}/meta.yaml" in output


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (
            "runs/small/ranks3/seed1/result.json",
            "trains small with ranks [1, 2] and seeds [1], not with ranks 3 and seed 1",
        ),
        ("runs/smal/ranks1/fom.json", "has no run smal; did you mean small?"),
        ("datasets/scale4-n8-dense-0123/meta.yaml", "has no data set scale4-n8-dense-0123"),
    ],
)
def test_a_target_that_the_study_lacks_is_said(fresh: Workspace, target: str, told: str) -> None:
    """A target outside the study must not make something unchecked, nor end in a KeyError."""
    done = fresh.snakemake("--dry-run", f"results/{target}")
    assert done.returncode == 1
    assert told in done.stdout


def test_training_has_the_machine_to_itself(fresh: Workspace) -> None:
    """A measured job beside another one measures the other one: locally a training takes all cores."""
    output = fresh.make("--dry-run", "--cores", "7", "results/runs/small/ranks1/seed1/result.json")
    train = output.partition("rule train:")[2].partition("\n\n")[0]
    assert "threads: 7" in train
    assert "--threads 1 " in train


def test_launcher_is_the_profiles(fresh: Workspace) -> None:
    """A site's launcher takes the place of mpiexec by a profile alone, for trainings and for data."""
    fresh.change(run={"resources": {"ranks_per_node": 1, "threads": 3}})
    profile = fresh.folder / "site"
    profile.mkdir()
    (profile / "profile.yaml").write_text(
        "cores: 1\nset-resources:\n"
        "  train: {launcher: 'srun --nodes={nodes} --ntasks={tasks} --cpus-per-task={cpus_per_task}'}\n"
        "  render_part: {tasks: 4, launcher: aprun -n 4}\n"
    )
    command = ["--dry-run", "--printshellcmds", "--profile", str(profile), "--cores", "1"]
    output = fresh.snakemake(*command, profile=None).stdout
    assert "-- srun --nodes=2 --ntasks=2 --cpus-per-task=3 python -m mpi4py -m scaffold train" in output
    assert "ranks1.seed1.log --  python -m mpi4py -m scaffold train" in output, "one process needs no launcher"
    assert "--launcher='srun --nodes=2 --ntasks=2 --cpus-per-task=3'" in output, "restart.sh starts the same"
    assert "-- aprun -n 4 python -m mpi4py -m scaffold render" in output
    assert "parts/0000 --ranks 4" in output
    assert "-- mpiexec" not in output
    (memory,) = re.findall(r"tasks=4, .*mem_mb=(\d+)", output)
    # Four interpreters and their clouds; a single one asks for some 530 MB.
    assert int(memory) > 2000


def test_launcher_with_an_unknown_number_is_said(fresh: Workspace) -> None:
    """A misspelt number, left as it is, would be an argument of the launcher's."""
    (fresh.folder / "profile.yaml").write_text("cores: 1\nset-resources: {train: {launcher: 'srun -n {ranks}'}}\n")
    done = fresh.snakemake("--dry-run", "--profile", str(fresh.folder), profile=None)
    assert done.returncode == 1
    assert "the profile's launcher 'srun -n {ranks}' can have {tasks}, {nodes}," in done.stdout


def test_submitted_job_reads_the_resolved_study(fresh: Workspace) -> None:
    """Snakemake hands a submitted job the config files without --replace-workflow-config."""
    study = Study.load(fresh.folder / "config/config.yaml", ["seed=77"])
    write_resolved(study, fresh.results)
    submitted = ["--mode", "remote", "--no-hooks", "--cores", "1", "--dry-run", "--printshellcmds"]
    done = fresh.snakemake(*submitted, "--configfiles", str(ROOT / "config" / "scale7.yaml"), profile=None)
    assert done.returncode == 0, done.stdout
    assert f"--dataset {dataset_name(study.runs['small'].config)} " in done.stdout
    assert "scale7" not in done.stdout.partition("Job stats")[2]
