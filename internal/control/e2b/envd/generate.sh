#!/bin/sh
# Makes the Go files from the .proto files. It needs protoc, and
#   go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
#   go install connectrpc.com/connect/cmd/protoc-gen-connect-go@v1.21.1
set -eu
cd "$(dirname "$0")"
${PROTOC:-protoc} -I . --go_out=. --go_opt=paths=source_relative \
	--connect-go_out=. --connect-go_opt=paths=source_relative,package_suffix,simple=false \
	process.proto filesystem.proto
