// Package doctor tests the program `holdfast doctor` on a real kernel and engine: with
// missing privileges or features, hostile names, and interruptions.
package doctor
