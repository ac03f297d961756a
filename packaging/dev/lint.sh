#!/usr/bin/env bash
# Static checks, which need no engine and run no tests.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

unformatted=$(gofmt -l .)
[[ -z $unformatted ]] || die "not formatted: $unformatted" "run gofmt -w on them"
large=$(git ls-files -z | xargs -0 stat -c '%s %n' -- 2>/dev/null | awk '$1 > 2 * 1024 * 1024 { print $2 }')
[[ -z $large ]] || die "over 2 MB: $large" "remove built files from the repository"
# The same settings as those of the programs that the tests build, so that each dependency
# is compiled once without the race detector.
export CGO_ENABLED=0 GOFLAGS="$goflags"
packaging/dev/templ.sh generate -check -keep-orphaned-files -log-level error || die "the Go file of a page is not up to date" "run packaging/dev/templ.sh generate"
go vet ./...
go vet -tags grpcnotrace,manpages ./internal/control/cli
go tool staticcheck ./...
# packaging/deb is a separate module.
go -C packaging/deb vet ./...
need shellcheck=shellcheck
shellcheck -x -P SCRIPTDIR packaging/dev/*.sh bench/peers/*.sh examples/*/*.sh test/machine/*.sh .ci/run
shellcheck examples/mariadb/create examples/mariadb/recover examples/mariadb/replicated/{serve,restore,caught-up} packaging/deb/scripts/*
# Words and the length of sentences: test/docs/prose_test.go.
go test -vet=off -run 'TextsNameTheComponent|SentencesAreShort' ./test/docs
say "lint: clean"
