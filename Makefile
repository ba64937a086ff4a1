# Wherry: `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin/wherry
TOOLS    := bin/tools
KUBE     := v1.37.2
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LINT     := v2.15.0
# Where `make up` keeps its node; a node of another place is VAR=value away.
DATA_DIR ?= /var/lib/wherry
RUN_DIR  ?= /run/wherry
UP_FLAGS ?=
# Memory is cheaper than time: the compiler and the linker collect garbage from 2 GiB on.
COMPILE  := GOGC=off GOMEMLIMIT=2GiB $(GO)
# Runtimes to compare with, in `make bench-cri`.
CONTAINERD ?= $(shell command -v containerd)

export CGO_ENABLED = 0
export WHERRY_DATA_DIR = $(DATA_DIR)
export WHERRY_RUN_DIR  = $(RUN_DIR)

VERSION_PKG := k8s.io/component-base/version
LDFLAGS := -s -w -X wherry.dev/internal/version.Version=$(VERSION) \
  -X $(VERSION_PKG).gitVersion=$(KUBE)+wherry -X $(VERSION_PKG).gitMajor=1 -X $(VERSION_PKG).gitMinor=37 \
  -X $(VERSION_PKG).gitTreeState=clean -X $(VERSION_PKG).buildDate=1970-01-01T00:00:00Z

.PHONY: help deps deps-test deps-race build images up cluster down purge faults upgrade test attack kills history race lint bench bench-api bench-cri bench-hollow bench-nodes bench-scheduler diff-apiserver diff-controllers diff-scheduler sim sim-scheduler conformance kubelet-specs kubelet-specs-v2 critest test-v2 fuzz clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort | expand -t 14

deps: ## install what a node needs from Debian: crun, runc, conmon, busybox, nftables, iproute2
	@packaging/deps.sh

deps-test: ## install what a node and its tests need from Debian: deps, and containernetworking-plugins
	@packaging/deps.sh test

build: ## build bin/wherry, and bin/wherry-cni: the CNI plugins alone
	$(COMPILE) build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/wherry
	$(COMPILE) build -ldflags '$(LDFLAGS)' -o $(BIN)-cni ./cmd/wherry-cni

images: deps ## build the demo images into out/images
	@$(GO) run ./test/images/build out/images

up: deps build images ## start a node, run examples/web.yaml, show the waterfall of its start
	@examples/up.sh $(BIN) out/images $(UP_FLAGS)

cluster: build images ## a cluster of NODES (3) nodes in network namespaces, SERVERS (1) of them servers, until it is interrupted: make cluster [NODES=4 SERVERS=3] [CLUSTER_FLAGS="-routed 2"]
	@$(GO) run ./test/cluster/run -nodes $(or $(NODES),3) -servers $(or $(SERVERS),1) -images out/images $(CLUSTER_FLAGS) $(BIN)

faults: build ## let servers and nodes fail at random moments under load, FAULTS (20) times, and check: make faults [FAULTS=100] [FAULTS_SEED=…] [FAULTS_ONLY=killed]
	@FAULTS=$(or $(FAULTS),20) FAULTS_SEED=$(FAULTS_SEED) FAULTS_ONLY="$(FAULTS_ONLY)" $(GO) test -count=1 -timeout 0 -v -run 'TestFaults$$' ./test/e2e

down: ## stop the node and what runs on it
	@$(BIN) down

purge: ## stop the node and remove its data
	@$(BIN) down --purge

upgrade: build ## give a cluster of several servers that an older wherry runs this one, under load: make upgrade UPGRADE_FROM=/path/to/older
	@if [ -z "$(UPGRADE_FROM)" ]; then echo "SKIP: upgrade needs an older program: make upgrade UPGRADE_FROM=/path/to/wherry"; \
	else UPGRADE_FROM="$(UPGRADE_FROM)" $(GO) test -count=1 -timeout 0 -v -run 'TestUpgrade$$' ./test/e2e; fi

test: deps-test build ## all tests, as root; .ci/run calls exactly this
	@test/run.sh

attack: deps build ## hostile pods beside healthy ones, each for ATTACK_TIME (30s); a short form is part of make test
	ATTACK_TIME=$(or $(ATTACK_TIME),30s) $(GO) test ./test/e2e -run '^TestAttack$$' -count=1 -v -timeout 2h

kills: deps build ## kill -9 at random moments, among pods and among workloads: make kills [KILLS=100] [SEED=1]; a short form is part of make test
	KILLS=$(or $(KILLS),100) $(GO) test ./test/e2e -run 'AtRandomMoments' -count=1 -v -timeout 2h

