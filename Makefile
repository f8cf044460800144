# `make help` lists the targets. Needed: Go, make, git, a C compiler for the race detector. All else is built or skipped loudly.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# Without this tag gRPC pulls in html/template, and the binary is nearly twice as big (see hack/README.md).
TAGS := -tags=grpcnotrace
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE ?= csi-provisioner:$(VERSION)
# Arguments for every `go test`, such as TESTARGS='-run Delete -v'.
TESTARGS ?=
# The control plane is slow to start: packages that start one run one after the other. The timeouts, a package's, are for
# what hangs; they leave room for a machine that is ten times slower.
CLUSTER_TEST := $(GO) test $(TAGS) -race -shuffle=on -timeout=40m -p=1 $(TESTARGS)
# An informer object that is changed in place makes the tests panic. Not in the unit tests: the detector looks once a
# second, and theirs simulate days.
test-integration test-e2e: export KUBE_CACHE_MUTATION_DETECTOR := true

.PHONY: help
help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## the static binary bin/csi-provisioner, its version stamped
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build $(TAGS) -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/csi-provisioner ./cmd/csi-provisioner
	@# As an image has it. The linker writes through a mapping; the kernel may map such a file in bigger pieces: up to 1.4 MiB more are resident.
	@cp bin/csi-provisioner bin/.csi-provisioner && mv bin/.csi-provisioner bin/csi-provisioner
	@printf 'bin/csi-provisioner %s: %.1f MB stripped, %d modules linked in\n' '$(VERSION)' \
		"$$(wc -c < bin/csi-provisioner | awk '{print $$1 / 1e6}')" "$$($(GO) version -m bin/csi-provisioner | grep -c '^	dep	')"

.PHONY: test
test: test-unit test-integration test-e2e ## everything that the repository can check about itself, set-up included

.PHONY: test-unit
test-unit: ## the tests that need no control plane; under a minute
	$(GO) test $(TAGS) -race -shuffle=on -timeout=20m $(TESTARGS) ./cmd/... ./hack/... ./pkg/... ./test/bench/... ./test/fixture/... ./test/memdriver/...

.PHONY: test-integration
test-integration: cluster-binaries ## controllers against a real API server and an in-memory driver
	$(CLUSTER_TEST) ./test/cluster/... ./test/integration/...

.PHONY: test-e2e
test-e2e: build cluster-binaries ## the built binary with the shipped rights on a real control plane, and all other tests
	$(CLUSTER_TEST) $$($(GO) list $(TAGS) ./test/... | grep -v -E '/test/(bench|cluster|fixture|integration|memdriver|node)(/|$$)')

.PHONY: test-node
test-node: ## the test driver's node service: mounts and loop devices, so it needs root and is no part of `make test`
	$(GO) test $(TAGS) -race -shuffle=on -timeout=10m $(TESTARGS) ./test/node/...

.PHONY: lint
lint: ## style, floors between packages, contextual logging, shell scripts
	@hack/lint.sh

.PHONY: fmt
fmt: ## format the code and order its imports
	$(GO) tool -modfile=hack/tools/go.mod golangci-lint fmt --config hack/golangci.yml

.PHONY: generate
generate: ## write what is derived: docs/reference and docs/runbooks.md
	$(GO) run $(TAGS) ./hack/flagsdoc
	$(GO) run $(TAGS) ./hack/refdoc

.PHONY: verify
verify: ## prove that the tree is tidy, formatted, generated, linted and free of unwanted modules
	@hack/verify.sh

.PHONY: cluster-binaries
cluster-binaries: ## the control plane in bin/cluster, when missing or out of date; minutes the first time
	@hack/cluster-binaries.sh

.PHONY: image
image: ## the container image, where docker, podman or buildah is at hand
	@hack/image.sh '$(IMAGE)' '$(VERSION)'

.PHONY: demo
demo: build cluster-binaries ## one claim, from creation to deletion, on a control plane of its own; KEEP=1 leaves it up
	@$(GO) build $(TAGS) -o bin/memdriver ./test/memdriver/cmd/memdriver
	@$(GO) build $(TAGS) -o bin/demo ./test/demo
	@exec bin/demo $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: bench
bench: build cluster-binaries ## what a volume costs on a real control plane (LOAD=<arguments>, LOAD=no: not; AGAINST=<binary> compares), then micro benchmarks; BASE=<git revision> compares these
	@BASE='$(BASE)' LOAD='$(LOAD)' AGAINST='$(AGAINST)' hack/bench.sh

.PHONY: clean
clean: ## remove bin/, but not the control plane
	find bin -mindepth 1 -maxdepth 1 ! -name cluster -exec rm -rf {} + 2>/dev/null || true
