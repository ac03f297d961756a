package unit

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/keep"
)

// Settings say how the restarts of a service are protected.
type Settings struct {
	Service string `json:"service"` // its full name
	// Addresses are held; none: those on which the service listens at each restart.
	Addresses []protect.Address `json:"addresses,omitempty"`
	Backend   protect.Name      `json:"backend"`
	Timeout   time.Duration     `json:"timeout_ns"` // of each hold, over 0
	Drain     time.Duration     `json:"drain_ns"`   // less than Timeout
	Ready     string            `json:"ready"`      // of --ready
	// Keep says whose idle connections are kept, and KeepFor for how long at least; none
	// if it is "".
	Keep    keep.Clients  `json:"keep,omitempty"`
	KeepFor time.Duration `json:"keep_for_ns,omitempty"`
	// RestartOnly leaves reloads alone.
	RestartOnly bool `json:"restart_only,omitempty"`
	// Program is the absolute path of holdfast.
	Program string `json:"program"`
}

// File is a file of systemd's.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Dir is the directory of the host's own units.
const Dir = "/etc/systemd/system"

// The names of a service's files and units.
const (
	dropIn        = "50-holdfast-protect.conf"
	prefixRestart = "holdfast-protect-restart@"
	prefixReload  = "holdfast-protect-reload@"
	prefixHold    = "holdfast-protect-hold@"
)

// marker begins the line of the drop-in from which List reads the settings.
const marker = "# holdfast protect: "

// slack is what a hold's start may take beside its drain and its wait for another hold.
const slack = 10 * time.Second

// Files returns the files that protect a service, in the order in which they are written:
// the drop-in that uses the others is the last.
func (s Settings) Files(dir string) []File {
	files := []File{{filepath.Join(dir, prefixHold+s.Service), s.hold()}, {filepath.Join(dir, prefixRestart+s.Service), s.restart()}}
	if !s.RestartOnly {
		files = append(files, File{filepath.Join(dir, prefixReload+s.Service), s.reload()})
	}
	return append(files, File{filepath.Join(dir, s.Service+".d", dropIn), s.dropIn()})
}

// helpers returns the units that wait beside the service.
func (s Settings) helpers() []string {
	names := []string{prefixRestart + s.Service}
	if !s.RestartOnly {
		names = append(names, prefixReload+s.Service)
	}
	return names
}

// encode returns the settings as one line.
func (s Settings) encode() string {
	b, _ := json.Marshal(s) // it has only types that can be encoded
	return string(b)
}

const written = "# Written by `holdfast protect install --unit`; `holdfast protect uninstall --unit` removes it.\n"

// dropIn also adds a command to those that stop the service. It is the first one of a
// service that has none itself, and then it needs no helper: systemd starts the helper
// only after the service, so a restart right after a start would find none.
func (s Settings) dropIn() string {
	return written + fmt.Sprintf(`%s%s
[Unit]
Wants=%s

[Service]
ExecStop=-+%s protect guard %s
`, marker, s.encode(), strings.Join(s.helpers(), " "), quote(s.Program), quote(s.Service))
}

// restart is stopped before the service, because it is ordered after the service
// (systemd.unit(5), Before= and After=). A restart of the service restarts it as well
// (PartOf=).
func (s Settings) restart() string {
	return written + fmt.Sprintf(`[Unit]
Description=Hold connections to %[1]s when it restarts
StartLimitIntervalSec=0
PartOf=%[1]s
After=%[1]s

[Service]
Slice=system.slice
Type=oneshot
RemainAfterExit=yes
ExecStop=-%[2]s protect guard %[3]s
TimeoutStopSec=%[4]d
`, s.Service, quote(s.Program), quote(s.Service), s.patience())
}

// reload is reloaded before the service, because it is ordered before the service. It
// stays when the service stops.
func (s Settings) reload() string {
	return written + fmt.Sprintf(`[Unit]
Description=Hold connections to %[1]s when it reloads
StartLimitIntervalSec=0
ReloadPropagatedFrom=%[1]s
Before=%[1]s

[Service]
Slice=system.slice
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecReload=-%[2]s protect guard %[3]s
TimeoutStartSec=%[4]d
`, s.Service, quote(s.Program), quote(s.Service), s.patience())
}

// hold is started by the other two. It is active when the connections are held and the
// service is drained.
func (s Settings) hold() string {
	return written + fmt.Sprintf(`[Unit]
Description=Holding connections to %[1]s
StartLimitIntervalSec=0
CollectMode=inactive-or-failed

[Service]
Slice=system.slice
Type=notify
ExecStart=%[2]s protect %[3]s --job
TimeoutStartSec=%[4]d
RuntimeMaxSec=%[5]d
OOMScoreAdjust=-900
%[6]s`, s.Service, quote(s.Program), strings.Join(s.flags(), " "), s.patience(), seconds(s.Timeout)+2*s.patience(), s.killMode())
}

func (s Settings) keeps() bool { return s.Keep != "" && s.Keep != keep.None }

// killMode lets the process that serves kept connections outlive the hold.
func (s Settings) killMode() string {
	if s.keeps() {
		return "KillMode=process\n"
	}
	return ""
}

// patience is the limit of a hold's start, in seconds.
func (s Settings) patience() int { return seconds(s.Drain + otherHold + slack) }

func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// flags are those of `holdfast protect`, quoted for systemd.
func (s Settings) flags() []string {
	words := []string{"--unit", quote(s.Service), "--timeout", s.Timeout.String(), "--drain", s.Drain.String(), "--backend", string(s.Backend), "--ready", quote(s.Ready)}
	if s.keeps() {
		words = append(words, "--keep", string(s.Keep), "--keep-for", s.KeepFor.String())
	}
	for _, a := range s.Addresses {
		if a.Addr.IsValid() {
			words = append(words, "--listen", a.String())
		} else {
			words = append(words, "--port", a.String())
		}
	}
	return words
}

// quote quotes a word of a command line (systemd.service(5), "Command lines").
func quote(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", " ").Replace(word) + `"`
}
