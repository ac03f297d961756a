// Package e2b drives an agent with the unmodified SDKs of E2B.
package e2b
