// Package archtest checks the architecture: which package may import which,
// what every package and file has to have, and where other programs may be
// started. It has only tests.
package archtest
