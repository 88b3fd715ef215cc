# The same commands serve people and CI. What they install is named in `setup`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
LOCALCLUSTER := test/localcluster
GOLANGCI_LINT := bin/golangci-lint-2.12.0
# A cache of this checkout's own: one that checkouts share names files of another one, which may be gone.
export GOLANGCI_LINT_CACHE := $(CURDIR)/bin/lint-cache
# One set of flags for all that is compiled, so that tests, programs and the local cluster share the build cache.
# Without debugging information compiling takes a tenth less time.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false
# Root's own HOME, so that root's caches do not end up among the user's files.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -H --preserve-env env PATH="$(PATH)")

DEBIAN_PACKAGES := ca-certificates conntrack containerd containernetworking-plugins git iproute2 iptables mmdebstrap runc tini
# What the tests use beside it: a browser, and pip to fetch a resolver with.
TEST_PACKAGES := chromium python3-pip
# The same as the first, as programs, for machines with other packages.
PROGRAMS := /usr/lib/cni/bridge /usr/bin/tini-static conntrack containerd git ip iptables mmdebstrap runc

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what the local cluster needs (Debian, root or sudo); elsewhere print what is missing
	@if command -v apt-get >/dev/null; then \
	  missing=$$(for p in $(DEBIAN_PACKAGES) $(MORE_PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	  if [ -n "$$missing" ]; then \
	    echo "installing" $$missing; \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	  fi; \
	else \
	  missing=$$(for p in $(PROGRAMS); do command -v $$p >/dev/null || echo $$p; done); \
	  [ -z "$$missing" ] || { echo "This is not Debian. Install these programs, then run make again:" $$missing; exit 1; }; \
	fi
	@command -v go >/dev/null || { echo "Go 1.26 or newer is missing: https://go.dev/doc/install"; exit 1; }

.PHONY: setup-tests
setup-tests: ## install what the tests need beside that
	@$(MAKE) --no-print-directory setup MORE_PACKAGES="$(TEST_PACKAGES)"

.PHONY: build
build: bin/localcluster ## compile the project's commands into bin/
	go build -o bin/ ./cmd/...

# go build finds out by itself what has changed.
.PHONY: bin/localcluster
bin/localcluster:
	@mkdir -p bin
	cd $(LOCALCLUSTER) && go build -o ../../bin/localcluster ./cmd/localcluster

$(GOLANGCI_LINT):
	@mkdir -p bin
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
	mv bin/golangci-lint $@

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run the linters over both modules
	$(GOLANGCI_LINT) run --build-tags e2e
	cd $(LOCALCLUSTER) && ../../$(GOLANGCI_LINT) run --config ../../.golangci.yml ./cmd/localcluster/... ./cmd/nvidia-smi/... ./cmd/openshift-apiserver/... ./cmd/openshift-builder/... ./cmd/pause/... ./internal/...

.PHONY: unit
unit: ## run the tests that need no cluster
	go test ./...
	cd $(LOCALCLUSTER) && go test ./internal/... ./cmd/nvidia-smi/... ./cmd/openshift-apiserver/... ./cmd/openshift-builder/... ./cmd/pause/...

.PHONY: e2e
e2e: bin/localcluster ## run the end-to-end tests on a fresh local cluster (root); E2E_KEEP_CLUSTER=1 keeps it and uses the one that is up
	$(SUDO) go test -tags e2e -count=1 -v -timeout 60m ./test/e2e

.PHONY: resolve
resolve: ## resolve the Python packages of every training image under what its base has
	go test -tags e2e -count=1 ./test/images

.PHONY: browser
browser: ## open the pages of internal/pipeline/report in Chromium
	go test -tags e2e -count=1 ./test/browser

.PHONY: test
test: setup-tests verify lint unit resolve browser e2e ## everything that CI runs

.PHONY: generate
generate: ## rewrite what is generated (cluster file schema, reference pages and tables, install/, go.mod and go.sum, formatting)
	go test ./internal/cluster -run 'Test(Schema|Reference)IsCurrent' -update
	go test ./internal/cli -run TestReferenceIsCurrent -update
	go test ./internal/install/bundle -run TestReadmeTables -update
	go test ./internal/install -run TestKustomizationsAreCurrent -update
	go test ./internal/cli/schedule -run TestComponentIsCurrent -update
	go mod tidy
	cd $(LOCALCLUSTER) && go mod tidy
	cd $(LOCALCLUSTER)/tools && go mod tidy
	cd $(LOCALCLUSTER)/tools/triggers && go mod tidy
	gofmt -w cmd internal test

.PHONY: verify
verify: ## fail if generate would change something
	go test ./internal/cluster -run 'Test(Schema|Reference)IsCurrent'
	go test ./internal/cli -run TestReferenceIsCurrent
	go test ./internal/install/bundle -run TestReadmeTables
	go test ./internal/install -run TestKustomizationsAreCurrent
	go test ./internal/cli/schedule -run TestComponentIsCurrent
	go mod tidy -diff
	cd $(LOCALCLUSTER) && go mod tidy -diff
	cd $(LOCALCLUSTER)/tools && go mod tidy -diff
	cd $(LOCALCLUSTER)/tools/triggers && go mod tidy -diff
	@unformatted=$$(gofmt -l cmd internal test); [ -z "$$unformatted" ] || { echo "not formatted: $$unformatted"; exit 1; }

.PHONY: cluster
cluster: setup bin/localcluster ## bring the local cluster up, or repair it
	$(SUDO) bin/localcluster up $(UP_FLAGS)

.PHONY: cluster-down
cluster-down: bin/localcluster ## take the local cluster down
	$(SUDO) bin/localcluster down

.PHONY: demo
demo: ## bring the local cluster up, build an image on it and train a small transformer on two of its nodes
	@# Bringing the cluster up waits for networks and disks too.
	@$(MAKE) --no-print-directory -j2 cluster build UP_FLAGS=--training-image=false
	$(SUDO) test/localcluster/demo/run

.PHONY: bench
bench: bench-cluster ## run every benchmark, on a machine with no cluster up; none is left running
	@trap '$(MAKE) --no-print-directory cluster-down' EXIT; $(MAKE) --no-print-directory bench-train

.PHONY: bench-cluster
bench-cluster: setup bin/localcluster ## time up, a PipelineRun and down (BENCH_FLAGS=-cold=false leaves the first, long up out)
	$(SUDO) go run ./test/bench-cluster $(BENCH_FLAGS)

.PHONY: bench-train
bench-train: cluster ## bring the local cluster up and time sync, logs, starts and the pipeline on it; it stays up (BENCH_TRAIN_FLAGS=-parts=logs,start -runs=1 times some)
	@echo "timing ml-dev-env on the local cluster, in a namespace of its own; this takes some minutes"
	$(SUDO) go run ./test/bench-train $(BENCH_TRAIN_FLAGS)

# One version of Go: another compiles other bytes.
.PHONY: pin release
pin release: export GOTOOLCHAIN := go$(shell sed -n 's/^go //p' go.mod)
pin: ## write version and steps image's digest into tasks/ and pipelines/, to be committed and tagged (VERSION=v1.2.3)
	go run ./cmd/mlenv release pin --version="$(VERSION)" $(RELEASE_FLAGS)

release: ## make what VERSION=v1.2.3 is published as, in dist/ (RELEASE_FLAGS=--snapshot to try it, --push to publish)
	rm -rf dist
	go run ./cmd/mlenv release --version="$(VERSION)" $(RELEASE_FLAGS)

# What the earlier scripts' targets did, each one line; docs/from-scripts.md has them all.
# CLUSTER is a file of clusters/ without .yaml. MLENV_FLAGS are any other flags.
MLENV := bin/mlenv
CLUSTER_FILE = $(if $(CLUSTER),clusters/$(CLUSTER).yaml)
IN = $(if $(NAMESPACE),--namespace=$(NAMESPACE)) $(MLENV_FLAGS)
AT = $(if $(CLUSTER),--cluster-file=$(CLUSTER_FILE)) $(IN)
SIZE = $(if $(MODE),--mode=$(MODE)) $(if $(NODES),--nodes=$(NODES))

.PHONY: deploy-cluster
deploy-cluster: ## make an environment to develop in (CLUSTER= MODE= NODES= NAMESPACE=)
	$(MLENV) up $(AT) $(SIZE)

.PHONY: deploy-multi-node-rdma
deploy-multi-node-rdma: ## the same over RDMA
	$(MLENV) up --mode=rdma $(AT) $(if $(NODES),--nodes=$(NODES))

.PHONY: deploy-multi-node-tcp
deploy-multi-node-tcp: ## the same over TCP
	$(MLENV) up --mode=tcp $(AT) $(if $(NODES),--nodes=$(NODES))

.PHONY: deploy
deploy: ## make an environment of one node, with VS Code, Jupyter and TensorBoard
	$(MLENV) up --nodes=1 --services=all $(AT)

.PHONY: clean-cluster clean-multi-node clean
clean-cluster clean-multi-node clean: ## give the environment back; claims stay
	$(MLENV) down $(AT)

.PHONY: status-cluster status-multi-node status
status-cluster status-multi-node status: ## say how the environment is, and what is wrong with it
	$(MLENV) doctor $(IN)

.PHONY: sync-multi-node sync-once
sync-multi-node sync-once: ## put a folder on all nodes (LOCAL_DIR=.)
	$(MLENV) sync $(AT) $(LOCAL_DIR)

.PHONY: sync-code
sync-code: ## the same, again whenever something in it changes
	$(MLENV) sync --watch $(AT) $(LOCAL_DIR)

.PHONY: shell-multi-node shell
shell-multi-node shell: ## open a shell on a node (NODE=0)
	$(MLENV) shell $(AT) $(NODE)

.PHONY: gpu-info
gpu-info: ## show the GPUs of a node (NODE=0)
	$(MLENV) shell $(AT) $(NODE) -- nvidia-smi

.PHONY: dev-session
dev-session: ## sync and train, again whenever something changes (SCRIPT=train.py)
	$(MLENV) dev $(AT) $(if $(LOCAL_DIR),--dir=$(LOCAL_DIR)) $(SCRIPT)

.PHONY: vscode jupyter
vscode jupyter: ## open it in the browser
	$(MLENV) open $(AT) $@

.PHONY: list-clusters
list-clusters: ## say what each cluster file is about
	$(MLENV) validate clusters/*.yaml
