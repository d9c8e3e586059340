"""Write the summary of all runs of a study."""

from pathlib import Path

from scaffold.reporting import tables
from scaffold.reporting.script import logged

with logged(snakemake.log):
    tables.write_summary([Path(path) for path in snakemake.input], Path(snakemake.output[0]))
