# One rule for each way of storing samples: what a part consists of is declared
# file by file, since Snakemake does not look inside a directory() output.
rule render_part:
    input:
        instances_of_dataset,
    output:
        multiext(
            "results/datasets/{dataset}/parts/{part}/",
            images="images.npy",
            masks="masks.npy",
            index="part.json",
        ),
    log:
        "logs/render_part/{dataset}.part{part}.log",
    wildcard_constraints:
        dataset=r"[^/]+-dense-[0-9a-f]+",
    priority: 1
    threads: 1
    resources:
        launcher="mpiexec -n {tasks}",
        tasks=1,
        mem_mb=render_mem_mb,
        runtime=240,
    params:
        launcher=launcher,
        instances=subpath(input[0], parent=True),
        folder=subpath(output.index, parent=True),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " {params.launcher} python -m mpi4py -m scaffold render"
        " --config results/study.yaml --dataset {wildcards.dataset} --part {wildcards.part}"
        " --instances {params.instances} --output {params.folder} --ranks {resources.tasks}"


use rule render_part as render_part_labels with:
    output:
        multiext(
            "results/datasets/{dataset}/parts/{part}/",
            masks="masks.npy",
            index="part.json",
        ),
    wildcard_constraints:
        dataset=r"[^/]+-labels-[0-9a-f]+",


rule publish_dataset:
    input:
        parts_of_dataset,
    output:
        "results/datasets/{dataset}/meta.yaml",
    log:
        "logs/publish_dataset/{dataset}.log",
    priority: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        folder="results/datasets/{dataset}/parts",
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " python -m scaffold publish"
        " --config results/study.yaml --dataset {wildcards.dataset}"
        " --parts {params.folder} --output {output}"
