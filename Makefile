# meshlog. `make help` says what there is; tools are pinned in
# deploy/tools/versions.env and installed on first use.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Go of go.work, also where the user's own is older; the go command fetches it.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.work)+auto

# How long each fuzz test runs, and how many schedules of failures `sim` tries.
FUZZTIME ?= 30s
SEEDS ?= 1000

# Every module of go.work. e2e drives what `build` leaves in bin/, which go's
# test cache does not see: it is kept apart and never cached.
MODULES := proto proto/jsapi deploy/testkit events store services deploy/e2e
UNITS := ./proto/... ./deploy/testkit/... ./events/... ./store/... ./services/...
E2E := ./deploy/e2e/...
# Programs that only tests run, each apart.
TOOL_MODULES := deploy/e2e/tools/promql deploy/e2e/tools/kustomize deploy/e2e/tools/nacosprovider

TOOL := deploy/tools/get
# Shows how far a long step is.
PROGRESS := deploy/tools/progress

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## All programs, into bin/
	@mkdir -p bin
	@$(PROGRESS) bin/ 'build all programs of meshlog' go build -v -o bin/ ./services/cmd/...

.PHONY: build-faults
build-faults: # Those that a test can end at any of their steps, into bin/faults/
	@mkdir -p bin/faults
	@$(PROGRESS) bin/faults/ 'build the programs that a test can end at any step' \
	  go build -v -tags faults -o bin/faults/ ./services/cmd/builder ./services/cmd/frontend ./services/cmd/watcher-file ./services/internal/failpoint/points

# Programs and data of others. A target names as prerequisites those that it
# runs: tool-envoy is Envoy.
API_SERVER := tool-etcd tool-kube-apiserver tool-istio-crds tool-gateway-crds
TEST_TOOLS := tool-envoy tool-nats-server $(API_SERVER) tool-kustomize

.PHONY: tools
tools: $(TEST_TOOLS) ## Fetch or build what `make test` runs besides bin/: Envoy, a NATS server, a Kubernetes API server

SPIRE := tool-spire-server tool-spire-agent # `make test` does not build them
REGISTRIES := tool-consul tool-rnacos tool-istiod tool-istio-agent # nor these

.PHONY: $(TEST_TOOLS) $(SPIRE) $(REGISTRIES)
$(filter-out tool-kustomize,$(TEST_TOOLS)) $(SPIRE) $(REGISTRIES): tool-%:
	@$(TOOL) $* >/dev/null

tool-kustomize: # The modules of a program that tests build where they reach no network
	@cd deploy/e2e/tools/kustomize && GOWORK=off go mod download

.PHONY: test
test: test-plan build build-faults $(TEST_TOOLS) ## All tests, those with a real Envoy, NATS server and API server included
	go test -p 2 -timeout 20m $(UNITS)
	go test -p 2 -tags mutants -run Without ./services/mesh/fold ./services/suite/faultsim
	go test -p 2 -count=1 -timeout 20m $(E2E)
	cd deploy/e2e/tools/promql && GOWORK=off go test ./...

.PHONY: test-plan
test-plan: # What `test` builds first, and how long that takes
	@echo 'make test builds first, on two cores:'
	@echo '  bin/             build all programs of meshlog (2 minutes; seconds if Go has cached them)'
	@echo '  bin/faults/      build the programs that a test can end at any step (20 s)'
	@$(TOOL) plan envoy nats-server etcd kube-apiserver
	@echo '  tests            build (3 minutes if Go has cached nothing), then run'

.PHONY: test-faults
test-faults: build build-faults tool-envoy tool-nats-server ## Everything dies in every way, some 27 minutes; needs root
	go test -tags faults -count=1 -timeout 60m -v ./deploy/e2e/faults
	go test -tags faults -count=1 -run TestEnvoyUID ./services/roles/agent

.PHONY: test-console
test-console: ## The web console in a real Chromium (Debian's package chromium), one minute
	go test -tags console -count=1 -timeout 10m -run '^TestBrowser$$' -v ./services/console/web

.PHONY: test-spire
test-spire: tool-envoy tool-spire-server tool-spire-agent ## Two Envoys with certificates of a real SPIRE, two minutes; building SPIRE takes some 13 more, once
	go test -tags spire -count=1 -timeout 20m -run 'SPIRE$$' -v ./services/suite/securemesh

# The tests behind the build tag `registries`. Each server is built once into the cache.
# What SHORT=1 leaves out of test-registries: the demo, which .ci/run runs by itself,
# figures, minutes of load, and waits of a minute.
LONG_REGISTRIES := DemoRegistries|Load|Performance|Emptied|InstancesChange|ConsulChanges|MCPChanges

