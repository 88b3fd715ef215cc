# Users and CI run the same targets. `setup` lists what they install.
.DEFAULT_GOAL := help
SHELL := bash
LOCALCLUSTER := test/localcluster
# The versions of the tools are in go.mod files of their own. golangci-lint has one for itself: it is tested with its own dependencies.
TOOL := go tool -modfile=$(CURDIR)/test/tools/go.mod
GOLANGCI_LINT := bin/golangci-lint-$(shell sed -n 's,.*github.com/golangci/golangci-lint/v2 v\([^ ]*\).*,\1,p' test/tools/lint/go.mod)
# The lint cache belongs to this checkout: a shared cache would name files of another checkout, which may be deleted.
export GOLANGCI_LINT_CACHE := $(CURDIR)/bin/lint-cache
# All compilations use the same flags, so that tests, programs and the local cluster share the build cache.
# Without debugging information, compiling takes a tenth less time.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false
export GOWORK := off
SUDO := $(if $(filter 0,$(shell id -u)),,test/root)

# mmdebstrap verifies Debian's packages with debian-archive-keyring and gpg, which Ubuntu may lack.
DEBIAN_PACKAGES := ca-certificates conntrack containerd containernetworking-plugins debian-archive-keyring git gpg iproute2 iptables mmdebstrap \
  runc tini
# The tests also need a browser, the clients of ssh, and pip to download a resolver.
TEST_PACKAGES := chromium git git-lfs openssh-client python3-pip python3-venv rsync
# The programs of DEBIAN_PACKAGES, for systems with other packages.
PROGRAMS := /usr/bin/tini-static conntrack containerd git gpg ip iptables mmdebstrap runc

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: go
go:
	@command -v go >/dev/null || { echo "Go 1.26 or newer is missing: https://go.dev/doc/install"; exit 1; }

# Docker's containerd.io has containerd and runc, and conflicts with Debian's.
.PHONY: setup
setup: go ## install what the local cluster needs (Debian, root or sudo); on other systems print the missing programs
	@if [ -f /etc/debian_version ] && command -v apt-get >/dev/null; then \
	  missing=$$(for p in $(DEBIAN_PACKAGES) $(MORE_PACKAGES); do \
	    { [[ $$p =~ ^(containerd|runc)$$ ]] && command -v $$p >/dev/null; } || dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; \
	  done); \
	  if [ -n "$$missing" ]; then \
	    echo "installing as root:" $$missing; \
	    test/progress "installing packages" $(SUDO) sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --no-remove $$(echo $$missing) >/dev/null" || exit 1; \
	  fi; \
	else \
	  missing=$$(for p in $(PROGRAMS); do command -v $$p >/dev/null || echo $$p; done); \
	  [ -z "$$missing" ] || { echo "This is not Debian. Install these programs, then run make again:" $$missing; exit 1; }; \
	fi

.PHONY: setup-tests
setup-tests: ## install what the local cluster and the tests need
	@$(MAKE) --no-print-directory setup MORE_PACKAGES="$(TEST_PACKAGES)"

# Downloading waits for the network, while other targets compile and install.
.PHONY: modules
modules: go
	@test/progress "downloading Go modules" sh -c 'go list -deps ./cmd/... && go list -C $(LOCALCLUSTER) -deps ./cmd/... && \
	  go list -C $(LOCALCLUSTER)/tools -deps tool' >/dev/null

.PHONY: clean
clean: ## delete build output: bin/ and dist/. It touches no cluster
	rm -rf bin dist

# With CLUSTER, clusters/from-scripts.mk has another target of this name.
ifeq ($(CLUSTER),)
.PHONY: build
build: bin/localcluster ## compile the project's commands into bin/
	go build -o bin/ ./cmd/mlenv ./cmd/mlenv-agent ./cmd/steps
endif

# Phony, because go build itself detects what has changed.
.PHONY: bin/localcluster
bin/localcluster: go
	@mkdir -p bin
	@GOGC=400 test/progress 90 "compiling bin/localcluster" go build -C $(LOCALCLUSTER) -o ../../bin/localcluster ./cmd/localcluster

# What mlenv version prints: the commit, whether files differ from it, and its date.
STAMP = $(shell commit=$$(git describe --tags --always --dirty 2>/dev/null) && echo "$$commit-$$(git log -1 --format=%cs)")
.PHONY: bin/mlenv
bin/mlenv: go
	@mkdir -p bin
	@GOGC=400 test/progress 90 "compiling bin/mlenv" go build -o bin/mlenv -ldflags="-s -w -X github.com/ml-dev-env/ml-dev-env/internal/version.number=$(STAMP)" ./cmd/mlenv

