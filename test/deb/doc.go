// Package deb tests the Debian package with dpkg, in a temporary root directory.
package deb
