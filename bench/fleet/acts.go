package fleet

import "strings"

// Act is a kind of fault or operation that the bench applies to a fleet.
type Act string

// The acts. Each ends with the fleet complete again. "Longer than the lease" is until
// longer after its TTL.
const (
	Notice          Act = "notice"           // a node drains and then takes sessions again
	Restart         Act = "restart"          // a node drains, its agent ends, another one starts
	AgentKilled     Act = "agent-killed"     // SIGKILL; another one starts a moment later
	Gone            Act = "gone"             // agent, deadman and containers at once; the machine comes back empty
	Stopped         Act = "stopped"          // SIGSTOP for longer than the lease, then SIGCONT
	DeadmanKilled   Act = "deadman-killed"   // SIGKILL of the node's deadman
	DeadmanStopped  Act = "deadman-stopped"  // SIGSTOP of the node's deadman for longer than the lease
	GuardianKilled  Act = "guardian-killed"  // SIGKILL of the node's guardian, and the node drains at once
	GuardianStopped Act = "guardian-stopped" // SIGSTOP of the node's guardian for longer than the lease, and the node drains at once
	CutShort        Act = "cut-short"        // no connection to etcd for less than the fence
	CutLong         Act = "cut-long"         // no connection to etcd for longer than the lease
	LeaderLost      Act = "leader-lost"      // SIGKILL of etcd's leader, which comes back
	Move            Act = "move"             // an operator moves a few sessions to other nodes, concurrently
	Clone           Act = "clone"            // an agent starts on a copy of a machine's data directory, beside the machine's own
	Upgrade         Act = "upgrade"          // another process takes the agent's place while it runs
	EngineKilled    Act = "engine-killed"    // SIGKILL of the container engine of all nodes, which comes back and ends all containers
	EngineRestarted Act = "engine-restarted" // the container engine of all nodes ends, with all containers, and starts again
	DiskFull        Act = "disk-full"        // no space in the node's data directory for longer than the lease
	Clock           Act = "clock"            // the clock of the node's processes is an hour ahead, then an hour behind, each for longer than the lease
	MemoryPressure  Act = "memory-pressure"  // the agent has hardly any memory to spare, for longer than the lease
	Suspend         Act = "suspend"          // a few sessions, concurrently; the next client resumes them. With Options.Runsc only
	Fork            Act = "fork"             // a few sessions, concurrently; each copy serves a client and is stopped. With Options.Runsc only
	// RecordsLost deletes the records of a few sessions in etcd. It is not one of
	// Mixed: a node may claim the session before the other one has killed it.
	RecordsLost Act = "records-lost"
	// StoreRestored stops etcd and restores it from a backup of a moment before. It is not
	// one of Mixed: the history of a store that goes back is not linearizable.
	StoreRestored Act = "store-restored"
)

// Mixed is the name of all acts in random order.
const Mixed = "mixed"

// Acts returns all acts of Mixed, for sessions that keep their memory or do not.
func Acts(memory bool) []Act {
	all := []Act{
		Notice, Restart, AgentKilled, Gone, Stopped, DeadmanKilled, DeadmanStopped, GuardianKilled, GuardianStopped,
		CutShort, CutLong, LeaderLost, Move, Clone, Upgrade, EngineKilled, EngineRestarted, DiskFull, Clock, MemoryPressure,
	}
	if memory {
		all = append(all, Suspend, Fork)
	}
	return all
}

// allActs returns the acts that a list may name.
func allActs(memory bool) []Act { return append(Acts(memory), RecordsLost, StoreRestored) }

// ActNames returns the names of allActs, with commas.
func ActNames(memory bool) string {
	var names []string
	for _, a := range allActs(memory) {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}

// drains reports whether an act is a planned drain of a node and nothing else.
func (a Act) drains() bool { return a == Notice || a == Restart }

// onGuardian reports whether an act hits the guardian of a node that then drains.
func (a Act) onGuardian() bool { return a == GuardianKilled || a == GuardianStopped }

// noticed reports whether the node gets a notice before the act. No client may be refused then.
func (a Act) noticed() bool {
	return a.drains() || a.onGuardian() || a == Upgrade || a == Move || a == Suspend || a == Fork
}

// few reports whether an act hits only some of a node's sessions.
func (a Act) few() bool { return a == Move || a == Suspend || a == Fork || a == RecordsLost }

// onAll reports whether an act hits the sessions of all nodes.
func (a Act) onAll() bool { return a == EngineKilled || a == EngineRestarted || a == StoreRestored }

// onEtcd reports whether an act hits only etcd.
func (a Act) onEtcd() bool { return a == LeaderLost }
