#!/usr/bin/env bash
# Runs the generator of the pages (*.templ), in the version that go.mod names:
#   templ.sh generate          writes their Go files
#   templ.sh generate -check   fails if one of them is not up to date
#   templ.sh fmt DIR            formats the pages in a directory
# The generator has dependencies of its own, so go.mod does not list it as a tool.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

version=$(go list -m -f '{{.Version}}' github.com/a-h/templ)
exec go run "github.com/a-h/templ/cmd/templ@$version" "$@"
