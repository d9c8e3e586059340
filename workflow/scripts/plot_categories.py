"""Draw every category of a library in 3-D."""

from pathlib import Path

from scaffold.fractals.categories import load_categories
from scaffold.reporting import clouds
from scaffold.reporting.script import logged

with logged(snakemake.log):
    clouds.draw_categories(
        [clouds.read_cloud(Path(path)) for path in snakemake.input.instances],
        load_categories(Path(snakemake.input.categories)),
        Path(snakemake.output[0]),
        snakemake.wildcards.library,
    )
