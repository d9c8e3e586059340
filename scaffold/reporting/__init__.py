"""From finished trainings to what a person compares: figure of merit, tables and figures.

``results`` reads what a training published; ``fom`` joins the seeds of a run into a figure of merit;
``compare`` sets two of them side by side; ``tables`` lists a whole study; ``curves``, ``gallery``,
``clouds`` and ``scaling`` draw, in the one ``style``. Nothing here needs torch or a GPU, and nothing
changes a result.
"""
