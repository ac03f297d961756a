package cli_test

import (
	"strings"
	"testing"

	"holdfast/internal/control/api/apitest"
)

func TestExperimentCommands(t *testing.T) {
	run := runWith(t, &apitest.Backend{})
	for _, c := range []struct {
		args string
		code int
		want []string // in the output, or in the error
	}{
		{"experiment ls", 0, []string{"next-image", "session", "10%", "web-next", "running", "overlay2", "treatment"}},
		{"experiment show next-image", 0, []string{"failed", "0 of 30 (", "0 of 10 (", "not shown", "at most 5.0%", "1 node answered"}},
		{"experiment show none", 5, []string{"not found", "\nhint: "}},
		{"experiment show", 2, []string{"needs one experiment's name"}},
		{"experiment stop next-image --why enough", 0, []string{"stopped next-image"}},
		{"experiment ls --json", 0, []string{`"why": "enough"`, `"state": "stopped"`}},
		{"experiment stop none", 5, []string{"not found"}},
		{"spinup stats --by arm", 2, []string{"name the experiment"}},
	} {
		out, errs := run(c.code, strings.Fields(c.args)...)
		for _, want := range c.want {
			if !strings.Contains(out+errs, want) {
				t.Errorf("%s: no %q in\n%s%s", c.args, want, out, errs)
			}
		}
	}
}
