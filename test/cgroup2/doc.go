// Package cgroup2 has only tests: killing containers on a host that has nothing
// but cgroup v2, which not every machine that runs the tests is. They run in a
// virtual machine without a container engine and make the containers
// themselves: processes in namespaces and control groups, and as an engine,
// processes that are called as its own are.
package cgroup2
