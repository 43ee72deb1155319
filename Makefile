# Two commands: `make study` re-does the paper's study, `make test` checks everything. Both install first.
PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)

.PHONY: study test test-gpu lab setup bench notebooks lint clean help
.PRECIOUS: .venv/installed-%
.DEFAULT_GOAL := help

help:
	@echo "make study   install, execute every notebook on trained models beside runs of your own, write reports/evening/index.html"
	@echo "make test    install, run every test and every notebook (at scale smoke)"
	@echo "make test-gpu  run the tests of the GPU (tests/gpu) with PYTHON, which has torch for CUDA; installs nothing"
	@echo "make lab     install, open the notebooks in JupyterLab"
	@echo "make setup   install what make study needs"
	@echo "make bench   install, measure scan, step and norms beside their peers (12 minutes)"
	@echo "make notebooks  execute the committed notebooks in place"
	@echo "make lint    ruff, and the types of mambanorm/ (mypy)"

setup: .venv/installed-study

# the groups of packages in pyproject.toml: what a command needs is installed when it is first called;
# --no-compile saves time: only a tenth of the modules is ever imported, and Python compiles these on import
.venv/installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "mambanorm needs Python 3.11 or newer, found %d.%d: say make PYTHON=python3.11" % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[$*]"
	@touch $@

study: setup
	$(BIN)/mambanorm study $(if $(MINUTES),--minutes $(MINUTES))

# two workers of two threads each: threads that spin while they wait take the cores from those they wait for
test: export OMP_WAIT_POLICY ?= passive
test: .venv/installed-dev
	$(BIN)/python -m mambanorm.kernels.warm
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --nbval-lax --nbval-current-env --nbval-cell-timeout 300 tests notebooks

# no installation: `make test` installs torch for the CPU, so this takes a Python that has torch for CUDA, triton, pytest and
# pytest-xdist, and imports the packages from here. `make test-gpu MAMBANORM_TEST_DEVICE=cpu` tries the tests without a GPU
test-gpu: export MAMBANORM_TEST_DEVICE := cuda
test-gpu: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
test-gpu:
	$(PYTHON) -m pytest -n 8 --dist worksteal -rs --durations 10 tests/gpu

# the committed notebooks, executed in place
notebooks: setup
	$(BIN)/jupyter nbconvert --to notebook --execute --ExecutePreprocessor.record_timing=False --inplace notebooks/*.ipynb

# notebooks import torch before the kit, which would set it (mambanorm/__init__.py)
lab: export GOMP_SPINCOUNT ?= 1000
lab: .venv/installed-lab
	-$(if $(STUDENT),$(BIN)/mambanorm notebooks --student --out $(STUDENT))
	$(BIN)/jupyter lab --notebook-dir=$(or $(STUDENT),notebooks)

bench: setup .venv/installed-bench
	$(BIN)/mambanorm bench

lint: .venv/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf .venv reports
