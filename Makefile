# For a fresh machine: `make run` (two regions on embedded stores), `make cluster` (one region of many processes) and
# `make test` (all tests).

CARGO ?= cargo
PYTHON ?= python3
DATA_DIR ?= data
CLUSTER_DIR ?= cluster-data
VENV ?= .venv
PACKAGES := libclang-dev clang g++ pkg-config python3-venv openssl

.PHONY: run cluster terraform-demo terraform-install test deps check unit client-tests lint deny fuzz dist

run: deps
	$(CARGO) build --release --locked -p meridian
	exec $${CARGO_TARGET_DIR:-target}/release/meridian regions --data-dir $(DATA_DIR) $(ARGS)

# Metadata store, three brokers, five bookies in three zones, on loopback.
cluster: deps
	$(CARGO) build --release --locked -p meridian -p meridian-mini-tikv
	exec $${CARGO_TARGET_DIR:-target}/release/meridian cluster demo --data-dir $(CLUSTER_DIR) $(ARGS)

# Two regions provisioned by Terraform with three teams, and a message that crosses.
terraform-demo: deps
	@command -v terraform >/dev/null || { echo "terraform-demo: NOT RUN: there is no terraform on this machine; it is one program to be put on the PATH" >&2; exit 1; }
	$(CARGO) build --release --locked -p meridian -p meridian-terraform
	terraform/demo $${CARGO_TARGET_DIR:-target}/release/meridian $${CARGO_TARGET_DIR:-target}/release/terraform-provider-meridian

# The provider where terraform looks for providers that no registry has.
terraform-install: deps
	$(CARGO) build --release --locked -p meridian-terraform
	terraform/install $${CARGO_TARGET_DIR:-target}/release/terraform-provider-meridian

test: deps lint unit client-tests

# Debian packages that the build and the tests need; nothing is asked of apt when all are there.
deps:
	@.ci/deps $(PACKAGES)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked --no-fail-fast

client-tests: $(VENV)/ready
	$(CARGO) build --locked -p meridian -p meridian-mini-tikv -p meridian-terraform
	@command -v terraform >/dev/null || echo "NOT RUN: tests with the real terraform, which is not on this machine; the provider's own tests ran"
	MERIDIAN_BINARY=$${CARGO_TARGET_DIR:-target}/debug/meridian MERIDIAN_TERRAFORM_PROVIDER=$${CARGO_TARGET_DIR:-target}/debug/terraform-provider-meridian $(VENV)/bin/python -m pytest -q --maxfail=20 platform/meridian/tests/python

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

# Both simulated worlds over SEEDS seeds from FROM on; SEED=N plays one with everything that happens. `WORLD=storage` or
# `WORLD=regions` alone.
sim:
	$(CARGO) build --release --locked -p meridian-sim
	for world in $${WORLD:-storage regions}; do \
		$${CARGO_TARGET_DIR:-target}/release/meridian-sim --world $$world \
			$${SEED:+--seed $$SEED} $$([ -n "$$SEED" ] || echo --from $${FROM:-0} --schedules $${SEEDS:-10000}) || exit 1; \
	done
