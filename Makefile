# Two commands for a fresh machine: `make run` (two regions on embedded stores) and `make test` (all tests).

CARGO ?= cargo
PYTHON ?= python3
DATA_DIR ?= data
VENV ?= .venv
PACKAGES := libclang-dev clang g++ pkg-config python3-venv openssl

.PHONY: run test deps check unit client-tests lint deny fuzz dist

run: deps
	$(CARGO) build --release --locked -p meridian
	exec $${CARGO_TARGET_DIR:-target}/release/meridian regions --data-dir $(DATA_DIR) $(ARGS)

test: deps lint unit client-tests

# Debian packages that the build and the tests need; nothing is asked of apt when all are there.
deps:
	@.ci/deps $(PACKAGES)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked

client-tests: $(VENV)/ready
	$(CARGO) build --locked -p meridian
	MERIDIAN_BINARY=$${CARGO_TARGET_DIR:-target}/debug/meridian $(VENV)/bin/python -m pytest -q --maxfail=20 platform/meridian/tests/python

$(VENV)/ready: platform/meridian/tests/python/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

deny:
	.ci/deny

fuzz:
	.ci/fuzz $${FUZZ_SECONDS:-30}

dist:
	$(CARGO) build --profile dist --locked -p meridian -p meridian-bench
