# `make` alone sets up a virtual environment and runs the tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

# For `make sglang`: the release, an interpreter with torch and transformers, folders of further packages.
RELEASE ?= 0.5.23
TORCH_PYTHON ?= python3
PACKAGES ?=
COUNT ?= 200

# For `make fuzz`.
SECONDS ?= 3600

.PHONY: test test-all fuzz lint bench docs refresh sglang xformers ask-vllm install clean

test: $(VENV)/.ready
	$(BIN)/python -m pytest

test-all: $(VENV)/.ready
	$(BIN)/python -m pip install -q uv
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m ""

# Mutated inputs of every kind for an hour, in every core; inputs that break a promise stay in build/fuzz.
fuzz: $(VENV)/.ready
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) --jobs $$(nproc)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/attn-doctor rules format --check rules

bench: $(VENV)/.ready
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/backends.py
	$(BIN)/python bench/job.py
	$(BIN)/python bench/gate.py

docs: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python scripts/release/make_docs.py

# Bring the records to today's releases: make refresh ONLY="vllm trl" REFRESH=--tables
refresh: $(VENV)/.ready
	$(BIN)/python scripts/release/refresh.py $(if $(ONLY),--only $(ONLY)) $(REFRESH)
	$(BIN)/attn-doctor rules verify --changed
	git diff --stat -- rules

# Run the selection code of a release of SGLang, and compare with what the rules predict.
sglang: $(VENV)/.ready
	$(BIN)/python -m pip download -q --no-deps -d build/sglang sglang==$(RELEASE)
	rm -rf build/sglang/$(RELEASE)
	$(PYTHON) -m zipfile -e build/sglang/sglang-$(RELEASE)-*.whl build/sglang/$(RELEASE)
	$(TORCH_PYTHON) scripts/oracles/ask_sglang.py build/sglang/$(RELEASE) $(PACKAGES:%=--packages %) --count $(COUNT) --output build/sglang/$(RELEASE).jsonl
	$(BIN)/python scripts/oracles/score_sglang.py build/sglang/$(RELEASE).jsonl

# Run the operator dispatch of a release of xFormers, and compare with what the rules predict; needs triton.
xformers: $(VENV)/.ready
	$(BIN)/python -m pip download -q --no-deps -d build/xformers xformers==$(RELEASE)
	rm -rf build/xformers/$(RELEASE)
	$(PYTHON) -m zipfile -e build/xformers/xformers-$(RELEASE)-*.whl build/xformers/$(RELEASE)
	$(TORCH_PYTHON) scripts/oracles/ask_xformers.py build/xformers/$(RELEASE) --count $(COUNT) --output build/xformers/$(RELEASE).jsonl
	$(BIN)/python scripts/oracles/score_xformers.py build/xformers/$(RELEASE).jsonl

# Judge a vLLM release: make ask-vllm VLLM=0.33.0 ASK_PYTHON=/path/to/python/with/torch
ask-vllm: $(VENV)/.ready
	sh scripts/oracles/ask_vllm.sh "$(VLLM)" "$(ASK_PYTHON)" "$(BIN)/python"

install: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
