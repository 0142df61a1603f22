# Verbs anyone can guess. Works with make 3.81 (macOS); all logic is in scripts/setup.py.

PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PRODUCT = manage.py platform peer_agent scripts examples
NPM = PATH="$(CURDIR)/.venv/bin:$$PATH" npm --prefix frontend

.DEFAULT_GOAL := help
.PHONY: help setup demo test check affected lint e2e bench format screenshots images

help: ## list the verbs
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1	\2/p' Makefile

setup: ## prepare .venv for everything below (TORCH=cuda for a GPU)
	@$(PYTHON) scripts/setup.py test

demo: ## train a small model here with three volunteers; page on port 8000
	@$(PYTHON) scripts/setup.py demo
	$(BIN)/python manage.py demo

test: lint ## what a change must pass; pytest speaks last
	$(PYTEST) -m "not check" --durations=25 tests

check: lint ## everything there is; run it before you call something done
	$(BIN)/mypy
	MANYHANDS_CHECK=1 $(PYTEST) --durations=60 tests

affected: setup ## what your changes can reach; the one to use while working
	$(BIN)/ruff check .
	$(BIN)/mypy $(PRODUCT)
	$(BIN)/python -m scripts.affected

lint: setup ## style, types of the product, import contracts, generated docs, the front end
	@$(BIN)/mypy $(PRODUCT) & types=$$!; \
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && \
	$(BIN)/lint-imports --cache-dir var/cache/imports && \
	$(BIN)/python -m scripts.generate_docs --check && $(BIN)/python -m scripts.prose && \
	$(NPM) run --silent types && $(NPM) run --silent test; others=$$?; \
	wait $$types && exit $$others

e2e: setup ## only the journeys with real processes and a real browser
	$(PYTEST) tests/end_to_end

bench: setup ## measure speed, within an hour (SIZE=--quick ten minutes, SIZE=--full three hours)
	$(BIN)/python -m tests.benchmarks $(SIZE)

format: setup ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: setup ## take the README's pictures of the main pages anew
	$(BIN)/python -m scripts.screenshots

images: ## build the images of site, relay and agent, with docker or podman
	@docker/make-images
