import gc
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.jobs import Job as SnakemakeJob
from snakemake.settings.types import RerunTrigger
from snakemake_interface_executor_plugins.settings import ExecMode

import scaffold
from scaffold import attempt, study_files
from scaffold.config import Job, Study, dataset_name, library_name
from scaffold.config import stage_version, training_identity
from scaffold.config.problems import nearest
from scaffold.dataset.memory import memory_of_ranks
from scaffold.errors import ExitCode, ScaffoldError, UserError
from scaffold.results_lock import ResultsLock

PACKAGE = Path(scaffold.__file__).parent
RESULTS = Path("results")
RESULTS_LOCK = ResultsLock(RESULTS)

study_files.activate_environment()

# A plan is thousands of objects that all live to its end. Searching them for
# garbage, again and again as they become more, takes a sixth of the time.
gc.disable()


def read_study() -> Study:
    """Return the study of this run.

    A submitted job reads what the main process has resolved: Snakemake passes
    it the config files but not --replace-workflow-config.
    """
    if workflow.exec_mode != ExecMode.DEFAULT:
        return Study.load(study_files.resolved_path(RESULTS))
    return study_files.read_study(
        default="config/config.yaml",
        command_line_files=workflow.overwrite_configfiles,
        command_line_keys=workflow.config_settings.config,
        replaced=workflow.config_settings.replace_workflow_config,
    )


try:
    STUDY = read_study()
except ScaffoldError as error:
    # The message alone: a WorkflowError would add lines of this file to it.
    sys.exit(str(error))


JOBS = {(job.run, str(job.ranks), str(job.seed)): job for job in STUDY.jobs()}
LIBRARIES = {library_name(run.config): run.config for run in STUDY.runs.values()}
DATASETS = {dataset_name(run.config): run.config for run in STUDY.runs.values()}


# Patterns, not the names themselves: hundreds of alternatives in each rule take
# a tenth of the planning time. `known` refuses what the study does not have.
wildcard_constraints:
    library="scale[0-9]+-c[0-9]+-[0-9a-f]+",
    dataset="scale[0-9]+-n[0-9]+-(?:dense|labels)-[0-9a-f]+",
    run="[a-z][a-z0-9_]*",
    category="[0-9]+",
    part="[0-9]{4}[0-9]*",
    ranks="[1-9][0-9]*",
    seed="[0-9]+",


def refuse_to_retrain() -> None:
    """Refuse triggers that take the input which a finished training has dropped for a change."""
    if RerunTrigger.INPUT in workflow.rerun_triggers and any(
        study_files.is_trained(RESULTS, job) for job in STUDY.jobs()
    ):
        raise UserError(
            "finished trainings would be trained again: put `rerun-triggers: [mtime, params]` into the profile,"
            " as in profiles/local, or add --rerun-triggers mtime params"
        )


onstart:
    gc.enable()
    try:
        RESULTS_LOCK.acquire()
        refuse_to_retrain()
        study_files.write_resolved(STUDY, RESULTS)
    except ScaffoldError as error:
        sys.exit(str(error))


onsuccess:
    study_files.seal_finished(STUDY, RESULTS)


onerror:
    study_files.seal_finished(STUDY, RESULTS)


def known(kind: str, name: str, of_study: dict):
    """Return what the study has under a name that a target gives."""
    if name not in of_study:
        raise WorkflowError(
            f"the study {STUDY.source} has no {kind} {name}{nearest(name, of_study)}"
        )
    return of_study[name]


def retries(job: SnakemakeJob) -> int:
    """Return the profile's number of retries, or 0 after an end that no retry can cure.

    Snakemake would submit such a job again and again, each time to wait in the
    queue and end at once, before it tells anyone.
    """
    incurable = (ExitCode.USER_ERROR, ExitCode.INCURABLE)
    if any(attempt.exit_code(Path(log)) in incurable for log in job.log):
        return 0
    return job.rule.restart_times


# Snakemake has no setting for this. Should a later version not ask here, a job
# that cannot be cured is retried in vain, which costs time alone.
SnakemakeJob.restart_times = property(retries)


def render_mem_mb(wildcards, rulename) -> int:
    """Return the memory of rendering a part, by as many tasks as the profile gives the rule."""
    tasks = workflow.get_rule(rulename).resources["tasks"].value
    return -(
        -memory_of_ranks(known("data set", wildcards.dataset, DATASETS), tasks) // 10**6
    )


def instance_files(library: str) -> list[str]:
    """Return the instance files of all categories of a library."""
    return collect(
        "results/fractals/{library}/instances/{category}.npy",
        library=library,
        category=range(known("library", library, LIBRARIES).n_categories),
    )


def instances_of_library(wildcards) -> list[str]:
    """Return the instance files of all categories of a library."""
    return instance_files(wildcards.library)


def instances_of_dataset(wildcards) -> list[str]:
    """Return the instance files that a data set is made of."""
    return instance_files(library_name(known("data set", wildcards.dataset, DATASETS)))


def parts_of_dataset(wildcards) -> list[str]:
    """Return every file of every part of a data set."""
    return part_files(wildcards.dataset)


def part_files(dataset: str) -> list[str]:
    """Return every file of every part of a data set."""
    config = known("data set", dataset, DATASETS)
    images = ["images.npy"] if config.storage.image == "dense" else []
    return collect(
        "results/datasets/{dataset}/parts/{part:04d}/{file}",
        dataset=dataset,
        part=range(config.n_parts),
        file=[*images, "masks.npy", "part.json"],
    )


