package engine

import (
	"errors"
	"time"
)

// ErrRefused says that the engine refuses to remove something, most often
// because it is in use. It comes wrapped.
var ErrRefused = errors.New("the engine refuses")

// Image is one image of an engine, as garbage collection needs it.
type Image struct {
	ID      string
	Parent  string   // id of the image that it was built on, where the engine knows
	Refs    []string // all names: repository:tag, and repository@digest
	Labels  map[string]string
	Created time.Time // the build's, not the pull's
	Size    int64     // bytes, with what it shares
}

// Holder is a container in any state, by what it holds on to.
type Holder struct {
	ID       string
	Name     string
	Image    string // as it was named at create
	ImageID  string
	State    string // created, running, paused, restarting, removing, exited, dead
	Created  time.Time
	Labels   map[string]string
	Networks []string // ids and names that its settings have, also before its start
	Volumes  []string // names
}

// Network is one network of an engine.
type Network struct {
	ID      string
	Name    string
	Driver  string
	Scope   string // local, swarm
	Created time.Time
	Labels  map[string]string
	// Fixed is a network that the engine makes itself or that a swarm owns.
	Fixed bool
}

// Volume is one volume of an engine.
type Volume struct {
	Name    string
	Driver  string
	Created time.Time
	Labels  map[string]string
}

// Activity is something that used an image, a network or a volume.
type Activity struct {
	// Gap: from Since until Time the engine cannot say what happened.
	Gap   bool
	Since time.Time

	Time   time.Time
	Action string // pull, tag, load, import, create, start, die, connect, mount, …
	// One of these.
	Image   string // name or id
	Network string // id
	Volume  string // name
}
