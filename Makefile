# make run           set up what is needed, run the default study, show its figure of merit
# make test          set up and run all tests but those of the next line
# make test-cluster  set up and run a study on a Slurm that is started for it (needs root and Slurm)
# make lint          set up and check style, types and workflow
# make report        bring the study up to date and write results/report.html
# make docs          write config/README.md and the editor schema from the code
#
# PYTHON=...         the interpreter to build on (3.11 to 3.13)
# STUDY=...          the study of `make run`
# PYTEST=...         arguments for pytest, such as PYTEST="-k dag"
# WORKERS=...        processes that share the tests

PYTHON ?= python3
STUDY ?= config/config.yaml
PYTEST ?=
WORKERS ?= 2

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: run test test-cluster lint report docs

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
SNAKEMAKE := snakemake --profile profiles/local --configfile $(STUDY)

run: $(VENV)/run.stamp
	$(SNAKEMAKE) --report results/report.html --report-after-run
	scaffold summary results/summary.csv

# By files, since their tests share what takes long to make; in order, since the longest test, that of the kernels,
# is alone in its file and would come last. PyTorch's threads would take the cores from the other worker.
test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(PYTEST)

# What was broken, and how it went on, is in build/cluster-tests.log.
test-cluster: $(VENV)/dev.stamp
	pytest -m cluster tests/cluster $(PYTEST)

lint: $(VENV)/dev.stamp
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile workflow
	.ci/lint-workflow

report: $(VENV)/run.stamp
	$(SNAKEMAKE) --report results/report.html --report-after-run

docs: $(VENV)/run.stamp
	scaffold config-docs config

# A stamp is made last, so that a set-up that failed half-way is taken up again.
$(VENV)/run.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	python -m pip install --quiet --constraint constraints.txt --editable '.[mpich]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	python -m pip install --quiet --constraint constraints.txt --editable '.[mpich,dev]'
	touch $@

$(VENV)/created.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Scaffold needs Python 3.11 to 3.13, and '$(PYTHON)' is not one; try: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed (on Debian and Ubuntu its package is python3-venv)" >&2; \
	  exit 1; }
	touch $@
