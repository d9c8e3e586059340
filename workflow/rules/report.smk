report: "../report/study.rst"


rule plot_run:
    input:
        stats="results/runs/{run}/ranks{ranks}/seed{seed}/train_stats.csv",
        predictions="results/runs/{run}/ranks{ranks}/seed{seed}/predictions.npz",
        result="results/runs/{run}/ranks{ranks}/seed{seed}/result.json",
    output:
        loss=report(
            "results/figures/{run}/ranks{ranks}/seed{seed}/loss.svg",
            category="Training",
            subcategory="{run}",
            labels={"ranks": "{ranks}", "seed": "{seed}", "figure": "loss"},
            caption="../report/loss.rst",
        ),
        dice=report(
            "results/figures/{run}/ranks{ranks}/seed{seed}/dice.svg",
            category="Training",
            subcategory="{run}",
            labels={"ranks": "{ranks}", "seed": "{seed}", "figure": "Dice"},
            caption="../report/dice.rst",
        ),
        time=report(
            "results/figures/{run}/ranks{ranks}/seed{seed}/time.svg",
            category="Training",
            subcategory="{run}",
            labels={"ranks": "{ranks}", "seed": "{seed}", "figure": "time"},
            caption="../report/time.rst",
        ),
        gallery=report(
            "results/figures/{run}/ranks{ranks}/seed{seed}/gallery.png",
            category="Training",
            subcategory="{run}",
            labels={"ranks": "{ranks}", "seed": "{seed}", "figure": "predictions"},
            caption="../report/gallery.rst",
        ),
    log:
        "logs/plot_run/{run}.ranks{ranks}.seed{seed}.log",
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code_of_report("plot_run.py"),
    script:
        "../scripts/plot_run.py"


rule plot_categories:
    input:
        categories="results/fractals/{library}/categories.csv",
        instances=instances_of_library,
    output:
        report(
            "results/figures/{library}/categories.png",
            category="Data",
            labels={"library": "{library}", "figure": "categories"},
            caption="../report/categories.rst",
        ),
    log:
        "logs/plot_categories/{library}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code_of_report("plot_categories.py"),
    script:
        "../scripts/plot_categories.py"


rule fom:
    input:
        results_of_fom,
    output:
        report(
            "results/runs/{run}/ranks{ranks}/fom.json",
            category="Figures of merit",
            labels={"run": "{run}", "ranks": "{ranks}"},
            caption="../report/fom.rst",
        ),
    log:
        "logs/fom/{run}.ranks{ranks}.log",
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        # Not made from `input`: Snakemake does not watch what is.
        folders=lambda wildcards: [
            os.path.dirname(file) for file in results_of_fom(wildcards)
        ],
        code=code_of_report(),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " python -m scaffold fom --results {params.folders} --output {output}"


rule plot_scaling:
    input:
        every_fom,
    output:
        report(
            "results/figures/scaling.svg",
            category="Figures of merit",
            labels={"figure": "scaling"},
            caption="../report/scaling.rst",
        ),
    log:
        "logs/plot_scaling.log",
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs=every_fom,
        code=code_of_report("plot_scaling.py"),
    script:
        "../scripts/plot_scaling.py"


rule summary:
    input:
        every_fom,
    output:
        report(
            "results/summary.csv",
            category="Figures of merit",
            labels={"figure": "summary"},
            caption="../report/summary.rst",
        ),
    log:
        "logs/summary.log",
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs=every_fom,
        code=code_of_report(),
    shell:
        "exec python -m scaffold.attempt --log {log} --"
        " python -m scaffold summary {output} --foms {input}"
