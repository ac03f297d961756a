// Package dashboard has only tests: the pages in a real browser.
package dashboard
