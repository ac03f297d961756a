// Package pull tests `holdfast pull`: the program itself, a real engine, a real registry, and
// a proxy between them that injects faults.
package pull