.PHONY: mlenv
mlenv: bin/mlenv ## compile the command line into bin/

$(GOLANGCI_LINT):
	@mkdir -p bin
	go build -C test/tools/lint -o "$(CURDIR)/$@" github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run the linters over both modules
	$(GOLANGCI_LINT) run --allow-serial-runners --build-tags e2e
	cd $(LOCALCLUSTER) && ../../$(GOLANGCI_LINT) run --allow-serial-runners --config ../../.golangci.yml ./cmd/ib_write_bw/... ./cmd/localcluster/... ./cmd/nvidia-smi/... ./cmd/openshift-apiserver/... ./cmd/openshift-builder/... ./cmd/pause/... ./internal/...

# Not with the linters: with a cold cache it compiles all packages once more.
.PHONY: vet-darwin
vet-darwin: ## vet mlenv for macOS
	GOOS=darwin go vet ./cmd/mlenv/... ./internal/cli/...

# The linters vet the same packages. Two packages a core run at a time, and two tests of each that may, because they wait more than they compute.
WAITING := $(shell echo $$((2 * $$(nproc))))
UNIT_FLAGS := -vet=off -p $(WAITING) -parallel $(WAITING)
UNIT := go test $(UNIT_FLAGS)
.PHONY: unit unit-mlenv unit-localcluster
unit: unit-mlenv unit-localcluster ## run the tests that need no cluster
unit-mlenv:
	@mkdir -p bin
	@trap '$(GOTESTSUM) tool slowest --num=10 --threshold=1s --jsonfile=bin/unit.json' EXIT; \
	  $(GOTESTSUM) --format=pkgname --jsonfile=bin/unit.json -- $(UNIT_FLAGS) ./...
unit-localcluster:
	cd $(LOCALCLUSTER) && $(UNIT) ./internal/... ./cmd/ib_write_bw/... ./cmd/nvidia-smi/... ./cmd/openshift-apiserver/... ./cmd/openshift-builder/... ./cmd/pause/...

# Fuzz tests run one at a time. make unit runs each with its seeds.
FUZZTIME := 30s
.PHONY: fuzz
fuzz: ## run every fuzz test, each for FUZZTIME=30s
	@grep -rlE --include='*_test.go' '^func Fuzz' cmd internal | xargs -n1 dirname | sort -u | while read -r package; do \
	  go test -list '^Fuzz' "./$$package" | grep '^Fuzz' | while read -r target; do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime "$(FUZZTIME)" "./$$package" </dev/null || exit 1; \
	  done || exit 1; \
	done

# Compiled without coverage, a fuzz test finds less in the same time. But there is less to compile: make unit has compiled all packages.
# A number of inputs and not a second, at whose end a test on a busy machine sometimes fails with "context deadline exceeded".
# bash runs with the folder of the programs as $$0, the package as $$1, and the fuzz test as $$2.
.PHONY: fuzz-short
fuzz-short: ## run every fuzz test with 2,000 inputs, at most a few seconds, without compiling it for coverage
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	packages=$$(grep -rlE --include='*_test.go' '^func Fuzz' cmd internal | xargs -n1 dirname | sort -u | sed 's,^,./,'); \
	go test -c -ldflags=-s -o "$$work/" $$packages && for package in $$packages; do \
	  "$$work/$${package##*/}.test" -test.list '^Fuzz' | sed "s,^,$$package ,"; \
	done | xargs -n2 -P"$$(nproc)" bash -c 'cd "$$1" && output=$$("$$0/$${1##*/}.test" -test.run "^$$" -test.fuzz "^$$2\$$" -test.fuzztime 2000x \
	  -test.parallel 1 -test.fuzzcachedir "$$0/cache/$$1" </dev/null 2>&1) || { printf "%s %s\n%s\n" "$$1" "$$2" "$$output"; exit 1; }' "$$work"

# The detector needs cgo, and compiles everything once more.
.PHONY: race
race: export CGO_ENABLED := 1
race: ## run the tests of all packages that start goroutines under the race detector (needs gcc)
	go test -race -timeout 30m $$(grep -rlE --include='*.go' --exclude='*_test.go' '\bgo [a-zA-Z.]+\(|\.Go\(' internal | xargs -n1 dirname | sort -u | sed 's,^,./,')

