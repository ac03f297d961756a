package api

import (
	"runtime"
	"runtime/debug"

	"holdfast"
)

// Version says which build answers, and on which node.
type Version struct {
	Version string          `json:"version"` // v1.2.3, or the version of the build's tree
	Commit  string          `json:"commit,omitempty"`
	Go      string          `json:"go"`
	OS      string          `json:"os"`
	Arch    string          `json:"arch"`
	Node    holdfast.NodeID `json:"node,omitempty"` // of an agent only
	PID     int             `json:"pid,omitempty"`  // of an agent only
}

// BuildVersion is the version of this binary, without Node and PID.
func BuildVersion() Version {
	v := Version{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

// Health is the answer of the probes when all is well.
type Health struct {
	Status string `json:"status"` // ok

	// Weight is the share of new connections that this node should get from a load
	// balancer, relative to other nodes': 1 to 100, less the busier its CPUs are. It
	// is absent in /healthz.
	Weight int `json:"weight,omitempty"`
}

// Empty is a request without fields.
type Empty struct{}
