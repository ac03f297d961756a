# make up and make test are the two to know; both install what is missing.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: build dist demo-image up down test test-long test-short lint bench-tools clean

build: ## bin/holdfast, one static binary
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/holdfast ./cmd/holdfast

dist: ## dist/: static programs and Debian packages for amd64 and arm64
	@packaging/dev/dist.sh

demo-image: ## holdfast-demo:latest, built here from nothing
	@packaging/dev/image.sh

up: ## an agent with a first session to open; RUNSC=1: and one under gVisor
	@packaging/dev/up.sh

down: ## stops what make up started
	@packaging/dev/down.sh

test: ## lint, and every test with the race detector
	@packaging/dev/test.sh

test-long: ## all cases of the tests of which make test has a part
	@packaging/dev/test.sh long

test-short: ## what needs no engine
	@packaging/dev/test.sh short

lint:
	@packaging/dev/lint.sh

bench-tools: ## the peers that holdfast bench compares with
	@packaging/dev/bench-tools.sh

clean: ## built files; var/dev belongs to make down
	rm -rf bin dist
