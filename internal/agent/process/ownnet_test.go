package process

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/control/config"
)

// An engine whose containers are in a user namespace says so. Sessions then get its networks.
func TestRemappedEngine(t *testing.T) {
	for options, want := range map[string]error{`["name=seccomp", "name=userns"]`: errRemapped, `["name=seccomp"]`: nil} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/info") {
				fmt.Fprintf(w, `{"SecurityOptions": %s}`, options)
			}
		})}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		c := config.Default()
		c.Engine.Host, c.Engine.Subnet, c.Engine.Bridge = "unix://"+socket, "10.99.0.0/16", "remapped"
		c.Templates = []config.Template{{Name: "web"}}
		e, _, err := OpenSuitable(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if got := Lacking(e); !errors.Is(got, want) {
			t.Errorf("%s: sessions get networks of the engine's because of %v, want %v", options, got, want)
		}
	}
}
