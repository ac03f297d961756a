package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/test/lab/labtest"
)

const fuzzToken = "0123456789abcdef0123456789abcdef"

// fuzzSettings are those of schemathesis. A session that does not boot, and a node that
// drains or has no place, are answers of a healthy agent.
const fuzzSettings = `
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 502, 503, 504]

# Their limits depend on another value, on what there is, on the syntax of a name, or on a
# header. A whole number with a fraction of 0 is none for encoding/json.
[[operations]]
include-operation-id = ["replaceSessions", "moveSession", "addSpinup", "saveBaseline", "addPrefetchImages", "removePrefetchImages",
  "signalCommand", "execSession", "startCommand", "attachCommand", "spinupStats", "fleetSpinupStats", "spinupSketch",
  "placeJob", "estimatePull", "runJob", "forkSession", "startSession", "wakeSession", "writeFile",
  "makeDirectory", "forwardSession"]
checks.positive_data_acceptance.enabled = false

# null for an optional field is as if it were absent, and a body of white space as if it were empty.
[[operations]]
include-operation-id = ["drainNode", "drainNodeByID", "uncordonNode", "uncordonNodeByID", "startSession", "beginSpinup", "placeJob", "estimatePull"]
checks.negative_data_rejection.enabled = false
`

// left out: they end the agent, or take their caller's time. Archives cannot be made up.
var notFuzzed = []string{"unpackFiles", "stopAgent", "upgradeAgent", "doctorEvents", "sessionEvents", "sessionEventsByID", "record", "runCollection"}

// The agent answers as its OpenAPI document says, whatever schemathesis makes of the
// document: valid requests, invalid ones, other methods, no token.
func TestSchemathesis(t *testing.T) {
	labtest.NeedLong(t, "needs PyPI; internal/control/api TestRequestsFromTheDocument makes such requests itself")
	program, err := exec.CommandContext(t.Context(), "../../packaging/dev/schemathesis.sh").Output()
	if err != nil {
		t.Fatalf("installing schemathesis: %v", err)
	}
	h := newHost(t, "sessions: {max: 4, idle_stop: 2s}\ntemplates:"+shellTemplate)
	tokens := filepath.Join(h.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("fuzz "+fuzzToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "api: {", fmt.Sprintf("api: {token_file: %s, ", tokens), 1)
	if err := os.WriteFile(h.configFile(), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	settings := filepath.Join(h.dir, "schemathesis.toml")
	if err := os.WriteFile(settings, []byte(fuzzSettings), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config-file", settings, "run", "http://" + h.apiTCP + "/v1/openapi.json", "-H", "Authorization: Bearer " + fuzzToken,
		"--max-examples", "15", "--max-time", "120", "--request-timeout", "60", "--workers", "1", "--seed", "1", "--continue-on-failure", "--phases", "coverage,fuzzing"}
	for _, id := range notFuzzed {
		args = append(args, "--exclude-operation-id", id)
	}
	fuzz := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)), args...)
	fuzz.Dir = h.dir
	fuzz.WaitDelay = time.Second
	out, err := fuzz.CombinedOutput()
	if err != nil {
		t.Errorf("schemathesis: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	h.must("node", "uncordon") // it may have been told to drain
	h.ready()                  // the agent has survived
}
