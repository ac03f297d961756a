package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/continuity/fs"
	"github.com/moby/profiles/seccomp"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// cpuPeriod is the period of CPU quotas in microseconds, the kernel's default.
const cpuPeriod = 100_000

// initPath is the path of the host's minimal init in containers with Spec.Init.
const initPath = "/sbin/holdfast-init"

// inits are the paths at which packages install a static init that reaps (tini).
var inits = [...]string{"/usr/bin/tini-static", "/usr/bin/docker-init", "/usr/local/bin/docker-init", "/usr/local/bin/tini-static"}

// runtimeSpec describes the container to runc (opencontainers/runtime-spec,
// config-linux.md). The snapshot exists by now: users are looked up in its files.
func (e *Engine) runtimeSpec(ctx context.Context, d *draft, c *containers.Container) (*oci.Spec, error) {
	options := []oci.SpecOpts{
		oci.WithDefaultSpecForPlatform("linux/" + runtime.GOARCH),
		oci.WithoutRunMount, // the image's files there stay visible
		oci.WithCgroup(path.Join(e.cfg.CgroupParent, d.id)),
		d.process,
		e.user(d),
		d.namespaces,
		d.withOthers,
	}
	if d.spec.Memory > 0 {
		options = append(options, oci.WithMemoryLimit(uint64(d.spec.Memory)))
	}
	if d.spec.CPUs > 0 {
		options = append(options, oci.WithCPUCFS(int64(d.spec.CPUs*cpuPeriod), cpuPeriod))
	}
	if d.spec.PIDs > 0 {
		options = append(options, oci.WithPidsLimit(d.spec.PIDs))
	}
	mounts, err := d.mounts(e.cfg.Dir)
	if err != nil {
		return nil, err
	}
	options = append(options, oci.WithMounts(mounts))
	if d.spec.Init {
		options = append(options, withInit)
	}
	if d.spec.NoCapabilities {
		options = append(options, oci.WithCapabilities(nil))
	}
	for _, name := range d.spec.Capabilities {
		options = append(options, oci.WithAddedCapabilities([]string{"CAP_" + name}))
	}
	if d.spec.ReadOnlyRoot {
		options = append(options, oci.WithRootFSReadonly())
	}
	options = append(options, d.withSeccomp) // the default profile depends on the capabilities
	options = append(options, withAppArmor)
	return oci.GenerateSpec(ctx, e.api, c, options...)
}

// process sets the command line. As with Docker, an entrypoint in the Spec drops the
// image's command too.
func (d *draft) process(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	has := d.image.Config
	entry, command := has.Entrypoint, has.Cmd
	if len(d.spec.Entrypoint) > 0 {
		entry, command = d.spec.Entrypoint, nil
	}
	if len(d.spec.Command) > 0 {
		command = d.spec.Command
	}
	s.Process.Args = slices.Concat(entry, command)
	if len(s.Process.Args) == 0 {
		return errors.New("no command is given, and the image has none")
	}
	s.Process.Cwd = "/"
	if dir := d.spec.WorkDir; dir != "" {
		s.Process.Cwd = dir
	} else if has.WorkingDir != "" {
		s.Process.Cwd = has.WorkingDir
	}
	s.Hostname = d.spec.Hostname
	if s.Hostname == "" {
		s.Hostname = d.id[:12]
	}
	s.Process.Env = environment(s.Hostname, has.Env, d.spec.Env)
	s.Process.NoNewPrivileges = d.spec.NoNewPrivileges
	s.Process.Rlimits = nil // inherits the daemon's, as with Docker
	return nil
}

// environment is PATH and HOSTNAME, then the image's variables, then the Spec's; the
// last one of a name counts.
func environment(host string, lists ...[]string) []string {
	all := slices.Concat(append([][]string{{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + host}}, lists...)...)
	at := map[string]int{}
	var env []string
	for _, kv := range all {
		key, _, _ := strings.Cut(kv, "=")
		if i, ok := at[key]; ok {
			env[i] = kv
			continue
		}
		at[key] = len(env)
		env = append(env, kv)
	}
	return env
}

// user sets the image's user and its groups, by Docker's rules. For root it does not
// read the image's files.
//
// oci.WithUser is not used: it links text/template, and with it every exported method of
// every type (docs/adr/templates.md).
func (e *Engine) user(d *draft) oci.SpecOpts {
	name := d.image.Config.User
	if name == "" || name == "0" || name == "root" || name == "0:0" {
		return oci.WithUIDGID(0, 0)
	}
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		mounts, err := client.SnapshotService(c.Snapshotter).Mounts(ctx, c.SnapshotKey)
		if err != nil {
			return err
		}
		return mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
			s.Process.User, err = imageUser(root, name)
			return err
		})
	}
}

