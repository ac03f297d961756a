package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/e2b/envd"
)

// SandboxOptions configures `holdfast bench sandbox`.
type SandboxOptions struct {
	N        int       // sandboxes of each kind; 0 is 50
	Agent    []string  // as of BootOptions
	Progress io.Writer // receives progress lines; nil discards them
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o SandboxOptions) Check() error {
	if o.N < 1 {
		return fmt.Errorf("sandboxes is %d, it must be at least 1", o.N)
	}
	return nil
}

// sandboxModes are an agent with warm containers, and one without.
func sandboxModes() []bootMode {
	return []bootMode{
		{name: "warm", row: "warm", template: "network: pooled, warm: 4", warm: true, pooled: true, sdks: true},
		{name: "cold", row: "cold", template: "network: pooled", pooled: true, sdks: true},
	}
}

// sandboxKey is the API key of the bench.
const sandboxKey = "e2b_0123456789abcdef0123456789abcdef01234567"

// Sandbox measures in turns the time from the request for a sandbox of E2B's SDKs to the end
// of its first command (true), with the requests that an SDK sends, and the same by the plain
// API: the start of a session, and a command in it. Each is measured with containers that are
// warm before, and without. A turn begins when all pools are full and all removals are done.
// It works only inside a lab (lab.Reenter).
//
// Score is the p50 of the plain API ÷ that of the SDKs, both warm.
func Sandbox(ctx context.Context, o SandboxOptions) (Result, error) {
	o.N = cmp.Or(o.N, 50)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	b, err := newBootBench(ctx, BootOptions{N: o.N, Agent: o.Agent, Progress: o.Progress}, sandboxModes())
	return conduct(ctx, &sandboxBench{b}, err)
}

type sandboxBench struct{ *bootBench }

func (x *sandboxBench) run(ctx context.Context) (Result, error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	ways := []struct {
		name string
		once func(context.Context, *bootAgent, int) error
	}{{"the plain API", x.plain}, {"E2B's protocol", x.sandbox}}
	took := make([][]float64, len(ways)*len(x.agents))
	for i := range x.o.N + bootWarmups {
		if i%10 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d sandboxes of each kind\n", max(0, i-bootWarmups), x.o.N)
		}
		for n := range took {
			k := (i + n) % len(took) // the order rotates each turn
			a, way := x.agents[k/len(ways)], ways[k%len(ways)]
			if err := settleAll(ctx, x.bootBench, x.agents, bootLimit); err != nil {
				return Result{}, err
			}
			begun := time.Now()
			if err := way.once(ctx, a, i); err != nil {
				return Result{}, fmt.Errorf("%s, %s: %w", way.name, a.mode.name, err)
			}
			if t := time.Since(begun); i >= bootWarmups {
				took[k] = append(took[k], millis(t))
			}
			list, err := a.sessions(ctx, x.client)
			if err == nil {
				err = x.removeAll(ctx, a, list)
			}
			if err != nil {
				return Result{}, err
			}
		}
	}
	r := Result{Name: "sandbox", Machine: EngineMachine(info), Notes: []string{"load of the last minute at the end: " + load()}}
	for k, all := range took {
		r.Rows = append(r.Rows, NewRow(x.agents[k/len(ways)].mode.row+", "+ways[k%len(ways)].name, "ms", all))
	}
	r.Score = r.Rows[0].P50 / r.Rows[1].P50
	return r, nil
}

// load is the load average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg") // without it the note says nothing
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// plain starts a session and runs a command, by the API.
func (x *sandboxBench) plain(ctx context.Context, a *bootAgent, i int) error {
	c, err := client.New(client.Options{Socket: filepath.Join(x.dir, a.mode.name, "run", "s")})
	if err != nil {
		return err
	}
	defer c.Close()
	key := holdfast.SessionKey(fmt.Sprintf("plain-%s-%d", a.mode.name, i))
	if _, err := c.StartSession(ctx, key, ""); err != nil {
		return err
	}
	code, err := c.Exec(ctx, key, api.Exec{Command: []string{"/bin/true"}, Stdout: io.Discard, Stderr: io.Discard})
	if code != 0 {
		x.failed.Add(1)
	}
	return err
}

// sandbox makes a sandbox and runs a command as E2B's SDKs do.
func (x *sandboxBench) sandbox(ctx context.Context, a *bootAgent, _ int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.sdks+"/v2/sandboxes", strings.NewReader(`{"templateID":"bench","timeout":300}`))
	if err != nil {
		return err
	}
	r.Header.Set("X-API-Key", sandboxKey)
	answer, err := x.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var made struct {
		ID    string `json:"sandboxID"`
		Token string `json:"envdAccessToken"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&made); err != nil || answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("making a sandbox: %s, %w", answer.Status, err)
	}
	q := connect.NewRequest(&envd.StartRequest{Process: &envd.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "true"}}})
	for name, value := range map[string]string{"X-Access-Token": made.Token, "E2b-Sandbox-Id": made.ID, "E2b-Sandbox-Port": "49983"} {
		q.Header().Set(name, value)
	}
	out, err := envd.NewProcessClient(x.client, "http://"+a.sdks).Start(ctx, q)
	if err != nil {
		return err
	}
	defer out.Close()
	ended := false
	for out.Receive() {
		if end := out.Msg().GetEvent().GetEnd(); end != nil {
			ended = end.GetExitCode() == 0
		}
	}
	if !ended {
		x.failed.Add(1)
	}
	return out.Err()
}