.PHONY: test-registries
test-registries: test-registries-plan build tool-envoy tool-etcd tool-kube-apiserver tool-istio-crds $(REGISTRIES) ## Tests with a real Consul, Nacos server, istiod and Istio agent, at most 20 minutes, less with SHORT=1; building them takes some 25 more, once
	timeout 20m go test -p 2 -tags registries -count=1 -timeout 20m $(if $(SHORT),-skip '$(LONG_REGISTRIES)') \
	  $$(git grep -l '^//go:build registries$$' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|')
	go test -tags istioagent -count=1 -timeout 5m -run '^TestRealIstioAgent$$' ./services/suite/securemesh

.PHONY: test-registries-plan
test-registries-plan:
	@$(TOOL) plan consul rnacos istiod istio-agent

# How long test-attacks attacks: half of it on one NATS server, half on three. It
# takes some 40 s besides. Random attacks are seeded: `go test ... -args -seed N`
# with the N that it prints repeats them.
DURATION ?= 10m

.PHONY: test-attacks
test-attacks: build tool-envoy tool-nats-server ## Attackers with a frontend's key, a watcher's key and none, for DURATION (10m)
	go test -tags faults -count=1 -timeout 60m -run '^TestAttacks$$' -v ./deploy/e2e/faults -args -attack=$(DURATION)

.PHONY: race
race: tool-envoy $(API_SERVER) ## The modules' tests under the race detector
	go test -p 2 -race -timeout 40m -skip 'MemoryUnderAttack$$' $(UNITS) # the detector takes memory itself

.PHONY: check
check: check-tree check-ids lint check-proto check-modules check-vulns ## All that must hold besides tests

.PHONY: check-tree
check-tree: # Formatting; nothing unfinished, no path of one machine.
	@echo 'check: tree'
	@out=$$(git ls-files -- '*.go' | xargs gofmt -l); [ -z "$$out" ] || { echo "not gofmt'ed: $$out"; exit 1; }
	@! git grep -InwE 'TO[D]O|FIX[M]E|XX[X]' -- . ':!LICENSE' || { echo 'finish it, or take the word away'; exit 1; }
	@! git grep -InE '/(home|root|Users)/[A-Za-z0-9_.]' -- . || { echo 'a path of one machine does not belong in the tree'; exit 1; }
	@! git grep -InF -e '$(CURDIR)/' -- . || { echo 'a path of this machine does not belong in the tree'; exit 1; }

.PHONY: check-ids
check-ids: # Each ID that the tree cites, such as SE-9, has a row in a table.
	@echo 'check: ids'
	@go test -count=1 -run '^TestIDs$$' ./services

.PHONY: rows
rows: ## Each row of the configuration API with its tests, and last those without
	@go test -count=1 -v -run '^TestRowsHaveTests$$' ./services -rows | grep -v -e '^=== ' -e '^--- PASS' -e '^PASS' -e '^ok '

.PHONY: lint
lint: ## golangci-lint over every module
	@echo 'check: lint'
	@$$($(TOOL) golangci-lint) run --allow-serial-runners $$(go list -m -f '{{.Dir}}/...')

# govulncheck takes no workspace: it gets the module that has all programs.
VULNCHECK = GOWORK=off $$($(TOOL) govulncheck) -C services

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities in what our programs call, by the newest database
	@$(VULNCHECK) -db "$$($(TOOL) vulndb latest)" ./cmd/...

.PHONY: check-vulns
check-vulns: # The same by the pinned database: a check of one commit must not change from day to day.
	@echo 'check: vulnerabilities'
	@$(VULNCHECK) -db "$$($(TOOL) vulndb)" ./cmd/...

.PHONY: check-proto
check-proto: # The words on the wire: style, compatibility, and the Go made of them.
	@echo 'check: proto'
	@cd proto && buf=$$(../$(TOOL) buf) && $$buf lint && $$buf breaking --against image.binpb
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(MAKE) --no-print-directory generate OUT="$$tmp"; \
	for f in $$(cd "$$tmp" && find . -name '*.go'); do \
	  diff -u "proto/$$f" "$$tmp/$$f" >/dev/null || { echo "proto/$$f is not what its .proto says: make generate"; exit 1; }; done; \
	for f in $$(git ls-files 'proto/*.pb.go'); do \
	  [ -e "$$tmp/$${f#proto/}" ] || { echo "$$f has no .proto any more: remove it"; exit 1; }; done

.PHONY: check-modules
check-modules: # Each module stands alone, and its go.mod says exactly what it needs.
	@for m in $(MODULES) $(TOOL_MODULES); do echo "check: $$m"; \
	  (cd $$m && GOWORK=off go mod tidy -diff && GOWORK=off go vet ./...); done

.PHONY: generate
generate: OUT := .
generate: ## Go from proto/
	@cd proto && buf=$$(../$(TOOL) buf) && plugin=$$(../$(TOOL) protoc-gen-go) && \
	PATH="$$(dirname "$$plugin"):$$PATH" $$buf generate -o '$(OUT)'

.PHONY: image
image: ## Accept the .proto files as they are: later ones may not break them
	@cd proto && $$(../$(TOOL) buf) build --exclude-source-info -o image.binpb

.PHONY: golden
golden: build build-faults $(TEST_TOOLS) ## Rewrite the golden files; look at the diff
	@for d in $$(git grep -lE 'flag\.Bool\("update"' -- '*_test.go' | xargs -r -n1 dirname | sort -u); do \
	  go test "./$$d" -update; done

.PHONY: fuzz
fuzz: ## Each fuzz test for FUZZTIME (30s)
	@git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | while IFS=: read -r file func; do \
	  go test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME); done

