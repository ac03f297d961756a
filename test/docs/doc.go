// Package docs tests the pages: their links and names exist. test/deb tests their commands.
package docs
