package engine

import (
	"errors"
	"time"
)

// ErrRefused means that the engine refuses to remove an object, usually because it is
// in use. It comes wrapped.
var ErrRefused = errors.New("the engine refuses")

// Image is one image of an engine, as garbage collection needs it.
type Image struct {
	ID      string
	Parent  string   // id of the image that it was built on, if the engine knows it
	Refs    []string // all names: repository:tag, and repository@digest
	Labels  map[string]string
	Created time.Time // time of the build, not of the pull
	Size    int64     // bytes, including shared layers
}

// Holder is a container in any state, with the objects that it uses.
type Holder struct {
	ID       string
	Name     string
	Image    string // the name given at create
	ImageID  string
	State    string // created, running, paused, restarting, removing, exited, dead
	Created  time.Time
	Labels   map[string]string
	Networks []string // ids and names in its settings, also before its start
	Volumes  []string // names
}

// Network is one network of an engine.
type Network struct {
	ID      string
	Name    string
	Created time.Time
	Labels  map[string]string
	// Fixed means that the engine makes the network itself or that a swarm owns it.
	Fixed bool
}

// Volume is one volume of an engine.
type Volume struct {
	Name    string
	Driver  string
	Created time.Time
	Labels  map[string]string
}

// Activity is an event in which an image, a network or a volume was used.
type Activity struct {
	// Gap means that the engine has no events between Since and Time.
	Gap   bool
	Since time.Time

	Time   time.Time
	Action string // pull, tag, load, import, create, start, die, connect, mount, …
	// One of the following is set.
	Image   string // name or id
	Network string // id
	Volume  string // name
}
