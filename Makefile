# Verbs anyone can guess. Works with make 3.81 (macOS); all logic is in scripts/setup.py.

PYTHON ?= python3
BIN = .venv/bin
NPM = PATH="$(CURDIR)/.venv/bin:$$PATH" npm --prefix frontend

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint e2e bench format screenshots images

help: ## list the verbs
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1	\2/p' Makefile

setup: ## prepare .venv for everything below (TORCH=cuda for a GPU)
	@$(PYTHON) scripts/setup.py test

demo: ## train a small model here with three volunteers; page on port 8000
	@$(PYTHON) scripts/setup.py demo
	$(BIN)/python manage.py demo

test: setup lint ## everything a change must pass; pytest speaks last
	$(NPM) run --silent test
	$(BIN)/python -m pytest -n 2 --durations=25 --ignore=tests/end_to_end tests
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --durations=40 tests/end_to_end

lint: setup ## style, types, import arrows, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir var/cache/imports
	$(NPM) run --silent types
	if [ -f scripts/generate_docs.py ]; then $(BIN)/python -m scripts.generate_docs --check; fi

e2e: setup ## only the journeys with real processes and a real browser
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder tests/end_to_end

bench: setup ## measure speed, within an hour (SIZE=--quick ten minutes, SIZE=--full three hours)
	$(BIN)/python -m tests.benchmarks $(SIZE)

format: setup ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: setup ## take the README's pictures of the main pages anew
	$(BIN)/python -m scripts.screenshots

images: ## build the images of site, relay and agent, with docker or podman
	@docker/make-images
