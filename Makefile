# Every target sets the environment up first; after the first time that takes well under a second.
.DEFAULT_GOAL := help
.PHONY: help setup demo preflight xprof published-tpus bench bench-latest growth waiting tables soak test test-matrix test-unit test-all test-latest test-latest-quick test-engines test-programs chaos lint house format docs docs-serve notebooks dist lock clean clean-runs

PYTHON := .make/venv/bin/python
LATEST_PYTHON := .make/latest/venv/bin/python
# The line of TFX, 1.16 or 1.21: make demo LINE=1.16. Without it the set-up picks what fits the machine (docs/lines.md).
LINE ?=
export LINE
# Extra arguments: make demo ARGS="--set trainer.train_steps=200", make test-unit ARGS="-k gate".
ARGS ?=
# The pipeline of make demo: a folder of pipelines/.
PIPELINE ?= taxi
# The slice of make preflight.
TPU ?= v5e:2x4
# What make xprof opens: the folder that --profile has written.
PROFILE ?=
# A process for each core shares the tests, up to 4 of 3 GB each; tests/conftest.py says which tests go together.
# ARGS=-n0 runs them in one, as a debugger needs it.
# A process that crashes ends the run and names its test: pytest-xdist 3.8 would start another one and wait for ever.
PYTEST := -m pytest --numprocesses logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
# What targets of their own run, since it needs more than Python.
NOT_ELSEWHERE := not programs and not engines

# tf.compat.v1.layers and feature columns need Keras 2, and that choice is made before TensorFlow is imported.
export TF_USE_LEGACY_KERAS := 1
export TF_CPP_MIN_LOG_LEVEL := 2
# Nothing here needs a GPU; TensorFlow would look for one at every start.
export CUDA_VISIBLE_DEVICES :=
# Without compiled bytecode each `from tfx import v1` costs 30 s more.
unexport PYTHONDONTWRITEBYTECODE
# Another environment's packages and settings must not be mixed with ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .make/venv with everything that the other targets need
	@scripts/setup_environment

demo: setup ## Run the Chicago-taxi pipeline: train, evaluate, bless and push a model (PIPELINE=digits: the other one)
	@$(PYTHON) -m tfx_tpu_trainer.workbench.cli.main run --pipeline $(PIPELINE) $(ARGS)

# What the pipeline's config.yaml says of the model, and what its Transform puts out.
TAXI := --module pipelines.taxi.model --feature_spec pipelines/taxi/feature_spec.json --params \
	'{"embedding_size": 8, "hidden_units": [64, 32], "learning_rate": 0.001, "decay_steps": 1000}'

preflight: setup ## Compile the taxi model for a TPU slice with Google's compiler, without a TPU (TPU=v5p:2x2x1: another)
	@TF_CPP_MIN_LOG_LEVEL=3 $(PYTHON) -m tfx_tpu_trainer.workbench.cli.main preflight $(TAXI) --tpu $(TPU) --batch_size 1024 $(ARGS)

published-tpus: setup ## Compare the preflight's bound and estimate with published speeds (ARGS=--record: compile anew)
	@$(PYTHON) -m benchmarks.published_tpus $(ARGS)

bench: setup ## Measure training, evaluation and prediction beside the original and Keras (ARGS=--quick: a short run)
	@$(PYTHON) -m benchmarks.run $(ARGS)

bench-latest: setup ## The same on TFX 1.21
	@scripts/setup_environment latest
	@$(LATEST_PYTHON) -m benchmarks.run $(ARGS)

growth: setup ## Measure how cost grows with rows, variables, layers, cores, slices, checkpoints, inputs and hosts
	@$(PYTHON) -m benchmarks.growth $(ARGS)

waiting: setup ## Time what a person waits for at a prompt, each command beside the plain import of what it needs
	@$(PYTHON) -m benchmarks.waiting $(ARGS)

tables: setup ## Make and run unedited projects of public tables, and compare them with gradient boosting
	@$(PYTHON) -m benchmarks.tables $(ARGS)

soak: setup ## Train, evaluate, predict and export for 300 rounds in one process: does anything grow (docs/reliability.md)
	@$(PYTHON) -m benchmarks.soak $(ARGS)

test: lint ## Lint, then every test but the matrices and the long sweeps: about 10 minutes
	@$(PYTHON) $(PYTEST) -m "not matrix and not sweep and $(NOT_ELSEWHERE)" $(ARGS)

