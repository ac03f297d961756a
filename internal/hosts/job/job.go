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

// Job is what is to be run.
type Job struct {
	// Images are the containers of one run. The first is the primary one.
	Images []Image `yaml:"images"`
	// Steps run in the primary container, one after the other, until one fails.
	Steps []Step `yaml:"steps"`
	// Parallelism is how many times all of it is there; 0 is once.
	Parallelism int `yaml:"parallelism"`
	// Platform is that of all images, os/arch or os/arch/variant; "" is the
	// engine's own.
	Platform string `yaml:"platform"`
	Pull     Policy `yaml:"pull"`
}

// Policy says when an image is pulled.
type Policy string

// The policies. Where a platform is named, an image is always pulled unless that
// is forbidden: the one that is there may be of another.
const (
	PullMissing Policy = "missing" // the default
	PullAlways  Policy = "always"
	PullNever   Policy = "never"
)

// Image is one container of a job.
type Image struct {
	// Name is what the others find it by on their network; by default the
	// last part of the image's name without its tag, and "primary" for the
	// first.
	Name  string `yaml:"name"`
	Image string `yaml:"image"`
	// Entrypoint and Command replace the image's own. In the primary
	// container, which only has to be there, nothing of the image's is
	// started: both together are what keeps it running, by default
	// "tail -f /dev/null".
	Entrypoint []string          `yaml:"entrypoint"`
	Command    []string          `yaml:"command"`
	Env        map[string]string `yaml:"env"`
	WorkDir    string            `yaml:"workdir"`
	Mounts     []Mount           `yaml:"mounts"`
	Ready      *Ready            `yaml:"ready"` // of a service; nil: it is ready when it runs
}

// Mount is one mount of a container.
type Mount struct {
	Type     string `yaml:"type"` // bind (default), volume, tmpfs
	Source   string `yaml:"source"`
	Target   string `yaml:"target"`
	ReadOnly bool   `yaml:"read_only"`
}

// Ready is when a service can be used: its port takes a connection, or the path
// on it answers with a status below 400, or the command in it exits with 0.
type Ready struct {
	Port    int           `yaml:"port"`
	HTTP    string        `yaml:"http"`
	Command []string      `yaml:"command"`
	Timeout time.Duration `yaml:"timeout"` // 0 is DefaultReadyTimeout
}

// DefaultReadyTimeout is how long a service may take to become ready. A database
// that makes its first files takes seconds, on a busy host tens of them.
const DefaultReadyTimeout = 2 * time.Minute

// Step is one command in the primary container: Run by its shell, or Command as
// it is.
type Step struct {
	Name    string   `yaml:"name"` // default: what it runs
	Run     string   `yaml:"run"`
	Command []string `yaml:"command"`
}

// argv is the step's command. The shell stops at the first line that fails.
func (s Step) argv() []string {
	if s.Run != "" {
		return []string{"sh", "-e", "-c", s.Run}
	}
	return s.Command
}

// Bounds of a job: what one host can be asked to hold.
const (
	MaxImages      = 32
	MaxSteps       = 256
	MaxParallelism = 256
)

// primaryName is the primary container's name unless it is given one.
const primaryName = "primary"

// ErrJob says that a job is not one that can be run, by what it says itself.
var ErrJob = errors.New("not a job that can be run")

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

// Complete fills in the defaults and checks all of it. The error wraps ErrJob.
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

// nameOf is an image's name without registry, folders, tag and digest.
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
// is a path of this host, relative ones below dir; any other is a volume's name.
func ParseMount(s, dir string) (Mount, error) {
	parts := strings.Split(s, ":")
	ro := len(parts) == 3 && parts[2] == "ro"
	if len(parts) != 2 && !ro || parts[0] == "" {
		return Mount{}, holdfast.WithHint(fmt.Errorf("%q is no mount", s), "a mount is SOURCE:TARGET or SOURCE:TARGET:ro, as in ./src:/src")
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

// invalid is an ErrJob that says what is wrong.
type invalid struct{ error }

func (e *invalid) Unwrap() error        { return e.error }
func (e *invalid) Is(target error) bool { return target == ErrJob }

// mounts, env and labels are as the engine takes them.
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
