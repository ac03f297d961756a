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

// apart is an engine with the containerd image store.
type apart struct {
	*model
	driver string
}

func (e apart) Info(context.Context) (engine.Info, error) {
	return engine.Info{Name: "docker", Socket: "/s", DataRoot: e.root, StorageDriver: e.driver, ImageStore: engine.ContainerdStore}, nil
}

// TestDiskOfTheLayers: the marks apply to the disk on which the engine's containerd keeps layers,
// which may be another one than that of the data root.
func TestDiskOfTheLayers(t *testing.T) {
	m := newModel(noon)
	m.root = t.TempDir()
	layers := t.TempDir()
	full, roomy := Disk{Total: 1000, Free: 50}, Disk{Total: 1000, Free: 900}
	for _, driver := range []string{"overlayfs", "btrfs"} {
		for name, c := range map[string]struct {
			snapshots string
			disks     map[string]Disk
			want      Disk
			hidden    bool
		}{
			"the layers' disk is full":       {layers, map[string]Disk{m.root: roomy, layers: full}, full, false},
			"the data root's disk is full":   {layers, map[string]Disk{m.root: full, layers: roomy}, roomy, false},
			"containerd is not visible":      {"", map[string]Disk{m.root: full}, Disk{}, true},
			"its directory is not mounted":   {layers, map[string]Disk{m.root: full}, Disk{}, true},
			"the data root is not mounted":   {layers, map[string]Disk{layers: full}, Disk{}, true},
			"both are on one disk, as often": {layers, map[string]Disk{m.root: full, layers: full}, full, false},
		} {
			t.Run(driver+"/"+name, func(t *testing.T) {
				m.snapshots = c.snapshots
				log := quietLog()
				col := New(policy(Rule{Kinds: []Kind{Images}, Pressure: true}), Deps{
					Engine: apart{m, driver}, Store: NewStore(t.TempDir(), log), LockDir: t.TempDir(), Log: log,
					Disk: func(dir string) (Disk, error) {
						if d, ok := c.disks[dir]; ok {
							return d, nil
						}
						return Disk{}, unix.ENOENT
					},
				})
				s, err := col.site(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if d, err := col.disk(s); err != nil || d != c.want {
					t.Errorf("the disk is %+v, %v", d, err)
				}
				if err := col.Check(t.Context()); errors.Is(err, ErrHidden) != c.hidden {
					t.Errorf("%v", err)
				}
			})
		}
	}
}
