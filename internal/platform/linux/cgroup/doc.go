// Package cgroup finds, empties and watches control groups (cgroups(7)), on v2, on
// v1, and on hybrid hosts with the v2 hierarchy beside v1 controllers.
package cgroup
