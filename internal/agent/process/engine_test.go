package process

import (
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// An engine on another host, and one without reachable containers, are refused at the start.
func TestEnginesThatCannotServe(t *testing.T) {
	for want, info := range map[string]engine.Info{
		"":                                    {Socket: "/run/docker.sock"},
		"is not behind a unix socket":         {},
		"engine.host: the engine is Podman":   {Name: engine.Podman, Socket: "/run/docker.sock"},
		"engine.host: the engine is rootless": {Socket: "/run/user/1000/docker.sock", Rootless: true},
	} {
		err := suitable(info)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || holdfast.HintOf(err) == "") {
			t.Errorf("%+v: got %v, want %q and a hint", info, err, want)
		}
	}
}
