package bench

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Fault is the manifest of one fault of a blind examination: NAME.yaml, beside the programs
// that it names. docs/doctor-exam.md describes the format.
type Fault struct {
	Name    string   `yaml:"-"`
	About   string   `yaml:"about"`
	Needs   []string `yaml:"needs"` // programs on this host's PATH, and "root"
	HeldOut bool     `yaml:"held_out"`
	// Distractor: it is healthy work, and runs beside faults.
	Distractor bool `yaml:"distractor"`
	// Truth is what a report must say; without one nothing is wrong.
	Truth      []Truth               `yaml:"truth"`
	Containers map[string]FaultShape `yaml:"containers"`
	Host       *FaultShape           `yaml:"host"`  // a program outside containers
	After      *FaultShape           `yaml:"after"` // run at the end, whatever happened: it undoes what the stop of the others does not
	Limit      int                   `yaml:"limit"` // seconds after which the fault is stopped; 0 is 60
}

// Truth is one cause.
type Truth struct {
	Culprit string   `yaml:"culprit" json:"culprit"` // a container of the fault, host, or none
	Cause   []string `yaml:"cause" json:"cause"`     // names that are right. Others than the doctor's checks are causes that it does not know
}

// FaultShape is a program with its arguments, and the shape of its container.
type FaultShape struct {
	Program      string   `yaml:"program"` // .c, .sh or .py
	Args         []string `yaml:"args"`
	With         []string `yaml:"with"`  // other programs that it starts, at $FAULT
	Tools        string   `yaml:"tools"` // host: this host's /usr is mounted, read-only
	Memory       string   `yaml:"memory"`
	CPUs         float64  `yaml:"cpus"`
	PIDs         int64    `yaml:"pids"`
	Capabilities []string `yaml:"capabilities"`
	Network      string   `yaml:"network"`
	Copies       int      `yaml:"copies"`
}

// Culprits that are not containers.
const (
	culpritHost = "host"
	culpritNone = "none"
)

// Bounds of faults.
const (
	faultLimit  = time.Minute
	maxLimit    = 10 * time.Minute
	faultMemory = 1 << 30 // of a container without a limit of its own
	faultPIDs   = 1024    // likewise
	maxCopies   = 50
)

