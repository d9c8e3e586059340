#!/bin/sh
# Says of a Flux job what Snakemake wants to hear: success, failed or running. A job that Flux cannot be
# asked about just now is running: it will be asked again.
case $(flux jobs --no-header --format='{state} {result}' "$1") in
  "INACTIVE COMPLETED") echo success ;;
  INACTIVE*) echo failed ;;
  *) echo running ;;
esac
