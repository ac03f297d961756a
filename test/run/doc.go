// Package run tests `holdfast run`: the program itself, on a real engine.
package run
