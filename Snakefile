from snakemake.utils import min_version

min_version("9.19")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/fractals.smk"
include: "workflow/rules/dataset.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/kernels.smk"


# Seconds each: not worth a job of their own where jobs are submitted.
localrules:
    all,
    publish_dataset,
    plot_run,
    plot_categories,
    plot_scaling,
    fom,
    summary,


rule all:
    default_target: True
    input:
        "results/summary.csv",
        every_result(),
        every_figure(),
        every_data_file(),
