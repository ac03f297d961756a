// Package deb tests the Debian package as dpkg and people use it, in a root
// directory of its own that is thrown away.
package deb
