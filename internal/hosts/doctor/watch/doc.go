// Package watch is the part of the doctor that is always on in an agent.
//
// Every ten seconds it reads the kernel's files (tier 0) and what the kernel counted
// at tracepoints that cost next to nothing (tier 1: drains of LRU batches, reclaims
// of memory cgroups, removed control groups), and has the rules judge that. What
// looks suspicious is looked at more deeply for a few seconds (tier 2), by the
// doctor's own examination, at most once in some minutes, and more seldom where
// nothing was found. Findings begin and end as events; facts are metrics; both are
// kept for a week.
//
// It bounds itself: it measures the CPU time that it takes, and looks so much more
// seldom that it stays under one percent of one core, however large the host is
// (docs/doctor-fleet.md).
package watch
