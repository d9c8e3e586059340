#!/bin/sh
# Snakemake starts the program of `cluster-generic-cancel-cmd` without a shell: it can have no arguments.
exec flux cancel "$@"
