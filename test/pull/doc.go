// Package pull tests `holdfast pull` as people use it: the program itself, a
// real engine, a real registry, and a proxy between them that goes wrong on
// demand.
package pull
