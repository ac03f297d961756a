// Package watch examines the host continuously in an agent.
//
// Every ten seconds it reads the kernel's files (tier 0) and the counts of cheap
// tracepoints (tier 1), and the rules judge these facts. The tracepoints count drains of
// LRU batches, reclaims of memory cgroups, and removed control groups. A suspicious fact
// starts a burst (tier 2): a full examination of a few seconds. There is at most one burst
// in some minutes, and bursts become rarer while they find nothing. Findings begin and end
// as events, and facts are metrics; both are stored for a week.
//
// The package bounds its own cost. It measures the CPU time that it uses, and examines
// less often if necessary to stay under one percent of one core, however large the host
// is (docs/doctor-fleet.md).
package watch
