// Package cgroup2 tests killing containers on a host with cgroup v2 only. The tests run
// in a virtual machine without a container engine and create the containers themselves:
// processes in namespaces and control groups. Processes with the names of an engine's
// processes stand in for the engine.
package cgroup2
