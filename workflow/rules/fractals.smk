rule search_categories:
    output:
        categories="results/fractals/{library}/categories.csv",
        counters="results/fractals/{library}/categories.json",
    log:
        "logs/search_categories/{library}.log",
    priority: 1
    threads: 4
    resources:
        launcher="mpiexec -n {tasks}",
        tasks=1,
        mem_mb=2000,
        runtime=240,
    params:
        launcher=launcher,
        folder=subpath(output.categories, parent=True),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " {params.launcher} python -m mpi4py -m scaffold search"
        " --config results/study.yaml --library {wildcards.library}"
        " --output {params.folder} --ranks {resources.tasks} --threads {threads}"


rule generate_instances:
    input:
        "results/fractals/{library}/categories.csv",
    output:
        instances="results/fractals/{library}/instances/{category}.npy",
        record="results/fractals/{library}/instances/{category}.json",
    log:
        "logs/generate_instances/{library}.category{category}.log",
    priority: 1
    threads: 4
    resources:
        launcher="mpiexec -n {tasks}",
        tasks=1,
        mem_mb=2000,
        runtime=240,
    params:
        launcher=launcher,
        # The library's name stands for the search alone.
        version=stage_version("instances"),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " {params.launcher} python -m mpi4py -m scaffold instances"
        " --config results/study.yaml --library {wildcards.library}"
        " --categories {input} --category {wildcards.category}"
        " --output {output.instances} --ranks {resources.tasks} --threads {threads}"
