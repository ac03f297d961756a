package gc

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// elsewhere is an engine with another socket.
type elsewhere struct {
	Engine
	socket string
}

func (e elsewhere) Info(ctx context.Context) (engine.Info, error) {
	info, err := e.Engine.Info(ctx)
	info.Socket = e.socket
	return info, err
}

// TestHiddenDisk: a collector that cannot see the disk that its rules depend on says so.
func TestHiddenDisk(t *testing.T) {
	limited, plain := Rule{Kinds: []Kind{Images}, Pressure: true}, Rule{Kinds: []Kind{Images}}
	for name, c := range map[string]struct {
		socket string
		rule   Rule
		hidden bool
	}{
		"in a container":                {"/var/run/docker.sock", limited, true},
		"rules without a limit":         {"/var/run/docker.sock", plain, false},
		"an engine on another host":     {"", limited, false},
		"a limit of the images' number": {"/var/run/docker.sock", Rule{Kinds: []Kind{Images}, MaxUsed: Bytes(1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			log := quietLog()
			col := New(policy(c.rule), Deps{
				Engine: elsewhere{newModel(noon), c.socket}, Store: NewStore(t.TempDir(), log), LockDir: t.TempDir(), Log: log,
				Disk: func(string) (Disk, error) { return Disk{}, unix.ENOENT },
			})
			err := col.Check(t.Context())
			if hidden := errors.Is(err, ErrHidden); hidden != c.hidden || hidden != (holdfast.HintOf(err) != "") {
				t.Errorf("%v", err)
			}
			l, err := col.List(t.Context())
			if err != nil || !strings.HasPrefix(strings.Join(l.Notices, "\n"), "marks and free space are not checked") && c.socket != "" {
				t.Errorf("%v, %v", l.Notices, err)
			}
		})
	}
}
