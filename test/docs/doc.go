// Package docs tests the pages themselves: that what they link to and name is there.
// What they say about commands is tested in test/deb.
package docs
