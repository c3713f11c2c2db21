# Every target sets itself up: `make demo` on a fresh Debian or Ubuntu machine is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ORACLES := $(VENV)/oracles

FUZZ_SECONDS ?= 60
# Of Kubernetes, for `make servers` and `make conformance`: current, or oldest by `make servers VERSION=oldest`.
ifneq ($(origin VERSION),command line)
VERSION := current
endif
# Processes that run tests: two a core, because most tests wait for others.
JOBS ?= $(shell echo $$(( 2 * $$(nproc 2>/dev/null || echo 2) )))

# Tests and demo start hundreds of processes, which would compile all they import each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test core servers oracles check prove docs reference stats conformance bench fuzz wheels packages images lock-images release audit lock clean
help:
	@echo "make demo         watch nodes with TPMs join and attackers be refused"
	@echo "make test         run the tests, in JOBS processes"
	@echo "make core         run the tests of the trusted core in one process each, and expect every branch of it"
	@echo "make oracles      programs of others (npm packages, helm) that some tests compare with; they are skipped without"
	@echo "make check        lint, types, layers, names, limits, docs"
	@echo "make prove        check the models in docs/proof: the ledger by Spin, the protocol by ProVerif if it is installed"
	@echo "make docs         the documentation as a site, into build/site"
	@echo "make stats        figures of the tree, and names with several meanings"
	@echo "make servers      build the Kubernetes, etcd and Cluster API that tests use (Go) and print their folder; VERSION=oldest"
	@echo "make conformance  the system tests beside these servers, or those in KUBEBUILDER_ASSETS and CAPI_ASSETS"
	@echo "make bench        measurements"
	@echo "make fuzz         each parser under a fuzzer for a minute (FUZZ_SECONDS)"
	@echo "make wheels       build the wheels into dist/"
	@echo "make reference    renew the pages that are made of code: commands, metrics, configuration, custom resources"
	@echo "make packages     .deb, .rpm and .tar.gz of the agent for nodes without Python, amd64 and arm64, into dist/"
	@echo "make images       build the controller's OCI images and their SBOMs, amd64 and arm64, into dist/"
	@echo "make lock-images  renew the locks of the images' Debian packages"
	@echo "make release      wheels, packages, image, chart, manifests, checksums and provenance into an empty dist/; KEY=... signs"
	@echo "make audit        look for known vulnerabilities in requirements.lock and in the servers; before a release"
	@echo "make lock         renew requirements.lock"
	@echo "make clean        remove what the other targets made"
	@echo "ARGS=... is passed on, such as: make demo ARGS='--nodes 5 --keep'"

venv: $(STAMP)

$(STAMP): pyproject.toml requirements.lock tools/system-packages
	@PYTHON=$(PYTHON) tools/system-packages
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: venv
	@$(BIN)/nodeattest demo $(ARGS)

test: venv
	@$(BIN)/python -m pytest -n $(JOBS) -m "not conformance" $(ARGS)

core: venv
	@PYTHONPATH=. $(BIN)/python tools/core_coverage.py -n $(JOBS) $(ARGS)

oracles: $(ORACLES)/.installed

$(ORACLES)/.installed: tests/oracles/package.json tests/oracles/package-lock.json tests/oracles/requirements.txt tools/system-packages tools/install-oracles | $(STAMP)
	@tools/install-oracles $(BIN)/python tests/oracles $(ORACLES)
	@touch $@

check: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --warnings
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_names.py
	@$(BIN)/python -m pytest -q tests/docs/test_proposals.py
	@$(BIN)/python tools/stats.py --check
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/site

prove: venv
	@tools/system-packages proof
	@$(BIN)/python -m tools.prove $(ARGS)

docs: venv
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/site

stats: venv
	@$(BIN)/python tools/stats.py
	@$(BIN)/python tools/check_names.py

servers:
	@$(PYTHON) tests/servers/build.py $(VERSION)

conformance: venv
	@assets=$${KUBEBUILDER_ASSETS:-} capi=$${CAPI_ASSETS:-}; \
	if [ -z "$$assets" ] || [ -z "$$capi" ]; then built=$$($(PYTHON) tests/servers/build.py $(VERSION)) || exit; fi; \
	export KUBEBUILDER_ASSETS="$${assets:-$$built}" CAPI_ASSETS="$${capi:-$$built}"; \
	$(BIN)/python -m pytest -n $(JOBS) -m conformance $(ARGS)

bench: venv
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m bench $(ARGS)

fuzz: venv
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

WHEELS := ./providers ./authenticator ./controller ./cli ./sandbox

wheels: venv
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist $(WHEELS)

reference: venv
	@$(BIN)/python -m tools.reference
	@$(BIN)/python tests/docs/test_trusted_core.py

packages: venv
	@tools/system-packages packages
	@$(BIN)/python -m images.node $(ARGS)

images: venv
	@tools/system-packages images
	@$(BIN)/python -m images.controller $(ARGS)

release: venv
	@$(BIN)/python -m tools.release $(if $(KEY),--key "$(KEY)") $(ARGS)

# Both ask the advisory databases on the Internet.
audit: venv
	@$(BIN)/uv tool run pip-audit@2.10.1 --require-hashes --disable-pip -r requirements.lock
	@servers=$$($(MAKE) -s servers) && for program in etcd kube-apiserver kubelet clusterctl; do \
	  go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -mode=binary "$$servers/$$program" || exit 1; done

lock-images: venv
	@tools/system-packages images
	@$(BIN)/python -m images.controller lock

lock: venv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --no-emit-index-url --no-emit-find-links \
		--no-annotate --custom-compile-command "make lock" pyproject.toml tools/build-requirements.in -o requirements.lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
