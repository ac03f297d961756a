package main

import (
	"io"
	"strings"
	"testing"

	"holdfast/internal/control/cli"
)

// The process that the operator started refuses invalid flags, before it enters the lab.
func TestBenchesRefuseWhatCannotBe(t *testing.T) {
	for _, line := range []string{
		"kill -n 0", "kill -n -1", "kill --rounds 0", "kill --image mysql",
		"boot -n 0", "boot --bursts none", "boot -n -1", "sandbox -n 0",
		"run -n 0", "run --size 0", "run --rate -1", "run --rate NaN",
		"gateway --connections 0", "gateway --rounds 0", "gateway --duration -1s", "gateway --only nope",
		"clients -n 9", "clients --rounds 0", "clients --duration 0s", "clients --only nope",
		"fleet -n 0", "fleet --sessions 0", "fleet --rate 0", "fleet --rate NaN", "fleet --rate Inf", "fleet --for 0s",
		"fleet --chaos nope", "fleet --ttl 1ms", "fleet --overload --every 5s",
		"reload -n 0", "reload --rate 0", "reload --rate NaN", "reload --mode nope", "reload -n 99999999 --rate 1",
		"accuracy --runs 0", "accuracy --for 1ms", "accuracy --for 1h", "accuracy --only nope", "accuracy --scale --containers 0", "accuracy --scale --processes 1", "accuracy --scale --for 0s",
		"dashboard --nodes 0", "dashboard -n 0", "dashboard --open 257", "dashboard --for 1ms",
		"cure-memcg -n 1", "cure-memcg --cache 1", "slow-start -n 1", "slow-start --pool 1", "cure-fadvise --rounds 0", "cure-fadvise --duration 1ms",
		"restarts --rounds 0", "restarts --rate NaN", "restarts --only nope",
		"replace -n 0", "replace --beside 0", "replace --size 0", "replace --readers 101", "replace --rest 0s", "replace --example /nowhere",
		"sleep -n 0", "sleep --sockets 0", "sleep --sockets 20001",
		"kubernetes", "kubernetes --apiserver x --nodes 0", "kubernetes --apiserver x --for 0s", "kubernetes --apiserver x --for 2h", "kubernetes --apiserver x --idle -1s",
		"scale --nodes 1", "scale --lost 2", "scale --lost NaN", "scale --directories 0", "scale --watchers -1", "scale --steady -1s",
	} {
		var errs strings.Builder
		args := strings.Fields(line)
		if code := cli.ToolMain(t.Context(), args, strings.NewReader(""), io.Discard, &errs, tool("")); code != cli.ExitUsage {
			t.Errorf("%s: exit code %d: %s", line, code, &errs)
		}
		prefix := "bench " + args[0] + ": "
		if got := errs.String(); strings.Count(got, prefix) != 1 || !strings.Contains(got, "\nhint: ") {
			t.Errorf("%s: %q, want %q once, and a hint", line, got, prefix)
		}
	}
}
