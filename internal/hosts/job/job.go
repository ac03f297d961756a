package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/strictyaml"
)

// Job describes the containers and steps to run.
type Job struct {
	// Images are the containers of one run. The first is the primary container.
	Images []Image `yaml:"images" json:"images"`
	// Steps run in the primary container, one after another, until one fails.
	Steps []Step `yaml:"steps" json:"steps"`
	// Parallelism is the number of parallel runs; 0 means 1.
	Parallelism int `yaml:"parallelism" json:"parallelism,omitempty"`
	// Platform is the platform of all images, os/arch or os/arch/variant; "" is
	// the engine's own.
	Platform string `yaml:"platform" json:"platform,omitempty"`
	Pull     Policy `yaml:"pull" json:"pull,omitempty"`
}

// Policy determines when an image is pulled.
type Policy string

// The policies. If a platform is named, an image is always pulled unless the
// policy is never, because the local image may be for another platform.
const (
	PullMissing Policy = "missing" // the default
	PullAlways  Policy = "always"
	PullNever   Policy = "never"
)

// Image is one container of a job.
type Image struct {
	// Name is the container's host name on the job's network. The default is the
	// last part of the image's name without its tag, and "primary" for the first
	// image.
	Name  string `yaml:"name" json:"name,omitempty"`
	Image string `yaml:"image" json:"image"`
	// Entrypoint and Command replace the image's own. The primary container only
	// has to stay up, so nothing of its image is started: Entrypoint and Command
	// together keep it running, by default "tail -f /dev/null".
	Entrypoint []string          `yaml:"entrypoint" json:"entrypoint,omitempty"`
	Command    []string          `yaml:"command" json:"command,omitempty"`
	Env        map[string]string `yaml:"env" json:"env,omitempty"`
	WorkDir    string            `yaml:"workdir" json:"workdir,omitempty"`
	Mounts     []Mount           `yaml:"mounts" json:"mounts,omitempty"`
	Ready      *Ready            `yaml:"ready" json:"ready,omitempty"` // of a service; nil: ready when it runs
}

// Mount is one mount of a container.
type Mount struct {
	Type     string `yaml:"type" json:"type"` // bind (default), volume, tmpfs
	Source   string `yaml:"source" json:"source,omitempty"`
	Target   string `yaml:"target" json:"target"`
	ReadOnly bool   `yaml:"read_only" json:"read_only,omitempty"`
}

// Ready defines when a service is ready: its port accepts a connection, the path
// on the port answers with a status below 400, or the command exits with 0 in the
// container.
type Ready struct {
	Port    int             `yaml:"port" json:"port,omitempty"`
	HTTP    string          `yaml:"http" json:"http,omitempty"`
	Command []string        `yaml:"command" json:"command,omitempty"`
	Timeout holdfast.Millis `yaml:"timeout" json:"timeout_ms,omitempty"` // 0 is DefaultReadyTimeout
}

// DefaultReadyTimeout is how long a service may take to become ready. A database
// that creates its first files takes seconds, on a busy host tens of seconds.
const DefaultReadyTimeout = 2 * time.Minute

// Step is one command in the primary container: Run is passed to its shell,
// Command is executed directly.
type Step struct {
	Name    string   `yaml:"name" json:"name,omitempty"` // default: the command
	Run     string   `yaml:"run" json:"run,omitempty"`
	Command []string `yaml:"command" json:"command,omitempty"`
}

// argv returns the step's command. The shell stops at the first line that fails.
func (s Step) argv() []string {
	if s.Run != "" {
		return []string{"sh", "-e", "-c", s.Run}
	}
	return s.Command
}

// Limits of a job, to bound the load on one host.
const (
	MaxImages      = 32
	MaxSteps       = 256
	MaxParallelism = 256
)

// primaryName is the default name of the primary container.
const primaryName = "primary"