# GO-2023-1901 is in Tekton's controller, and has no fix. This project uses Tekton's types and client.
.PHONY: govulncheck
govulncheck: ## look for known vulnerabilities in what the programs call (needs vuln.go.dev)
	@found=$$($(TOOL) govulncheck ./...) \
	  || [ "$$(sed -n 's/^Vulnerability #.*: //p' <<<"$$found")" = GO-2023-1901 ] || { echo "$$found"; exit 1; }

# A sample of an hour or more. The results are kept in bin/ by commit and seed: a call that was stopped continues.
SEED := 1
MUTANTS := 60
.PHONY: mutants
mutants: ## change MUTANTS=60 single lines, chosen by SEED=1, and list the changes that no test notices
	go run ./test/mutants -seed "$(SEED)" -n "$(MUTANTS)"

GOTESTSUM := $(TOOL) gotestsum
E2E_TIMEOUT := 75m
# E2E_FLAGS=-update writes docs/project/faults.md.
E2E_FLAGS ?=
E2E := $(GOTESTSUM) --format=standard-verbose -- -tags e2e -count=1
.PHONY: e2e
e2e: bin/localcluster bin/mlenv ## run the end-to-end tests on a fresh local cluster (root); E2E_KEEP_CLUSTER=1 uses the running cluster and keeps it
	$(SUDO) $(E2E) -timeout $(E2E_TIMEOUT) ./test/e2e $(E2E_FLAGS)

# A target for each value of E2E_SET. Only the first half also has the tests of the cluster itself.
E2E_RUN := TestCluster/(training|down)
e2e-half-1: E2E_RUN := TestCluster
e2e-nightly-1: E2E_RUN := TestCluster/(lifecycle|training|down)
.PHONY: e2e-half-1 e2e-half-2 e2e-nightly-1 e2e-nightly-2 faults-shared faults-nodes faults-services
e2e-half-1 e2e-half-2 e2e-nightly-1 e2e-nightly-2 faults-shared faults-nodes faults-services: bin/localcluster bin/mlenv
	$(SUDO) E2E_SET=$@ $(E2E) -timeout $(E2E_TIMEOUT) ./test/e2e -run '$(E2E_RUN)' $(E2E_FLAGS)

# What fails prints its seed.
.PHONY: chaos
chaos: bin/localcluster bin/mlenv ## strike a training on the local cluster with everything that chaos_test.go lists, as SEED=1 chooses (root)
	$(SUDO) E2E_SET=chaos SEED=$(SEED) $(E2E) -timeout $(E2E_TIMEOUT) ./test/e2e -run 'TestCluster/(training|down)'
chaos-%:
	$(MAKE) --no-print-directory chaos SEED=$*

# Every other part runs on the long-term release of Tekton.
.PHONY: e2e-newest-tekton
e2e-newest-tekton: bin/localcluster bin/mlenv
	$(SUDO) bin/localcluster down
	$(SUDO) bin/localcluster up --newest-tekton
	@trap '$(SUDO) bin/localcluster down' EXIT; $(SUDO) E2E_KEEP_CLUSTER=1 $(E2E) -timeout $(E2E_TIMEOUT) ./test/e2e \
	  -run 'TestCluster/(demo|training)/(steps-too-early|rank-fails|image-missing|timeout-too-short|cancelled|deleted|numbered-lines|restarted)$$'

FAULTS := faults-shared faults-nodes faults-services
.PHONY: faults
faults: ## run all scenarios of docs/project/faults.md, in three parts that can run one after another (root)
	@$(MAKE) --no-print-directory --keep-going -j1 $(FAULTS)

# Each part takes less than an hour on two cores. test/machines says what the conditions are, and shuffled runs the tests five times.
MACHINES := machines-used machines-bare machines-user machines-paths machines-one-core machines-one-thread \
  machines-shuffled-1 machines-shuffled-2 machines-shuffled-3 machines-shuffled-4
STRESS := stress-machines-shuffled stress-e2e-half-1 stress-e2e-half-2
NIGHTLY := race vet-darwin culprits frameworks try-without-torch release-snapshot e2e-nightly-1 e2e-nightly-2 e2e-newest-tekton $(FAULTS) chaos-1 chaos-4 chaos-8 $(MACHINES) $(STRESS)
.PHONY: nightly
nightly: ## run the parts that are slow or rarely fail; those that passed at this commit are not run again (root); nightly-PART runs one
	@test/parts $(NIGHTLY)
