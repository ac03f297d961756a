# The main targets are up and test; both install missing packages.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: build dist demo-image up down test test-long test-short test-hosts test-exam lint bench-tools clean

build: ## bin/holdfast and bin/holdfast-bench, static programs
	@packaging/dev/build.sh bin/ $(VERSION) holdfast holdfast-bench

dist: ## dist/: static programs and Debian packages for amd64 and arm64
	@packaging/dev/dist.sh

demo-image: ## holdfast-demo:latest, built without a base image
	@packaging/dev/image.sh

up: ## an agent and a first session; with RUNSC=1 also a template under gVisor
	@packaging/dev/up.sh

down: ## stops what make up started
	@packaging/dev/down.sh

test: ## lint, and every test with the race detector
	@packaging/dev/test.sh

test-long: ## all cases of the tests that make test runs in part
	@packaging/dev/test.sh long

test-short: ## tests that need no engine
	@packaging/dev/test.sh short

test-hosts: ## the package on whole virtual machines; with UPDATE=1 it writes docs/hosts.md
	@go test -v -count=1 -timeout 12h -run Matrix ./test/hosts -machines

test-exam: ## the blind examination of the doctor on a virtual machine with cgroup v2 only; hours
	@go test -v -count=1 -timeout 24h -run Exam ./test/hosts -machines

lint:
	@packaging/dev/lint.sh

bench-tools: ## installs the programs that holdfast bench compares with
	@packaging/dev/bench-tools.sh

clean: ## removes built files, but not var/dev, which make down manages
	rm -rf bin dist
