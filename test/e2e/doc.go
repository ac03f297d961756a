// Package e2e has only tests: the whole product as a user has it, with a real
// engine, the real demo and a real browser.
package e2e
