// Package e2b lets the unmodified SDKs of E2B use a node: a sandbox is a session, and its
// template is the session's (docs/e2b.md). The server is a client of the agent's own API, so
// a sandbox may be on any node of a fleet, and the agent's audit log has each change. No
// program runs in the container for it.
//
// One listener has all of it. The host name of a request says what it is for: api.<domain>
// is the control API, 49983-<id>.<domain> the process and filesystem services and the
// files of a sandbox, and <port>-<id>.<domain> a port of its container.
package e2b

import "time"

// What the SDKs know.
const (
	// envdPort stands for the services of a sandbox in host names.
	envdPort = 49983
	// envdVersion decides which calls the SDKs make. From 0.6.4 on they may ask for
	// entries in events of files.
	envdVersion = "0.6.4"
	// baseTemplate is the SDKs' default. Without a template of that name it is the first.
	baseTemplate = "base"
)

// Bounds.
const (
	maxTimeout       = 24 * time.Hour // of a sandbox
	resumeTimeout    = 5 * time.Minute
	maxRequest       = 256 << 10 // bytes of a request to the control API
	maxMessage       = 8 << 20   // bytes of a message of the services
	maxConns         = 1024
	headerLimit      = 10 * time.Second
	idleLimit        = 2 * time.Minute
	closeLimit       = 5 * time.Second // for requests in progress when the agent ends
	maxWatchers      = 64              // of this node, that wait for a caller to ask
	watcherLimit     = 5 * time.Minute // until a watcher without a caller is removed
	maxEvents        = 4096            // of a watcher
	maxEntries       = 20_000          // of one list of files
	maxDepth         = 64              // of one list of files
	checkEvery       = time.Second     // of the sandboxes' ends
	readEvery        = 5 * time.Second // of the store
	forgetAfter      = 3 * time.Minute // a sandbox whose session is gone; a start takes less
	reattachLimit    = 10 * time.Second
	killLimit        = 5 * time.Second
	suspendLimit     = 2 * time.Minute
	maxUserFile      = 1 << 20 // bytes of /etc/passwd and /etc/group that count
	defaultPing      = 50 * time.Second
	shortestPing     = time.Second
	maxPage          = 100
	maxHooks         = 16
	maxWaiting       = 256              // events for a webhook
	maxAttempts      = 4                // to post an event
	postPause        = 10 * time.Second // between them
	postLimit        = 10 * time.Second // of one
	maxEventsOfNode  = 500              // that are kept
	keepEvents       = 7 * 24 * time.Hour
	maxEventMetadata = 4 << 10               // bytes of a sandbox's metadata in its events
	eventQueue       = 1024                  // until they are written
	maxLogLines      = 1000                  // of one answer
	logTail          = 10_000                // lines of a container's output that are looked at
	maxLogBytes      = 16 << 20              // likewise
	settle           = 20 * time.Millisecond // between a change of a file and its event
	idlePortConns    = 8
	idlePortLimit    = 10 * time.Second
	maxSandboxName   = 32
)
