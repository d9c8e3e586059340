"""Draw time to target and throughput over the rank counts of a study."""

from pathlib import Path

from scaffold.reporting import fom, scaling
from scaffold.reporting.script import logged

with logged(snakemake.log):
    scaling.draw_scaling([fom.read_fom(Path(path)) for path in snakemake.input], Path(snakemake.output[0]))