var faultName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// LoadFaults reads all manifests of a directory, sorted by name.
func LoadFaults(dir string) ([]Fault, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err == nil && len(files) == 0 {
		err = errors.New("it has no manifest, NAME.yaml")
	}
	if err != nil {
		return nil, fmt.Errorf("faults in %s: %w", dir, err)
	}
	var all []Fault
	for _, file := range files {
		f := Fault{Name: strings.TrimSuffix(filepath.Base(file), ".yaml")}
		b, err := os.ReadFile(file)
		if err == nil {
			err = yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(&f)
		}
		if err == nil {
			err = f.check(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("fault %s: %w", f.Name, err)
		}
		all = append(all, f)
	}
	return all, distinct(all)
}

// distinct refuses a container's name that a distractor and another manifest have.
func distinct(all []Fault) error {
	for _, f := range all {
		for _, beside := range all {
			if !f.Distractor || f.Name == beside.Name {
				continue
			}
			for name := range f.Containers {
				if _, ok := beside.Containers[name]; ok {
					return fmt.Errorf("faults %s and %s both have a container %s, and a distractor runs beside others", f.Name, beside.Name, name)
				}
			}
		}
	}
	return nil
}

func (f Fault) check(dir string) error {
	if !faultName.MatchString(f.Name) || f.About == "" {
		return errors.New("it needs a name of lower-case letters, digits and dashes, and about")
	}
	if f.Limit < 0 || f.limit() > maxLimit {
		return fmt.Errorf("limit is %d, it must be at most %.0f seconds", f.Limit, maxLimit.Seconds())
	}
	if f.Distractor && len(f.Truth) > 0 {
		return errors.New("a distractor is healthy and has no truth")
	}
	shapes := f.shapes()
	if len(shapes) == 0 {
		return errors.New("it starts nothing: it needs containers or host")
	}
	for _, t := range f.Truth {
		_, known := f.Containers[t.Culprit]
		if !known && (t.Culprit != culpritHost || f.Host == nil) && t.Culprit != culpritNone || len(t.Cause) == 0 {
			return fmt.Errorf("truth: culprit %q must be a container of it, host or none, and have a cause", t.Culprit)
		}
	}
	for name, s := range f.Containers {
		if !faultName.MatchString(name) || name == culpritHost || name == culpritNone {
			return fmt.Errorf("a container cannot be called %q", name)
		}
		if _, err := s.memory(); err != nil || s.CPUs < 0 || s.PIDs < 0 || s.Copies < 0 || s.Copies > maxCopies || s.Tools != "" && s.Tools != culpritHost {
			return fmt.Errorf("container %s: memory is a number with M or G, cpus and pids are at least 0, copies at most %d, tools is host", name, maxCopies)
		}
	}
	for _, s := range shapes {
		for _, p := range append([]string{s.Program}, s.With...) {
			if !slices.Contains([]string{".c", ".sh", ".py"}, filepath.Ext(p)) || filepath.Base(p) != p {
				return fmt.Errorf("program %q must be a file beside the manifest that ends with .c, .sh or .py", p)
			}
			if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// shapes returns all programs of the fault with their shapes.
func (f Fault) shapes() []FaultShape {
	var all []FaultShape
	for _, s := range f.Containers {
		all = append(all, s)
	}
	for _, s := range []*FaultShape{f.Host, f.After} {
		if s != nil {
			all = append(all, *s)
		}
	}
	return all
}

// healthy reports whether the manifest has nothing wrong, and can run here.
func (f Fault) healthy() bool { return len(f.Truth) == 0 && !f.Distractor && len(f.missing()) == 0 }

func (f Fault) limit() time.Duration { return cmp.Or(time.Duration(f.Limit)*time.Second, faultLimit) }

// missing returns what the fault needs and this host lacks.
func (f Fault) missing() []string {
	return slices.DeleteFunc(slices.Clone(f.Needs), func(need string) bool {
		if need == "root" {
			return os.Geteuid() == 0
		}
		_, err := exec.LookPath(need)
		return err == nil
	})
}

// memory returns the limit of a container in bytes.
func (s FaultShape) memory() (int64, error) {
	if s.Memory == "" {
		return faultMemory, nil
	}
	var n int64
	var unit string
	if _, err := fmt.Sscanf(s.Memory, "%d%s", &n, &unit); err != nil {
		return 0, err
	}
	shift, ok := map[string]int{"M": 20, "G": 30}[unit]
	if !ok || n < 1 || n > 1<<16 {
		return 0, fmt.Errorf("memory %q", s.Memory)
	}
	return n << shift, nil
}

// buildFaults makes the programs of faults in a directory: those in C are compiled, static,
// so that they run in any image.
func buildFaults(from, to string, faults []Fault) error {
	made := make(map[string]bool)
	for _, f := range faults {
		for _, s := range f.shapes() {
			for _, p := range append([]string{s.Program}, s.With...) {
				if made[p] {
					continue
				}
				made[p] = true
				if err := buildFault(filepath.Join(from, p), to); err != nil {
					return fmt.Errorf("fault %s: %w", f.Name, err)
				}
			}
		}
	}
	return nil
}

func buildFault(file, to string) error {
	base := filepath.Base(file)
	if filepath.Ext(base) == ".c" {
		out, err := exec.Command("cc", "-static", "-O2", "-pthread", "-o", filepath.Join(to, strings.TrimSuffix(base, ".c")), file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("compile %s: %w: %s", base, err, out)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, base), b, 0o755)
}

// command returns the command line of a program in a directory.
func (s FaultShape) command(dir string) []string {
	at := filepath.Join(dir, s.Program)
	switch filepath.Ext(s.Program) {
	case ".py":
		return append([]string{"/usr/bin/python3", "-u", at}, s.Args...)
	case ".sh":
		return append([]string{"/bin/sh", at}, s.Args...)
	}
	return append([]string{strings.TrimSuffix(at, ".c")}, s.Args...)
}
