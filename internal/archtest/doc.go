// Package archtest checks the architecture: which package may import which, the
// requirements for every package and file, and the packages that may start other
// programs. It has only tests.
package archtest
