// Package e2e tests the whole product with a real engine, the demo and a real browser.
package e2e
