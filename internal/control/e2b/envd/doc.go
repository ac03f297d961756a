// Package envd has the messages of the in-sandbox protocol of E2B's SDKs, and handlers for
// its Connect services. The .proto files are the project's own text; the names and numbers
// in them are the published protocol's. generate.sh makes the Go files.
package envd
