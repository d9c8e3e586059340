"""Draw the curves and the gallery of one training."""

from pathlib import Path

from scaffold.reporting import curves, gallery, results
from scaffold.reporting.script import logged

with logged(snakemake.log):
    result = results.read_result(Path(snakemake.input.result).parent)
    stats = results.read_stats(Path(snakemake.input.stats))
    predictions = results.read_predictions(Path(snakemake.input.predictions))
    curves.draw_loss(stats, result, Path(snakemake.output.loss))
    curves.draw_dice(stats, result, Path(snakemake.output.dice))
    curves.draw_time(stats, result, Path(snakemake.output.time))
    gallery.draw_gallery(predictions, result, Path(snakemake.output.gallery))
