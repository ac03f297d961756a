// Package doctor tests `holdfast doctor` as people use it, where something is
// missing, hostile or in the way: the program itself, on a real kernel and engine.
package doctor