history: build ## two API servers on three members of etcd, killed KILLS (100) times, and a checker over what clients saw; a short form is part of make test
	KILLS=$(or $(KILLS),100) $(GO) test ./test/history -run '^TestHistory$$' -count=1 -v -timeout 2h

deps-race: ## install a C compiler from Debian, for the race detector
	@packaging/deps.sh race

race: deps-race ## a million requests to the API server under the race detector: make race [REQUESTS=1000000] [SEED=3]
	CGO_ENABLED=1 REQUESTS=$(or $(REQUESTS),1000000) SEED=$(SEED) $(GO) test -race ./internal/apiserver -run '^TestNobodyChangesWhatIsShared$$' -count=1 -v -timeout 5h

lint: $(TOOLS)/golangci-lint-$(LINT) ## golangci-lint, and the go.mod of each module is tidy
	$< run ./...
	for mod in go.mod examples/*/go.mod; do (cd $$(dirname $$mod) && $(GO) mod tidy -diff) || exit 1; done

$(TOOLS)/golangci-lint-$(LINT):
	@mkdir -p $(TOOLS)
	GOBIN=$(CURDIR)/$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT)
	@mv $(TOOLS)/golangci-lint $@

bench: deps build images ## measure a fresh node: start, batch, restart, delete, idle
	$(GO) run ./test/bench $(BENCH_FLAGS) $(BIN)

bench-api: build ## measure the API server beside upstream's: make bench-api [KUBE_APISERVER=/path ETCD=/path] [BENCH_FLAGS="-phases throughput,lists"]
	$(GO) run ./test/bench/api $(BENCH_FLAGS) -kube-apiserver "$(KUBE_APISERVER)" -etcd "$(ETCD)" $(abspath $(BIN))

bench-scheduler: build ## measure the scheduler on 5,000 nodes beside upstream's: make bench-scheduler [KUBE_SCHEDULER=/path] [BENCH_FLAGS="-cases basic -rounds 5"]
	$(GO) run ./test/bench/scheduler $(BENCH_FLAGS) -kube-scheduler "$(KUBE_SCHEDULER)" $(abspath $(BIN))

bench-nodes: build ## clusters of several nodes: joining, ways between pods, a server that dies: make bench-nodes [FLANNEL=/path FLANNEL_CNI=/path] [BENCH_FLAGS="-phases way -modes vxlan"]
	$(GO) run ./test/bench/nodes $(BENCH_FLAGS) -flannel "$(FLANNEL)" -flannel-cni "$(FLANNEL_CNI)" $(abspath $(BIN))

bench-hollow: build ## a Deployment on hollow nodes, rolled, losing nodes, drained: make bench-hollow [BENCH_FLAGS="-nodes 5000 -heartbeat 40s"]
	$(GO) run ./test/bench/hollow $(BENCH_FLAGS) $(abspath $(BIN))

diff-apiserver: build ## ask our API server and upstream's the same: make diff-apiserver KUBE_APISERVER=/path ETCD=/path [DIFF_FLAGS="-kinds Pod -words"]
	@if [ -z "$(KUBE_APISERVER)" ] || [ -z "$(ETCD)" ]; then echo "SKIP: diff-apiserver needs upstream's API server and an etcd: make diff-apiserver KUBE_APISERVER=/path/to/kube-apiserver ETCD=/path/to/etcd"; \
	else $(GO) run ./test/differential/api -kube-apiserver "$(KUBE_APISERVER)" -etcd "$(ETCD)" $(DIFF_FLAGS) $(abspath $(BIN)); fi

diff-controllers: build ## let our controllers and upstream's work on the same objects: make diff-controllers KUBE_CONTROLLER_MANAGER=/path [SCENES=20] [SEED=1] [DIFF_FLAGS="-only job,service"]
	@if [ -z "$(KUBE_CONTROLLER_MANAGER)" ]; then echo "SKIP: diff-controllers needs upstream's controllers: make diff-controllers KUBE_CONTROLLER_MANAGER=/path/to/kube-controller-manager"; \
	else $(GO) run ./test/differential/controllers -kube-controller-manager "$(KUBE_CONTROLLER_MANAGER)" -scenes $(or $(SCENES),20) -seed $(or $(SEED),1) $(DIFF_FLAGS) $(abspath $(BIN)); fi

diff-scheduler: build ## ask our scheduler and upstream's about the same pods: make diff-scheduler KUBE_SCHEDULER=/path [CLUSTERS=20] [SEED=1] [DIFF_FLAGS=-groups]
	@if [ -z "$(KUBE_SCHEDULER)" ]; then echo "SKIP: diff-scheduler needs upstream's scheduler: make diff-scheduler KUBE_SCHEDULER=/path/to/kube-scheduler"; \
	else $(GO) run ./test/differential -kube-scheduler "$(KUBE_SCHEDULER)" -clusters $(or $(CLUSTERS),20) -seed $(or $(SEED),1) $(DIFF_FLAGS) $(abspath $(BIN)); fi

bench-cri: deps build ## measure the runtime beside containerd: make bench-cri [CONTAINERD=/path,/other]
	$(GO) run ./test/bench/cri $(BENCH_FLAGS) -containerd "$(CONTAINERD)" $(BIN)

sim: ## lives of pods in virtual time: make sim LIVES=100000 SEED=1; LIVES=1 prints all of one
	LIVES=$(or $(LIVES),20000) SEED=$(or $(SEED),1) GODEBUG=adaptivestackstart=1 $(GO) test ./test/sim -run '^TestLives$$' -count=1 -v -timeout 10h

sim-scheduler: ## random clusters in virtual time: make sim-scheduler LIVES=1000 SEED=1
	LIVES=$(or $(LIVES),500) SEED=$(or $(SEED),1) $(GO) test ./internal/scheduler -run 'TestLivesOfClusters|TestFaultsOf' -count=1 -v -timeout 10h

conformance: build ## upstream's e2e specs: make conformance E2E_TEST=/path/to/e2e.test [AGNHOST=/path] [COREDNS=/path] [SAMPLE_APISERVER=/path ETCD=/path] [HOSTPATHPLUGIN=/path] [NODES=3 SERVERS=1] [CONFORMANCE_FLAGS=-focus=…]
	@if [ -z "$(E2E_TEST)" ]; then echo "SKIP: conformance needs upstream's test binary: make conformance E2E_TEST=/path/to/e2e.test AGNHOST=/path/to/agnhost"; \
	else $(GO) run ./test/conformance -agnhost "$(AGNHOST)" -coredns "$(COREDNS)" -sample-apiserver "$(SAMPLE_APISERVER)" -etcd "$(ETCD)" -hostpathplugin "$(HOSTPATHPLUGIN)" $(if $(NODES),-nodes $(NODES) -focus '\[Conformance\]' -skip '\[Flaky\]') $(if $(SERVERS),-servers $(SERVERS)) $(CONFORMANCE_FLAGS) $(BIN) "$(E2E_TEST)" $(UP_FLAGS); fi

kubelet-specs: build ## upstream's specs of the kubelet alone: make kubelet-specs E2E_NODE_TEST=/path/to/e2e_node.test AGNHOST=/path [SAMPLE_DEVICE_PLUGIN=/path] [CONFORMANCE_FLAGS=-focus=…]
	@if [ -z "$(E2E_NODE_TEST)" ]; then echo "SKIP: kubelet-specs needs upstream's test binary: make kubelet-specs E2E_NODE_TEST=/path/to/e2e_node.test AGNHOST=/path/to/agnhost"; \
	else $(GO) run ./test/conformance -kubelet -procs 8 -focus '\[NodeConformance\]' -skip '\[Conformance\]|\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]|\[Feature:' -agnhost "$(AGNHOST)" -sample-device-plugin "$(SAMPLE_DEVICE_PLUGIN)" $(CONFORMANCE_FLAGS) $(BIN) "$(E2E_NODE_TEST)"; fi

kubelet-specs-v2: build ## the same on pure cgroup v2, with eight CPUs and two NUMA nodes, in a QEMU machine: hours; give -focus (same variables; SPECS_TIME=3h)
	@if [ -z "$(E2E_NODE_TEST)" ]; then echo "SKIP: kubelet-specs-v2 needs upstream's test binary: make kubelet-specs-v2 E2E_NODE_TEST=/path/to/e2e_node.test AGNHOST=/path/to/agnhost"; \
	else test/kubelet-specs-v2.sh $(BIN) "$(E2E_NODE_TEST)" "$(AGNHOST)" "$(SAMPLE_DEVICE_PLUGIN)" $(CONFORMANCE_FLAGS); fi

critest: build ## upstream's CRI tests: make critest CRITEST=/path/to/critest [CRITEST_FLAGS=-benchmark]
	@if [ -z "$(CRITEST)" ]; then echo "SKIP: critest needs upstream's test binary: make critest CRITEST=/path/to/critest"; \
	else $(GO) run ./test/critest -log out/critest.log $(BIN) "$(CRITEST)" $(CRITEST_FLAGS); fi

test-v2: ## the runtime's tests on pure cgroup v2, in a small QEMU machine: make test-v2 [V2_FLAGS="-run Stats"]
	@$(GO) run ./test/vm $(V2_FLAGS)

fuzz: ## each fuzz test for FUZZTIME (10s)
	@test/fuzz.sh $(or $(FUZZTIME),10s)

clean: ## remove what was built
	rm -rf bin out
