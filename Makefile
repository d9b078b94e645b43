# make train | quick | test | long | gpu | numerics | sglang | lerobot | check | docs | help. Everything lives in .venv; nothing else is installed or changed.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
DEAR := integration or learning or cluster or gpu or pretended_cuda or long
SGLANG := .cache/sglang/installed
LEROBOT := .cache/lerobot/installed
PUBLISH := .cache/publish/installed
SGLANG_TESTS := tests/contracts/test_rollout_backend.py tests/integration/test_sglang_run.py
# Whatever judges computed numbers, or learns by them, and a processor with the oldest instructions that the libraries know.
NUMERIC := $(shell grep -rlE --include='test_*.py' '^from tests.numerics import|mark.order_of_sums' tests)
OLD_PROCESSOR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem \
  TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/.cache/inductor_of_an_old_processor
# Of tests at a time; on two cores, as one in three waits for others or for deadlines. Whole runs have processes of their
# own, and slow each other down.
PROCESSES := 3
# What a save can break, without networks, ranks, simulators and whole runs, and without the files that compose most
# configurations and those that cost most (docs/testing.md): the aim is two minutes on two cores.
QUICK := $(addprefix tests/unit/, algorithms certification config controller data doctor edges observability pipe rollout \
  serving system watchdog)
QUICK += $(addprefix --ignore=tests/unit/, algorithms/test_dsrl.py config/test_advice.py config/test_checks.py \
  config/test_command_line.py config/test_foreign_folders.py config/test_loading.py config/test_recorded.py doctor/test_checks.py \
  serving/test_vla_eval.py watchdog/test_guard.py)
WHOLE_RUNS := -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 $(addprefix tests/, contracts cluster golden gpu \
  integration learning pretended_cuda)
ARGS ?=

# Where it is set, each worker process of each run compiles all of rlrun anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train quick test cheap dear long gpu numerics sglang lerobot image check docs format reference lock publish clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo '  more of `make train`: make train ARGS="run=picking_up_trash"; all keys: $(BIN)/python -m rlrun.train --help'

train: $(INSTALLED) ## teach the robot; ends with a success rate, a report and a video
	$(BIN)/python -m rlrun.train $(ARGS)

quick: $(INSTALLED) ## the tests that cost least, for every save: under three minutes
	$(BIN)/python -m pytest -q -n 2 -m "not ($(DEAR))" $(QUICK) $(ARGS)

test: cheap dear ## the tests that protect a change, cheap ones first

cheap: $(INSTALLED)
	$(BIN)/python -m pytest -q -n $(PROCESSES) -m "not ($(DEAR))" $(ARGS)

dear: $(INSTALLED)
	$(BIN)/python -m pytest $(WHOLE_RUNS) -m "($(DEAR)) and not long" $(ARGS)

long: $(INSTALLED) ## the rest: more whole runs, and what other projects' packages say (some GB)
	$(BIN)/python -m pytest $(WHOLE_RUNS) tests/unit packages -m long $(ARGS)

gpu: $(INSTALLED) ## a quarter of an hour on one card: what only a GPU can prove; ends with a table for docs/gpu.md
	$(BIN)/python -m benchmarks.gpu --budget 900 $(ARGS)

numerics: $(INSTALLED) ## the tests of computed numbers, as on a processor without AVX: sums in another order
	$(OLD_PROCESSOR) $(BIN)/python -m pytest -q -n $(PROCESSES) -m "order_of_sums or not ($(DEAR))" $(NUMERIC) $(ARGS)

sglang: $(SGLANG) ## SGLang without a GPU in an environment of its own (3 GB), and the tests that need it
	$(BIN)/python -m pytest -q -s --durations=5 $(SGLANG_TESTS) $(ARGS)

lerobot: $(LEROBOT) ## LeRobot on the CPU in an environment of its own (1.6 GB), and the tests that need it
	$(BIN)/python -m pytest -q -s --durations=5 tests/golden/test_lerobot_export.py $(ARGS)

image: $(INSTALLED) ## build the CPU image with buildah and train run=debug inside; ten minutes, skipped without buildah
	scripts/train_in_image.sh $(ARGS)

check: $(INSTALLED) docs ## ruff, mypy, the architecture tests, and the documents with strict links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rlrun packages/rlrun-libero-warp/rlrun_libero_warp
	$(BIN)/python -m pytest -q -n 2 tests/architecture

docs: $(INSTALLED) ## the documents as a site: site/index.html; fails for a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(INSTALLED) ## let ruff correct what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(INSTALLED) ## write what documents take from the sources: keys, commands, tables of errors, pictures
	$(BIN)/python scripts/write_docs.py

lock: $(INSTALLED) ## write the installed versions into constraints.txt
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable \
	  | grep -viE '^(nvidia|cuda|rlrun|triton)' | sed 's/+c[pu][pu0-9]*$$//' | sort -f; } > $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt

publish: $(PUBLISH) ## wheel and sdist in dist/, built and checked, never uploaded; URL=… of the repository for the links of the README
	$(<D)/bin/python scripts/publish.py $(if $(URL),--url "$(URL)")

clean: ## remove the environment; runs/ stays
	rm -rf $(VENV) build site *.egg-info

# Python 3.11 or later, by whatever name it goes.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or later is needed: apt-get install python3 python3-venv'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'venv is missing: apt-get install python3-venv'; rm -rf $(VENV); exit 1; }

$(SGLANG): | $(INSTALLED)
	$(BIN)/python scripts/sglang_environment.py $(@D)

$(LEROBOT): | $(INSTALLED)
	$(BIN)/python scripts/lerobot_environment.py $(@D)

$(PUBLISH):
	$(or $(PYTHON),python3) -m venv $(@D)
	$(@D)/bin/pip install -qq build twine
	@touch $@

# The build of torch is the one that the driver runs. Where there is no GPU it is the CPU's, a tenth of the download.
$(INSTALLED): pyproject.toml packages/rlrun-libero-warp/pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing into $(VENV): once, some minutes'
	@options=$$($(BIN)/python -m rlrun.system.torch_index) && $(BIN)/pip install -qq --no-compile $$options "$(TORCH)"
	@$(BIN)/pip install -qq --no-compile -c constraints.txt -e '.[dev]' -e packages/rlrun-libero-warp
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true # on all cores; some packages ship files of other Pythons
	@touch $@