def meta_file(dataset: str) -> str:
    """Return the file that a data set is valid with."""
    return f"results/datasets/{dataset}/meta.yaml"


def every_result() -> list[str]:
    """Return what all trainings publish, and their figures of merit.

    As targets they are noticed when they are lost, which they would not be as
    inputs of a summary that is there.
    """
    files = [
        "config.yaml",
        "train_stats.csv",
        "model.safetensors",
        "predictions.npz",
        "result.json",
    ]
    outputs = [
        f"results/runs/{job.run}/ranks{job.ranks}/seed{job.seed}/{file}"
        for job in JOBS.values()
        for file in files
    ]
    return [*outputs, *every_fom(None)]


def every_data_file() -> list[str]:
    """Return the files of all data sets.

    As targets they are made again when they are lost: Snakemake does not look
    for the inputs of what is finished.
    """
    return [
        file
        for dataset in DATASETS
        for file in (*part_files(dataset), meta_file(dataset))
    ]


def job_of(wildcards) -> Job:
    """Return the training that the wildcards name."""
    job = JOBS.get((wildcards.run, wildcards.ranks, wildcards.seed))
    if job is not None:
        return job
    run = known("run", wildcards.run, STUDY.runs)
    raise WorkflowError(
        f"the study {STUDY.source} trains {wildcards.run} with ranks {run.ranks} and seeds {run.seeds},"
        f" not with ranks {wildcards.ranks} and seed {wildcards.seed}"
    )


def data_of_training(wildcards) -> str:
    """Return the data set of a training."""
    return meta_file(dataset_name(job_of(wildcards).config))


def data_awaited(wildcards) -> list[str]:
    """Return the data set of a training that has yet to be done.

    A training that is done does not depend on its data any more: which data it
    was stands in their path, so samples that were lost and rendered again, byte
    for byte, retrain nothing. (`ancient` would say less and do more: Snakemake
    then asks nothing of a training whose data are being made again, not even
    whether its params have changed.)
    """
    done = study_files.is_trained(RESULTS, job_of(wildcards))
    return [] if done else [data_of_training(wildcards)]


def tasks_of(job: Job) -> int | None:
    """Return the number of ranks where none shares its node with another, else None."""
    return job.ranks if job.ranks_per_node == 1 else None


def tasks_per_node_of(job: Job) -> int | None:
    """Return the number of ranks on each node where there are several, else None."""
    return job.ranks_per_node if job.ranks_per_node > 1 else None


def gres_of(job: Job) -> str | None:
    """Return the GPUs on each node in Slurm's terms, None without any."""
    gpus = job.resources.gpus * job.ranks_per_node
    return f"gpu:{gpus}" if gpus else None


def mem_mb_of(job: Job) -> int:
    """Return the memory on each node, MB."""
    return job.resources.mem_mb * job.ranks_per_node


def launcher(wildcards, resources, threads) -> str:
    """Return the profile's launcher with the numbers of the job filled in; a single process is started without."""
    nodes = resources.get("nodes", 1)
    tasks = resources.get("tasks") or nodes * resources.tasks_per_node
    if tasks == 1:
        return ""
    try:
        return resources.launcher.format(
            tasks=tasks,
            nodes=nodes,
            tasks_per_node=-(-tasks // nodes),
            cpus_per_task=resources.get("cpus_per_task", threads),
            gpus_per_task=resources.get("gpus_per_task", 0),
        )
    except (LookupError, ValueError) as error:
        raise WorkflowError(
            f"the profile's launcher {resources.launcher!r} can have"
            " {tasks}, {nodes}, {tasks_per_node}, {cpus_per_task} and {gpus_per_task} filled in, no other braces"
        ) from error


def every_figure() -> list[str]:
    """Return all figures of the study."""
    figures = [
        f"results/figures/{job.run}/ranks{job.ranks}/seed{job.seed}/{figure}"
        for job in STUDY.jobs()
        for figure in ("loss.svg", "dice.svg", "time.svg", "gallery.png")
    ]
    figures += collect("results/figures/{library}/categories.png", library=LIBRARIES)
    if any(len(run.ranks) > 1 for run in STUDY.runs.values()):
        figures.append("results/figures/scaling.svg")
    return figures


def every_fom(wildcards) -> list[str]:
    """Return the figures of merit of the study: one for each run and rank count."""
    return [
        f"results/runs/{name}/ranks{ranks}/fom.json"
        for name, run in STUDY.runs.items()
        for ranks in run.ranks
    ]


def results_of_fom(wildcards) -> list[str]:
    """Return the results of all seeds of a run at one rank count."""
    return collect(
        "results/runs/{run}/ranks{ranks}/seed{seed}/result.json",
        run=wildcards.run,
        ranks=wildcards.ranks,
        seed=known("run", wildcards.run, STUDY.runs).seeds,
    )


def code_of_report(*scripts: str) -> str:
    """Return a digest of the code behind a step of the report.

    Such a step costs seconds, so any edit redoes it. Stages that cost hours
    have a version instead, which is raised by hand when their result changes.
    """
    folder = Path(workflow.basedir) / "workflow" / "scripts"
    return study_files.source_digest(
        PACKAGE / "reporting", *(folder / script for script in scripts)
    )