// imageUser looks a user up in the files of an image. The name is that of a Dockerfile's
// USER: a user's name or number, and the same of a group after a colon.
func imageUser(root, name string) (specs.User, error) {
	u, err := user.GetExecUserPath(name, nil, userFile(root, "/etc/passwd"), userFile(root, "/etc/group"))
	if err != nil {
		return specs.User{}, fmt.Errorf("the image's user %q: %w", name, err)
	}
	result := specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid), AdditionalGids: []uint32{uint32(u.Gid)}}
	for _, gid := range u.Sgids {
		if gid != u.Gid {
			result.AdditionalGids = append(result.AdditionalGids, uint32(gid))
		}
	}
	return result, nil
}

// userFile returns the path of an image's file. Symbolic links are resolved within the
// image. A file that is missing is "", and so is a pipe, whose opening would block.
func userFile(root, name string) string {
	file, err := fs.RootPath(root, name)
	if err != nil {
		return ""
	}
	if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return file
}

// namespaces are new ones unless the Spec says otherwise. The paths of another
// container's namespaces are set at the start.
func (d *draft) namespaces(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
	var options []oci.SpecOpts
	if d.spec.Network == "host" {
		options = append(options, oci.WithHostNamespace(specs.NetworkNamespace))
	}
	if d.spec.PIDMode == "host" {
		options = append(options, oci.WithHostNamespace(specs.PIDNamespace))
	}
	if cgroupVersion() == "2" {
		options = append(options, oci.WithNamespacedCgroup())
	}
	return oci.Compose(options...)(ctx, client, c, s)
}

func (d *draft) withSeccomp(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	profile, err := seccomp.GetDefaultProfile(s)
	if d.seccomp != nil {
		profile, err = seccomp.LoadProfile(string(d.seccomp), s)
	}
	if err != nil {
		return fmt.Errorf("its seccomp profile: %w", err)
	}
	s.Linux.Seccomp = profile
	return nil
}

// withInit makes a minimal init run the command.
func withInit(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	for _, program := range inits {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: initPath, Type: "bind", Source: program, Options: []string{"bind", "ro"}})
		s.Process.Args = append([]string{initPath, "--"}, s.Process.Args...)
		return nil
	}
	return holdfast.WithHint(errors.New("this host has no minimal init for containers"), "install tini (apt-get install tini)")
}

// checkNetwork refuses networks that only Docker has.
func checkNetwork(s engine.Spec) error {
	owner, joins := strings.CutPrefix(s.Network, joins)
	switch {
	case len(s.Aliases) > 0:
		return fmt.Errorf("names on a network: %w", engine.ErrUnsupported)
	case s.Network == "", s.Network == "none", s.Network == "host", joins && owner != "":
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("network %q: %w", s.Network, engine.ErrUnsupported), "with containerd a container has the network of Holdfast, none, host, or another container's")
}

// volumeName is the form of a volume's name, as with Docker.
var volumeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`) })

// checkMounts checks the mounts before anything is made.
func checkMounts(list []engine.Mount) error {
	for _, m := range list {
		if !path.IsAbs(m.Target) {
			return fmt.Errorf("mount at %q: that is not an absolute path", m.Target)
		}
		switch m.Type {
		case "bind":
			if !filepath.IsAbs(m.Source) {
				return fmt.Errorf("mount at %s: its source %q is not an absolute path", m.Target, m.Source)
			}
			if _, err := os.Stat(m.Source); err != nil {
				return fmt.Errorf("mount at %s: %w", m.Target, err)
			}
		case "volume":
			if m.Source != "" && !volumeName().MatchString(m.Source) {
				return fmt.Errorf("mount at %s: %q is not a valid name of a volume", m.Target, m.Source)
			}
		case "tmpfs":
		default:
			return fmt.Errorf("mount at %s has the type %q, not bind, volume or tmpfs", m.Target, m.Type)
		}
	}
	return nil
}

// mounts returns the container's mounts, the files in /etc that are made for it, and
// its cgroup hierarchy. Volumes are directories below dir, which are made here;
// anonymous ones are in the container's own directory.
func (d *draft) mounts(dir string) ([]specs.Mount, error) {
	list := []specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}}}
	for _, name := range ownFiles {
		list = append(list, specs.Mount{Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(d.dir, name), Options: []string{"bind", "rprivate"}})
	}
	for i, m := range d.spec.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		if m.Type == "tmpfs" {
			list = append(list, specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", access}})
			continue
		}
		source := m.Source
		if m.Type == "volume" {
			source = filepath.Join(dir, "volumes", m.Source)
			if m.Source == "" {
				source = filepath.Join(d.dir, fmt.Sprintf("volume-%d", i))
			}
			if err := os.MkdirAll(source, 0o755); err != nil {
				return nil, fmt.Errorf("make a volume: %w", err)
			}
		}
		list = append(list, specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate", access}})
	}
	return list, nil
}