nightly-%:
	@test/parts $*

.PHONY: machines
machines: ## run the unit tests as on machines that differ: one core, another user, long paths, no network, a user's home and shell (root)
	@test/parts $(MACHINES)
machines-%: bin/mlenv
	test/machines $*

.PHONY: stress
stress: ## run the unit tests five times and the end-to-end tests once, in parts as nightly does, while endless loops keep all cores busy (root)
	@test/parts $(STRESS)
stress-%:
	test/busy $(MAKE) --no-print-directory --keep-going $*

REPEATS := stress-machines-shuffled-1 stress-machines-shuffled-2 machines-one-core-1 machines-one-core-2 machines-one-core-3 machines-one-core-4
.PHONY: repeats
repeats: ## run each unit test ten times while endless loops keep all cores busy, and twelve times on one core, in parts (root)
	@test/parts $(REPEATS)

# CULPRITS_FLAGS=-update writes the score into docs/project/culprits.md; -test.run chooses scripts.
CULPRITS_FLAGS :=
.PHONY: culprits
culprits: ## run scripts that fail under torchrun and DeepSpeed, and score the ranks and reasons that are named (root; 30 minutes)
	$(SUDO) test/culprits/run -test.timeout=60m $(CULPRITS_FLAGS)

# python3.12 is used if it is in PATH, as in the images, else python3. A set of versions takes 8 GB of disk while it is tested.
.PHONY: frameworks
frameworks: bin/mlenv ## train unchanged programs with the oldest and the newest transformers, Lightning and DeepSpeed (needs PyPI: 6 GB)
	go test -tags e2e -count=1 -v -timeout=120m ./test/frameworks

.PHONY: resolve
resolve: ## resolve the Python packages of every training image under the versions of its base
	go test -tags e2e -count=1 ./test/images

.PHONY: lock
lock: ## write the locks of the training images from their requirements (needs PyPI)
	go test -tags e2e -count=1 ./test/images -run TestPythonSetsResolve -update

# The packages take 5 GB.
bin/layouts/bin/accelerate: test/images/layouts/requirements.txt
	python3 -m venv bin/layouts
	DS_BUILD_OPS=0 bin/layouts/bin/pip install --quiet -r $<
	@touch $@

# CASES chooses cases of generate.py.
.PHONY: layouts
layouts: bin/layouts/bin/accelerate ## write the checkpoints of the real libraries again, and list their files in test/images/layouts (needs PyPI and strace)
	bin/layouts/bin/python test/images/layouts/generate.py $(CASES)

.PHONY: browser
browser: ## open the pages of receipts and of mlenv ui in Chromium
	go test -tags e2e -count=1 ./test/browser

# The end-to-end tests begin and end with localcluster down, so a running local cluster is lost, with its namespaces and claims.
.PHONY: test
test: ## run everything that CI runs; as root it installs missing Debian packages, and removes a running local cluster unless E2E_KEEP_CLUSTER=1
	@echo "make test installs those of these Debian packages that are missing, as root: $(DEBIAN_PACKAGES) $(TEST_PACKAGES)."
	@echo "Its end-to-end tests, also as root, remove a running local cluster, start their own, and remove that at the end."
	@echo "With E2E_KEEP_CLUSTER=1 they use the running cluster and keep it. make unit needs neither packages nor root."
	@$(MAKE) --no-print-directory -j2 setup-tests modules
	@# Resolving packages waits for the network, the linters for single packages.
	@$(MAKE) --no-print-directory -j2 --output-sync=target verify lint unit resolve browser
	@# After unit, which compiles what these need.
	@$(MAKE) --no-print-directory fuzz-short
	@$(MAKE) --no-print-directory e2e