test-matrix: setup ## The matrices: cores times modes times models (CI runs them after make test)
	@$(PYTHON) $(PYTEST) -m "matrix and not sweep and $(NOT_ELSEWHERE)" $(ARGS)

test-unit: setup ## The quick tests only: no pipeline runs, no matrices
	@$(PYTHON) $(PYTEST) -m "not e2e and not matrix and not sweep and $(NOT_ELSEWHERE)" $(ARGS)

test-all: lint ## Lint, then every test, the long sweeps too
	@$(PYTHON) $(PYTEST) -m "$(NOT_ELSEWHERE)" $(ARGS)

chaos: setup ## Kill trainings and pause them at their writes, and compare what is left (ARGS="--kills 1000 --pauses all")
	@TF_CPP_MIN_LOG_LEVEL=3 $(PYTHON) -m tests.chaos.run $(ARGS)

# The other environment is for the tests of what passes between the lines.
test-latest: setup ## Every test but the long sweeps on TFX 1.21, on a glibc of its own where this machine's is too old
	@scripts/setup_environment latest
	@OTHER_LINE_PYTHON="$(CURDIR)/$(PYTHON)" $(LATEST_PYTHON) $(PYTEST) -m "not sweep and $(NOT_ELSEWHERE)" $(ARGS)

# What stands most on private code of TensorFlow, TFX and TFMA: two to four minutes, which CI has for it.
LATEST_QUICK := $(addprefix tests/,estimator/_engine $(addprefix components/,evaluation gate trainer) serving)

# The set-up ends with 3 where this machine lacks what the line needs; anything else that fails, fails.
test-latest-quick: setup ## The most telling tests on TFX 1.21; passes, and says so, where this machine can't have that line
	@scripts/setup_environment latest; code=$$?; \
	if [ $$code -eq 3 ]; then echo "$@: not run, for want of what the line above names"; exit 0; fi; \
	[ $$code -eq 0 ] || exit $$code; \
	$(LATEST_PYTHON) $(PYTEST) -m "not e2e and not matrix and not sweep and $(NOT_ELSEWHERE)" $(LATEST_QUICK) $(ARGS)

# Packages that do not fit into one environment with TensorFlow 2.16's: each lock of theirs has one of its own.
.make/%/installed: requirements/%.lock | setup
	@rm -rf .make/$*
	@.make/venv/bin/uv venv --quiet .make/$* --python $(PYTHON)
	@.make/venv/bin/uv pip install --quiet --python .make/$*/bin/python --require-hashes --requirement $<
	@touch $@

xprof: .make/xprof/installed ## Open a profile of the preflight in XProf, which is installed apart (PROFILE=folder of --profile)
	@test -z "$(PROFILE)" || .make/xprof/bin/xprof --logdir "$(PROFILE)"

# What is there is used and what fails fails; what is missing is skipped, with a line that says where it comes from.
# ARGS="-m engines" runs the long ones too.
test-engines: setup ## Check what we write on real engines, such as a model server in Java (docs/orchestration.md)
	@$(MAKE) --no-print-directory --keep-going .make/xprof/installed .make/kubeflow/installed || \
		echo "xprof, kubeflow: what could not be installed is not tested"
	@$(PYTHON) -m pytest -m "engines and not sweep" tests/engines $(ARGS)

# The packages are fetched by name and hash into .make/programs; make test-programs ARGS=--write-table writes docs/programs.md.
test-programs: setup ## Run programs of public packages, on the host and on emulated cores (docs/programs.md)
	@$(PYTHON) $(PYTEST) -m programs tests/programs $(ARGS)

# What people read, in the repository's root and below docs/.
PROSE := README.md CHANGELOG.md CONTRIBUTING.md CODE_OF_CONDUCT.md SECURITY.md kubeflow/README.md docs

lint: setup ## Check style, formatting, spelling and prose, the import layers and the types of the public API
	@$(PYTHON) -m ruff check --output-format concise .
	@$(PYTHON) -m ruff format --check .
	@.make/venv/bin/lint-imports
	@.make/venv/bin/codespell
	@.make/venv/bin/proselint --output-format compact check $(PROSE)
	@$(PYTHON) -m mypy

house: setup ## Count the rooms of the package: entries, circles, upward imports, files, lines
	@$(PYTHON) -m scripts.house

format: setup ## Reformat the code and fix what ruff can fix
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .

# Strict: a broken link or anchor, a page without a place and a public name without a docstring are errors.
MKDOCS := NO_MKDOCS_2_WARNING=1 TF_CPP_MIN_LOG_LEVEL=3 $(PYTHON) -m mkdocs

