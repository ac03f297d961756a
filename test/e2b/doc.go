// Package e2b drives an agent with the unmodified SDKs of E2B, and with clients that
// generators make of its OpenAPI document.
package e2b
