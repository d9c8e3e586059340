# Asked for by its files' names (snakemake results/kernels/bench.csv): a study
# does not need it, and it needs a GPU.
rule bench_kernels:
    output:
        table="results/kernels/bench.csv",
        figure=report(
            "results/kernels/roofline.png",
            category="Kernels",
            labels={"figure": "roofline"},
            caption="../report/kernels.rst",
        ),
    log:
        "logs/bench_kernels.log",
    resources:
        tasks=1,
        gpus_per_task=1,
        gres="gpu:1",
        # For the processes that compile ahead, each with PyTorch and a GPU context.
        cpus_per_task=8,
        mem_mb=48000,
        runtime=30,
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " python -m scaffold bench-kernels --output {output.table} --figure {output.figure}"