.PHONY: generate
generate: ## rewrite generated files (params of Tasks, Pipelines and the Action, cluster file schema, reference pages and tables, go.mod and go.sum, formatting)
	go test ./internal/install/bundle -run TestParamsAreCurrent -update
	go test ./internal/cli/action -run TestInputsAreTheParams -update
	go test ./internal/cluster -run 'Test(Schema|Reference)IsCurrent' -update
	go test ./internal/cli -run 'Test(Output)?ReferenceIsCurrent' -update
	go test ./internal/cli/runs -run TestJobSchemaIsCurrent -update
	go test ./internal/install/bundle -run TestReadmeTables -update
	go test ./internal/install -run TestRightsPageIsCurrent -update
	go mod tidy
	cd $(LOCALCLUSTER) && go mod tidy
	cd $(LOCALCLUSTER)/tools && go mod tidy
	cd cmd/steps/release/tools && go mod tidy
	cd cmd/steps/release/tools/goreleaser && go mod tidy
	cd test/tools && go mod tidy
	cd test/tools/lint && go mod tidy
	cd $(LOCALCLUSTER)/tools/newest && go mod tidy
	for kueue in $(LOCALCLUSTER)/tools/kueue-*; do (cd $$kueue && go mod tidy) || exit 1; done
	cd $(LOCALCLUSTER)/tools/peers && go mod tidy
	cd $(LOCALCLUSTER)/tools/mpi && go mod tidy
	gofmt -w cmd internal test

# zizmor is a program in a Python package; pip verifies its hash.
bin/zizmor/bin/zizmor: test/tools/requirements.txt
	python3 -m venv bin/zizmor
	bin/zizmor/bin/pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes --requirement=$<
	@touch $@

