package profile

import (
	"cmp"
	"slices"
	"sort"
)

// Summary describes which containers used a host's CPUs, and in which kernel functions.
// The unit is one CPU: 1.5 is one and a half CPUs all the time.
type Summary struct {
	Meta       Meta    `json:"meta"`
	Samples    int64   `json:"samples"`
	CPUs       float64 `json:"cpus_used"`
	Containers []Usage `json:"containers"`
	// Kernel holds paths through the kernel, by container.
	Kernel []Path `json:"kernel_paths"`
	// Functions holds the innermost functions, by container.
	Functions []Function `json:"functions"`
}

// Usage is the CPU use of a container, or of another control group.
type Usage struct {
	Container   string  `json:"container"` // its name, or the best substitute
	ContainerID string  `json:"container_id,omitempty"`
	Image       string  `json:"image,omitempty"`
	Command     string  `json:"command,omitempty"` // the busiest
	Samples     int64   `json:"samples"`
	CPUs        float64 `json:"cpus"`
	Kernel      float64 `json:"kernel_cpus"`
}

// Path is a path through the kernel, from the call inwards, followed while one callee
// dominates.
type Path struct {
	Container string   `json:"container"`
	Path      []string `json:"path"`
	Samples   int64    `json:"samples"`
	CPUs      float64  `json:"cpus"`
}

// Function is a function with its own CPU time, without its callees.
type Function struct {
	Container string  `json:"container"`
	Name      string  `json:"name"`
	File      string  `json:"file,omitempty"`
	Kernel    bool    `json:"kernel,omitempty"`
	Samples   int64   `json:"samples"`
	CPUs      float64 `json:"cpus"`
}

// Summarize returns the busiest entries, top of each kind.
func Summarize(p *Profile, top int) Summary {
	s := Summary{Meta: p.Meta, Samples: p.Total(), CPUs: p.Meta.cpus(p.Total()), Containers: []Usage{}, Kernel: []Path{}, Functions: []Function{}}
	for _, g := range fold(distinctLabel, false, p) {
		s.Containers = append(s.Containers, Usage{Container: g.task.Label(), ContainerID: g.task.ContainerID, Image: g.task.Image, Command: g.busiest(good),
			Samples: g.total[good], CPUs: p.Meta.cpus(g.total[good]), Kernel: p.Meta.cpus(g.inKernel[good])})
		for _, n := range g.kernel.sorted() {
			s.Kernel = append(s.Kernel, Path{Container: g.task.Label(), Samples: n.total[good], CPUs: p.Meta.cpus(n.total[good]),
				Path: n.spine(func(n *node) float64 { return float64(n.total[good]) })})
		}
		for f, n := range g.self {
			s.Functions = append(s.Functions, Function{Container: g.task.Label(), Name: f.Name, File: f.File, Kernel: f.Kernel, Samples: n[good], CPUs: p.Meta.cpus(n[good])})
		}
	}
	s.Containers = first(s.Containers, top, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Container, b.Container))
	})
	s.Kernel = first(s.Kernel, top, func(a, b Path) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Container, b.Container), slices.Compare(a.Path, b.Path))
	})
	s.Functions = first(s.Functions, top, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Name, b.Name), cmp.Compare(a.File, b.File))
	})
	return s
}

// first returns the first n entries of a list in order, at most.
func first[T any](list []T, n int, order func(a, b T) int) []T {
	sort.Slice(list, func(i, j int) bool { return order(list[i], list[j]) < 0 })
	return list[:min(n, len(list))]
}

// distinctLabel labels containers so that all are distinct, including those of the same name.
func distinctLabel(w Task) string {
	if w.ContainerID != "" {
		return w.ContainerID
	}
	return w.Label()
}
