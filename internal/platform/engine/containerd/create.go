package containerd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"holdfast/internal/platform/engine"
)

// cleanLimit bounds the rollback of a failed call, after its context is done.
const cleanLimit = 30 * time.Second

// Create makes a container and returns its full id.
func (e *Engine) Create(ctx context.Context, s engine.Spec) (string, error) {
	ctx = e.in(ctx)
	id, err := e.create(ctx, s)
	return id, e.fail(ctx, err, "create container %s", s.Name)
}

func (e *Engine) create(ctx context.Context, s engine.Spec) (string, error) {
	d, err := e.draft(s)
	if err != nil {
		return "", err
	}
	img, err := e.image(ctx, s.Image)
	if err != nil {
		return "", err
	}
	if d.image, err = e.config(ctx, img); err != nil {
		return "", err
	}
	if err := d.checkPlatform(); err != nil {
		return "", err
	}
	// The snapshot's key is the container's name, which makes the name unique until
	// the snapshot is removed.
	if err := e.snapshot(ctx, d, img); err != nil {
		return "", err
	}
	err = e.createOn(ctx, d, img)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if e.api.ContainerService().Delete(ctx, d.id) == nil || !e.exists(ctx, d.id) {
			_ = e.api.SnapshotService(e.cfg.Snapshotter).Remove(ctx, d.key()) // a snapshot that stays is removed as a stray
			err = errors.Join(err, os.RemoveAll(d.dir))
		}
		return "", err
	}
	return d.id, nil
}

// exists reports whether a container exists, or may exist.
func (e *Engine) exists(ctx context.Context, id string) bool {
	_, err := e.api.ContainerService().Get(ctx, id)
	return err == nil || !isGone(err)
}

// createOn makes the container on its snapshot.
func (e *Engine) createOn(ctx context.Context, d *draft, img images.Image) error {
	if err := d.prepareDir(); err != nil {
		return err
	}
	if err := e.findShared(ctx, d); err != nil {
		return err
	}
	c := containers.Container{
		ID: d.id, Image: img.Name, SnapshotKey: d.key(), Snapshotter: e.cfg.Snapshotter,
		Runtime: d.runtime,
		Labels:  map[string]string{},
	}
	// The container's labels replace the image's, as with Docker.
	maps.Copy(c.Labels, d.image.Config.Labels)
	maps.Copy(c.Labels, d.spec.Labels)
	if d.spec.Name != "" {
		c.Labels[labelName] = d.spec.Name
	}
	c.Labels[labelRestart] = string(d.spec.Restart)
	note, err := record{Image: d.spec.Image, ImageID: img.Target.Digest.String(), Volumes: d.volumes(), Network: d.spec.Network, PIDMode: d.spec.PIDMode, Dir: d.dir, Shim: d.shim}.any()
	if err != nil {
		return err
	}
	c.Extensions = map[string]typeurl.Any{extension: note}
	spec, err := e.runtimeSpec(ctx, d, &c)
	if err != nil {
		return err
	}
	if c.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return err
	}
	_, err = e.api.ContainerService().Create(ctx, c)
	return err
}

// snapshot makes the container's file system on its image's, and extracts the image
// if another client has only fetched it.
func (e *Engine) snapshot(ctx context.Context, d *draft, img images.Image) error {
	prepare := func() error {
		_, err := e.api.SnapshotService(e.cfg.Snapshotter).Prepare(ctx, d.key(), d.image.chain, snapshots.WithLabels(keptSnapshot()))
		return err
	}
	err := prepare()
	if errdefs.IsNotFound(err) {
		if err := client.NewImage(e.api, img).Unpack(ctx, e.cfg.Snapshotter); err != nil {
			return err
		}
		err = prepare()
	}
	if errdefs.IsAlreadyExists(err) && e.freeStray(ctx, d.key()) {
		err = prepare()
	}
	if errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("the name %s: %w", d.spec.Name, engine.ErrConflict)
	}
	return err
}

// keptSnapshot returns the labels of a container's snapshot. Without them
// containerd's collector could remove the snapshot before a container refers to it
// (containerd, docs/garbage-collection.md). It is removed with its container, or as a
// stray.
func keptSnapshot() map[string]string {
	return map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339), ownLabels + "container": "yes"}
}

// draft is a container that is being created.
type draft struct {
	spec    engine.Spec
	id      string
	dir     string // for its files
	runtime containers.RuntimeInfo
	seccomp []byte // nil: the default
	image   config
	paths   map[specs.LinuxNamespaceType]string // paths of other containers' namespaces
	shim    string                              // see record
}

// key is the snapshot's key.
func (d *draft) key() string {
	if d.spec.Name != "" {
		return d.spec.Name
	}
	return d.id
}

// draft checks what needs no call to the engine.
func (e *Engine) draft(s engine.Spec) (*draft, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // it never fails
	d := &draft{spec: s, id: hex.EncodeToString(raw[:])}
	d.dir = filepath.Join(e.cfg.Dir, "containers", d.id)
	if _, err := engine.ParsePlatform(s.Platform); err != nil {
		return nil, err
	}
	if d.spec.Network == "bridge" { // Docker's name of the default
		d.spec.Network = ""
	}
	if err := checkNetwork(d.spec); err != nil {
		return nil, err
	}
	var err error
	if d.runtime, err = e.runtime(s.Runtime); err != nil {
		return nil, err
	}
	if err := checkMounts(s.Mounts); err != nil {
		return nil, err
	}
	if s.Seccomp != "" {
		if d.seccomp, err = engine.ReadSeccomp(s.Seccomp); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// volumes returns the names of the named volumes.
func (d *draft) volumes() []string {
	var names []string
	for _, m := range d.spec.Mounts {
		if m.Type == "volume" && m.Source != "" {
			names = append(names, m.Source)
		}
	}
	return names
}

// checkPlatform compares the image with the platform in the Spec.
func (d *draft) checkPlatform() error {
	want, _ := engine.ParsePlatform(d.spec.Platform) // the syntax was checked before
	if want == nil {
		return nil
	}
	has := d.image.Platform
	if want.OS != has.OS || want.Architecture != has.Architecture || want.Variant != "" && want.Variant != has.Variant {
		return fmt.Errorf("the image's platform %s/%s does not match the specified platform %s", has.OS, has.Architecture, d.spec.Platform)
	}
	return nil
}

// prepareDir makes the container's directory with the files that are mounted into it.
// Their content is written at the container's start.
func (d *draft) prepareDir() error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	for _, name := range ownFiles {
		if err := os.WriteFile(filepath.Join(d.dir, name), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ownFiles are mounted into /etc of a container.
var ownFiles = [...]string{"hosts", "hostname", "resolv.conf"}