// HostPath returns the first source of a mount that is a path of the host, "" if there is
// none.
func (j Job) HostPath() string {
	for _, img := range j.Images {
		for _, m := range img.Mounts {
			if m.Type == "bind" {
				return m.Source
			}
		}
	}
	return ""
}

// ErrJob means that the job's description is invalid.
var ErrJob = errors.New("invalid job")

// Parse reads a job from YAML. Unknown keys are refused, with line and column.
// Relative sources of binds are below dir. The error wraps ErrJob.
func Parse(ctx context.Context, text []byte, dir string) (Job, error) {
	var j Job
	if err := strictyaml.Decode(ctx, text, &j, "docs/jobs.md"); err != nil {
		return Job{}, &invalid{err}
	}
	for i := range j.Images {
		for k := range j.Images[i].Mounts {
			m := &j.Images[i].Mounts[k]
			m.Type = cmp.Or(m.Type, "bind")
			if m.Type == "bind" && m.Source != "" && !filepath.IsAbs(m.Source) {
				m.Source = filepath.Join(dir, m.Source)
			}
		}
	}
	return j.Complete()
}

// Complete fills in the defaults and validates the job. The error wraps ErrJob.
func (j Job) Complete() (Job, error) {
	j.Parallelism = cmp.Or(j.Parallelism, 1)
	j.Pull = cmp.Or(j.Pull, PullMissing)
	j.Images, j.Steps = slices.Clone(j.Images), slices.Clone(j.Steps)
	for i := range j.Images {
		if img := &j.Images[i]; img.Name == "" {
			img.Name = nameOf(img.Image)
			if i == 0 {
				img.Name = primaryName
			}
		}
	}
	for i := range j.Steps {
		s := &j.Steps[i]
		if s.Name == "" {
			first, _, more := strings.Cut(strings.TrimSpace(cmp.Or(s.Run, strings.Join(s.Command, " "))), "\n")
			if s.Name = first; more {
				s.Name += " …"
			}
		}
	}
	if err := j.check(); err != nil {
		return Job{}, &invalid{err}
	}
	return j, nil
}

// nameOf returns an image's name without registry, folders, tag and digest.
func nameOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name, _, _ := strings.Cut(path.Base(image), ":")
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '.' {
			return '-'
		}
		return r
	}, strings.ToLower(name))
}

// ParseMount reads SOURCE:TARGET[:ro]. A source that begins with a dot or a slash
// is a path on this host, relative to dir if it begins with a dot. Any other
// source is a volume's name.
func ParseMount(s, dir string) (Mount, error) {
	parts := strings.Split(s, ":")
	ro := len(parts) == 3 && parts[2] == "ro"
	if len(parts) != 2 && !ro || parts[0] == "" {
		return Mount{}, holdfast.WithHint(fmt.Errorf("%q is not a mount", s), "a mount is SOURCE:TARGET or SOURCE:TARGET:ro, as in ./src:/src")
	}
	m := Mount{Type: "volume", Source: parts[0], Target: parts[1], ReadOnly: ro}
	if strings.HasPrefix(m.Source, ".") || strings.HasPrefix(m.Source, "/") {
		m.Type = "bind"
		if !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(dir, m.Source)
		}
	}
	return m, m.check()
}

// invalid wraps an error so that it is an ErrJob.
type invalid struct{ error }

func (e *invalid) Unwrap() error        { return e.error }
func (e *invalid) Is(target error) bool { return target == ErrJob }

// mounts, env and labels convert to the engine's types.
func (i Image) mounts() []engine.Mount {
	var out []engine.Mount
	for _, m := range i.Mounts {
		out = append(out, engine.Mount{Type: m.Type, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return out
}

func (i Image) env(run, total int) []string {
	out := []string{fmt.Sprintf("HOLDFAST_JOB_INDEX=%d", run), fmt.Sprintf("HOLDFAST_JOB_TOTAL=%d", total)}
	for _, name := range slices.Sorted(maps.Keys(i.Env)) {
		out = append(out, name+"="+i.Env[name])
	}
	return out
}
