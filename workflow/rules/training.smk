# Checkpoints are not declared: they are in the work/ folder beside the outputs,
# which Snakemake never deletes, and the same command continues from them.
rule train:
    input:
        data_awaited,
    output:
        config="results/runs/{run}/ranks{ranks}/seed{seed}/config.yaml",
        statistics="results/runs/{run}/ranks{ranks}/seed{seed}/train_stats.csv",
        model="results/runs/{run}/ranks{ranks}/seed{seed}/model.safetensors",
        predictions="results/runs/{run}/ranks{ranks}/seed{seed}/predictions.npz",
        result="results/runs/{run}/ranks{ranks}/seed{seed}/result.json",
    log:
        "logs/train/{run}.ranks{ranks}.seed{seed}.log",
    threads: lambda wildcards: job_of(wildcards).ranks * job_of(wildcards).resources.threads
    resources:
        launcher="mpiexec -n {tasks}",
        nodes=lambda wildcards: job_of(wildcards).nodes,
        # The Slurm executor takes either the one or the other, and only of the
        # second does Slurm put equally many ranks on each node.
        tasks=lambda wildcards: tasks_of(job_of(wildcards)),
        tasks_per_node=lambda wildcards: tasks_per_node_of(job_of(wildcards)),
        cpus_per_task=lambda wildcards: job_of(wildcards).resources.threads,
        gpus_per_task=lambda wildcards: job_of(wildcards).resources.gpus,
        # Of each node, as is the memory.
        gres=lambda wildcards: gres_of(job_of(wildcards)),
        mem_mb=lambda wildcards: mem_mb_of(job_of(wildcards)),
        runtime=lambda wildcards: job_of(wildcards).resources.runtime,
    params:
        launcher=launcher,
        # All keys and code versions that define the result. The keys that do not
        # reach the job through the resolved study, so that they redo nothing.
        identity=lambda wildcards: training_identity(job_of(wildcards).config),
        data=data_of_training,
        folder=subpath(output.result, parent=True),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " {params.launcher} python -m mpi4py -m scaffold train"
        " --config results/study.yaml --run {wildcards.run} --seed {wildcards.seed}"
        " --ranks {wildcards.ranks} --threads {resources.cpus_per_task}"
        " --data {params.data} --output {params.folder}"
        " --identity {params.identity} --minutes {resources.runtime}"
        " --launcher={params.launcher:q}"
