// Package run tests `holdfast run` as people use it: the program itself, on a real
// engine.
package run