docs: setup ## Rewrite the made parts of the documentation, then build its site into site/, strictly
	@$(PYTHON) -m scripts.draw_pictures
	@$(PYTHON) -m scripts.document_contrib
	@$(PYTHON) -m scripts.document_tests
	@$(MKDOCS) build $(ARGS)

notebooks: setup ## Run the notebooks of docs/notebooks anew and keep what they show (ARGS=emulated-cores: one of them)
	@$(PYTHON) -m scripts.run_notebooks $(ARGS)

docs-serve: setup ## Show the documentation's site while its pages are edited
	@$(MKDOCS) serve $(ARGS)

dist: setup ## Build the source distribution and the wheel into dist/, and try the wheel in a fresh environment
	@$(PYTHON) -m scripts.build_dist $(ARGS)

# Keeps the versions that are locked already; make lock ARGS=--upgrade takes the newest that the constraints allow.
LOCK := .make/venv/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"
# The platform is named so that the result does not depend on the machine; 2.31 is the least glibc that libtpu runs on.
LOCK_1_16 := $(LOCK) --python-version 3.10 --python-platform x86_64-manylinux_2_31
# One lock for Python 3.11 to 3.13: what only some of them need carries a marker.
LOCK_1_21 := $(LOCK) --python-version 3.11 --universal
TFX_1_21 := requirements/tfx-1.21

lock: setup ## Resolve setup.py under the constraints of each line into requirements/*.lock and requirements/*/*.lock
	@$(LOCK_1_16) $(ARGS) setup.py --extra all --extra dev --constraints requirements/constraints.in \
		--overrides requirements/overrides.in --output-file requirements/dev.lock
	@$(LOCK_1_16) setup.py --constraints requirements/dev.lock --output-file requirements/base.lock
	@$(LOCK_1_16) setup.py --extra tfx --constraints requirements/dev.lock --overrides requirements/overrides.in \
		--output-file requirements/runtime.lock
	@$(LOCK_1_16) setup.py --extra demo --extra kubeflow --extra tune --constraints requirements/dev.lock \
		--overrides requirements/overrides.in --output-file requirements/image.lock
	@$(LOCK_1_16) $(ARGS) setup.py requirements/tpu.in --extra demo --extra kubeflow --extra tune --constraints requirements/dev.lock \
		--overrides requirements/overrides.in --overrides requirements/tpu-overrides.in --output-file requirements/tpu-image.lock
	@$(LOCK_1_16) requirements/bootstrap.in --constraints requirements/dev.lock --output-file requirements/bootstrap.lock
	@$(LOCK_1_16) $(ARGS) requirements/tools.in --output-file requirements/tools.lock
	@$(LOCK_1_16) $(ARGS) requirements/oracle.in --output-file tfx_tpu_trainer/workbench/prove/original.lock
	@$(LOCK_1_16) $(ARGS) requirements/jax-oracle.in --output-file requirements/jax-oracle.lock
	@$(LOCK_1_16) $(ARGS) --no-deps requirements/tables.in --output-file requirements/tables.lock
	@$(LOCK_1_16) $(ARGS) requirements/xprof.in --output-file requirements/xprof.lock
	@$(LOCK_1_16) $(ARGS) requirements/kubeflow.in --output-file requirements/kubeflow.lock
	@$(LOCK_1_21) $(ARGS) setup.py --extra all --extra dev \
		--constraints $(TFX_1_21)/constraints.in --constraints requirements/bootstrap.lock --output-file $(TFX_1_21)/dev.lock
	@$(LOCK_1_21) setup.py --constraints $(TFX_1_21)/dev.lock --output-file $(TFX_1_21)/base.lock
	@$(LOCK_1_21) setup.py --extra tfx --constraints $(TFX_1_21)/dev.lock --output-file $(TFX_1_21)/runtime.lock
	@$(LOCK_1_21) setup.py --extra demo --extra kubeflow --extra tune --constraints $(TFX_1_21)/dev.lock \
		--output-file $(TFX_1_21)/image.lock

clean-runs: setup ## List what old runs have left in runs/ that no later one needs (ARGS=--remove: remove it)
	@$(PYTHON) -m tfx_tpu_trainer.workbench.cli.main clean --root runs $(ARGS)

clean: ## Remove what the other targets made, the environment too (runs/ stays: make clean-runs)
	rm -rf .make build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
