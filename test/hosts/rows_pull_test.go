package hosts

import (
	"io"
	"net"
	"slices"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab/registry"
)

// reverse makes an address of this host's loopback reachable at the same address in the
// machine, until the test ends.
func (h *host) reverse(address string) {
	h.Helper()
	l, err := h.ssh.Listen("tcp", address)
	if err != nil {
		h.Fatalf("listen at %s in the machine: %v", address, err)
	}
	h.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", address)
			if err != nil {
				from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1]) // an end on one side is an end on the other
					pair[0].Close()
				}()
			}
		}
	}()
}

// pulls pulls from a registry of this host, by the product and by another client of the engine.
func pulls(h *host) {
	r, err := registry.Start(h.Context(), registry.Options{})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if err := r.Stop(); err != nil {
			h.Errorf("end the registry: %v", err)
		}
	})
	h.reverse(r.Host())
	push := func(tag string, seed uint64) (layers int64) {
		image, err := registry.Runnable("amd64", seed, 1<<20, registry.Layer{Seed: seed + 1, Size: 2 << 20})
		if err != nil {
			h.Fatal(err)
		}
		sizes, err := r.Push(h.Context(), image, tag, registry.Options{})
		if err != nil {
			h.Fatal(err)
		}
		for _, n := range sizes {
			layers += n
		}
		return layers
	}
	size := push("ours:1", 1)
	push("theirs:1", 3)

	var list []spinup.Record
	h.json(&list, "holdfast pull --json "+r.Host()+"/ours:1")
	if len(list) != 1 || list[0].Pull == nil || !list[0].Pull.Download.Exact || list[0].Pull.Download.Bytes != size || list[0].Pull.Extract.Bytes != size {
		h.Errorf("the image has %d bytes, and the pull was %+v", size, list)
	}

	if h.cell.containerd { // the namespace is Holdfast's own
		return
	}
	h.run("docker run -d --name theirs " + r.Host() + "/theirs:1")
	recorded := "holdfast spinup ls --json --kind other --image " + r.Host() + "/theirs:1"
	h.awaited("the spin-up is recorded", recorded+` | grep '"pulled"'`)
	var others []spinup.Record
	h.json(&others, recorded)
	if !slices.ContainsFunc(others, func(o spinup.Record) bool { return o.Name == "theirs" && !o.Pulled.IsZero() && o.Outcome == spinup.OK }) {
		h.Errorf("the spin-ups by others were %+v", others)
	}
	h.run("docker rm -f theirs; docker rmi " + r.Host() + "/ours:1 " + r.Host() + "/theirs:1")
}