.PHONY: sim
sim: ## SEEDS (1000) schedules of failures against the real parts, as many with forged records, and a third as many with rollouts and with operators who sign
	go test ./services/suite/faultsim -count=1 -timeout 0 -run '^Test(Sim|Forged|Rollouts|Signed)$$' -v -args -seeds=$(SEEDS)

.PHONY: bench
bench: build tool-envoy tool-nats-server $(API_SERVER) ## Benchmarks; save to ACK, stage by stage; many proxies beside the floor; storms; a Kubernetes cluster; keys, handshakes, policies and certificates
	@for d in $$(git grep -lE '^func Benchmark' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	  go test "./$$d" -run '^$$' -bench . -benchmem; done
	go build -o bin/ ./deploy/e2e/bench ./deploy/e2e/load
	bin/bench
	bin/load
	bin/load -mode delta -streams 500 -classes 1
	bin/load join
	bin/load kubernetes
	bin/load storm
	bin/load keys
	bin/load handshakes
	bin/load policies
	bin/load issuing

# The deployment of deploy/compose.yaml with images made here. Docker Compose is
# the pinned one, so that no plugin is needed.
COMPOSE = $$($(TOOL) docker-compose) --file deploy/compose.yaml

.PHONY: images
images: ## All images of the deployments: meshlog, NATS, Envoy, the shop
	@deploy/compose/images

.PHONY: up
up: images ## The compose deployment: deploy/README.md
	@deploy/compose/write-secrets >/dev/null
	@deploy/compose/join $(COMPOSE)
	$(COMPOSE) up --detach --wait

.PHONY: down
down: ## End the compose deployment; its data stays
	@# One after the other: engines before 20.10.27 may hang where several end at once (moby #46661).
	@docker ps --quiet --filter label=com.docker.compose.project=meshlog | xargs --no-run-if-empty -n 1 docker stop >/dev/null
	$(COMPOSE) --profile '*' down
	@docker volume ls --quiet --filter label=dev.meshlog.frontend-of=meshlog | xargs --no-run-if-empty docker volume rm >/dev/null

.PHONY: logs
logs: ## What the containers of the compose deployment say
	$(COMPOSE) logs --follow --tail 20

.PHONY: test-compose
test-compose: tool-consul tool-rnacos ## The compose deployment with a real Docker engine: registries, scale, kill, down and up
	@deploy/compose/images registries
	@$(TOOL) docker-compose >/dev/null # the time of the trial is limited, and this is none of it
	go run ./deploy/e2e/compose

# What the demos run is fetched and built at the same time.
.PHONY: demo
demo: ## A canary through a real Envoy, then everything dies and it goes on; 2 minutes to build, then 10 s
	@$(MAKE) --no-print-directory -j2 tool-envoy bin-demo
	@bin/demo

.PHONY: demo-kubernetes
demo-kubernetes: ## The same from kubectl apply on, with a real API server, which then dies; it takes minutes to build
	@$(MAKE) --no-print-directory -j2 tool-envoy $(API_SERVER) bin-demo
	@bin/demo kubernetes

.PHONY: demo-mesh
demo-mesh: ## HTTPS, mutual TLS, tokens and policies between real Envoys, a new CA root, then everything dies; 40 s once built
	@$(MAKE) --no-print-directory -j2 tool-envoy tool-nats-server build bin-demo
	@bin/demo mesh

.PHONY: demo-registries
demo-registries: ## A service moves from Consul to Nacos while both lose their data, and an istiod follows; 45 s once built (which takes some 30 minutes)
	@$(MAKE) --no-print-directory -j2 tool-envoy $(REGISTRIES) tool-etcd tool-kube-apiserver bin-demo
	@bin/demo registries

.PHONY: bin-demo
bin-demo: # The one program that the demos run, and what drives it
	@mkdir -p bin
	@$(PROGRESS) bin/meshlog 'build it and its driver bin/demo (2 minutes, after 98 MB of Go modules; seconds if Go has cached both)' \
	  go build -v -o bin/ ./services/cmd/meshlog ./deploy/e2e/demo

.PHONY: tidy
tidy: ## go mod tidy in every module, gofmt over all
	@for m in $(MODULES) $(TOOL_MODULES); do (cd $$m && GOWORK=off go mod tidy); done
	@git ls-files -- '*.go' | xargs gofmt -w