# Without programs that only some machines have, and without questions to GitHub: the same result everywhere.
WORKFLOWS := $(wildcard .github/workflows/*.yml docs/examples/github/*.yml)
.PHONY: workflows
workflows: bin/zizmor/bin/zizmor ## check the workflows, the examples for GitHub and action.yml with actionlint and zizmor (needs PyPI once)
	$(TOOL) actionlint -shellcheck= -pyflakes= $(WORKFLOWS)
	bin/zizmor/bin/zizmor --offline --no-progress --quiet .github action.yml $(filter docs/%,$(WORKFLOWS))

# A licence line in each file of a language that is ours; lines that programs want first stay first. Files of testdata stay as they are.
HEADER := SPDX-License-Identifier: Apache-2.0
NOT_OURS := (^|/)testdata/|^\.ci/|/scc/stock\.yaml$$
.PHONY: headers
headers: ## write the licence's line into Go, Python, YAML and shell files and Dockerfiles that lack it
	@git ls-files '*.go' | grep -Ev '$(NOT_OURS)' | xargs -d '\n' grep -LxF '// $(HEADER)' | xargs -rd '\n' sed -i '1i// $(HEADER)\n'
	@{ git ls-files '*.py' '*.sh' '*.yaml' '*.yml' '*Dockerfile'; git grep -lE '^#!/' -- ':!*.*'; } | sort -u | grep -Ev '$(NOT_OURS)' \
	  | xargs -d '\n' grep -LxF '# $(HEADER)' | while read -r file; do \
	    [ -L "$$file" ] || sed -i -E -e '1{/^#(!| yaml-language-server| syntax=)/{a# $(HEADER)' -e 'b};i# $(HEADER)' -e '}' "$$file"; \
	  done

.PHONY: verify
verify: workflows ## fail if generate would change something, or if workflows, examples or catalog entries break a rule
	go test ./internal/cluster -run 'Test(Schema|Reference)IsCurrent'
	go test ./internal/cli -run 'Test(Output)?ReferenceIsCurrent'
	go test ./internal/cli/runs -run TestJobSchemaIsCurrent
	$(UNIT) ./internal/install/bundle -run 'TestReadmeTables|TestCatalog|TestOneVersion|TestUpdates|TestCommunity|Test.*Example'
	$(UNIT) ./internal/cli/action -run 'TestExamples|TestAccountOfTheAction|TestVersionOfBranches'
	go mod tidy -diff
	cd $(LOCALCLUSTER) && go mod tidy -diff
	cd $(LOCALCLUSTER)/tools && go mod tidy -diff
	cd cmd/steps/release/tools && go mod tidy -diff
	cd cmd/steps/release/tools/goreleaser && go mod tidy -diff
	cd test/tools && go mod tidy -diff
	cd test/tools/lint && go mod tidy -diff
	cd $(LOCALCLUSTER)/tools/newest && go mod tidy -diff
	for kueue in $(LOCALCLUSTER)/tools/kueue-*; do (cd $$kueue && go mod tidy -diff) || exit 1; done
	cd $(LOCALCLUSTER)/tools/peers && go mod tidy -diff
	cd $(LOCALCLUSTER)/tools/mpi && go mod tidy -diff
	@unformatted=$$(gofmt -l cmd internal test); [ -z "$$unformatted" ] || { echo "not formatted: $$unformatted"; exit 1; }

.PHONY: cluster
cluster: setup bin/localcluster ## start or repair the local cluster
	$(SUDO) bin/localcluster up $(UP_FLAGS)

.PHONY: cluster-down
cluster-down: bin/localcluster ## remove the local cluster
	$(SUDO) bin/localcluster down

.PHONY: try
try: bin/mlenv ## train a small transformer on two nodes of this machine, without root and without a cluster
	@test/try

# make e2e runs it where the python3 in PATH has torch.
.PHONY: try-without-torch
try-without-torch: ## run make try in a fresh clone with an empty home, where pip has to install torch (0.3 to 3 GB)
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; mkdir "$$work/home" && python3 -m venv "$$work/python" && git clone --quiet . "$$work/clone" && \
	  GOCACHE="$$(go env GOCACHE)" GOMODCACHE="$$(go env GOMODCACHE)" HOME="$$work/home" PATH="$$work/python/bin:$$PATH" $(MAKE) -C "$$work/clone" try

.PHONY: demo
demo: ## start the local cluster, build an image on it and train a small transformer on two of its nodes
	@echo "This compiles Kubernetes, the build API and mlenv, and starts a cluster with two nodes. Then it builds a"
	@echo "training image on the cluster, compiles Tekton at the same time, and trains a small transformer on two nodes."
	@echo "On two cores, the first time takes 10 to 30 minutes, later times 2 to 5. Progress is shown throughout."
	@# Without bin/mlenv: both would compile what they share. After it, mlenv compiles little while the cluster starts.
	@$(MAKE) --no-print-directory -j3 setup modules bin/localcluster
	@$(MAKE) --no-print-directory -j2 cluster bin/mlenv UP_FLAGS="--tekton=false --tkn=false --networks=false --training-image=false"
	$(SUDO) test/localcluster/demo/run

# The name of the run is the README's.
.PHONY: picture
picture: bin/mlenv setup-tests ## draw the README's picture: the report of its run that fails
	work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; export XDG_DATA_HOME="$$work"; \
	bin/mlenv run ./internal/cli/runs/testdata/fails train.py --local --ranks-per-node=2 --run-name=local-b9vmf; \
	bin/mlenv receipt local-b9vmf --html="$$work/report.html" && \
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,590 --screenshot=docs/report.png "file://$$work/report.html"

# Each benchmark prints the median of BENCH_RUNS runs.
BENCH_RUNS := 3
BENCH_FLAGS :=
BENCH = $(SUDO) go test -tags e2e -run='^$$' -timeout=0 ./test/bench $(BENCH_FLAGS) -benchtime=$(BENCH_RUNS)x -bench

.PHONY: bench
bench: setup bin/localcluster ## run every benchmark, on a machine without a running cluster; remove the cluster at the end
	@trap '$(MAKE) --no-print-directory cluster-down' EXIT; $(MAKE) --no-print-directory bench-cold bench-cluster bench-train

.PHONY: bench-cold
bench-cold: BENCH_RUNS := 1
bench-cold: setup bin/localcluster ## time up with empty caches
	$(BENCH)=ColdUp

.PHONY: bench-cluster
bench-cluster: setup bin/localcluster ## time up, a PipelineRun and down
	$(BENCH)=Cluster

.PHONY: bench-train
bench-train: cluster ## start the local cluster, time logs, starts and the pipeline on it, and keep it; BENCH_FLAGS=-update writes test/bench/results
	$(BENCH)='Logs|Start|Pipeline'

.PHONY: bench-local
bench-local: bin/mlenv ## compare runs on this machine with torchrun, by the torch of the python3 in PATH; BENCH_FLAGS=-update writes test/bench/results
	go test -tags e2e -run='^$$' -timeout=0 ./test/bench $(BENCH_FLAGS) -benchtime=5x -bench='Local|Hook'

.PHONY: bench-resume
bench-resume: bin/mlenv bin/layouts/bin/accelerate ## stop and kill a Trainer of transformers under mlenv run --local and under torchrun (needs PyPI once); BENCH_FLAGS=-update writes test/bench/results
	PATH="$(CURDIR)/bin/layouts/bin:$$PATH" go test -tags e2e -run='^$$' -timeout=0 ./test/bench $(BENCH_FLAGS) -benchtime=$(BENCH_RUNS)x -bench='Resume$$'

.PHONY: bench-peers
bench-peers: BENCH_RUNS := 5
bench-peers: UP_FLAGS := --peers
bench-peers: MORE_PACKAGES := rsync
bench-peers: cluster ## compare with Kubeflow Trainer, MPI Operator and other ways to copy files, on the local cluster (needs PyPI); BENCH_FLAGS=-update writes test/bench/results
	$(BENCH)='Peers|Sync|ResumeOnCluster'

BENCH_SCALE = go test -run='^$$' -timeout=0 ./test/bench/scale $(BENCH_FLAGS) -benchtime=1x -bench

.PHONY: bench-scale
bench-scale: ## measure the steps with 8 to 512 nodes, without a cluster; BENCH_FLAGS=-update writes test/bench/results
	$(BENCH_SCALE)='Scale$$'

# The processes have a network of their own, so a running local cluster does not matter. MLENV_BENCH_NODES=8,64 measures other numbers.
.PHONY: bench-scale-cluster
bench-scale-cluster: bin/localcluster ## measure the steps with 8 to 512 nodes on the local cluster's control plane; BENCH_FLAGS=-update writes test/bench/results
	$(BENCH_SCALE)='ScaleOnCluster$$'

.PHONY: steps-image
steps-image: go ## push the steps image to PUSH=REGISTRY/REPOSITORY, and print it by digest for mlenv install
	@cmd/steps/release/steps-image "$(PUSH)"

# The toolchain of go.mod, because another one compiles different bytes.
.PHONY: pin release licenses
pin release licenses: export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)
pin: licenses ## write the version and the steps image's digest into tasks/ and pipelines/, to commit and tag (VERSION=v1.2.3)
	cmd/steps/release/pin "$(VERSION)"

# No commit contains its own hash, so examples that name a commit are written after it is tagged.
.PHONY: pin-examples
pin-examples: ## write a tagged version and its commit into examples and pages, to commit on main (VERSION=v1.2.3)
	cmd/steps/release/pin-examples "$(VERSION)" "$$(git rev-parse --verify "$(VERSION)^{commit}")"

release: licenses bin/cyclonedx-gomod ## build the files of release VERSION=v1.2.3 in dist/ and bin/release/files (RELEASE_FLAGS=--snapshot to try it, --push to publish)
	cmd/steps/release/release "$(VERSION)" $(RELEASE_FLAGS)

# All but what GitHub and Sigstore do.
.PHONY: release-snapshot
release-snapshot:
	$(MAKE) --no-print-directory release VERSION=v0.0.0-nightly RELEASE_FLAGS=--snapshot

# The same file wherever it is compiled: a bill of materials names the tool that wrote it by its hash.
bin/go-licenses: PACKAGE := github.com/google/go-licenses/v2
bin/cyclonedx-gomod: PACKAGE := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
bin/go-licenses bin/cyclonedx-gomod: cmd/steps/release/tools/go.mod
	@mkdir -p bin
	CGO_ENABLED=0 GOFLAGS= go build -C cmd/steps/release/tools -trimpath -buildvcs=false -o "$(CURDIR)/$@" $(PACKAGE)

# One folder for the steps image, and one for mlenv on each system, which links other modules. go-licenses fails for a module without a
# licence, and knows nothing of Go's own library. What it says of assembly is no news.
licenses: bin/go-licenses ## collect the licences of what is linked into the programs in bin/licenses
	@rm -rf bin/licenses
	@save() { GOOS=$$1 GOARCH=amd64 CGO_ENABLED=0 GOFLAGS= GOROOT="$$(go env GOROOT)" bin/go-licenses save "$${@:3}" --save_path="bin/licenses/$$2" 2>bin/licenses.log \
	    || { cat bin/licenses.log; exit 1; }; \
	  mkdir -p "bin/licenses/$$2/std"; cp "$$(go env GOROOT)/LICENSE" "bin/licenses/$$2/std/"; }; \
	mkdir -p bin/licenses && save linux steps ./cmd/steps ./cmd/mlenv-agent && save linux mlenv-linux ./cmd/mlenv && save darwin mlenv-darwin ./cmd/mlenv

# The targets of the earlier scripts act on environments of a cluster. None is called by a target of this file.
include clusters/from-scripts.mk
