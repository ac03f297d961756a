package deploy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/rotation"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/sessions/gateway"
)

// The thresholds of the alerts and of the dashboard agree with Holdfast's defaults.
func TestDefaultsThatAreTold(t *testing.T) {
	by := map[string]alert{}
	for _, a := range alerts(t) {
		by[a.Alert] = a
	}
	if d, err := time.ParseDuration(by["HoldfastNodeDegraded"].For); err != nil || d != rotation.DefaultConfig().DrainAfter {
		t.Errorf("HoldfastNodeDegraded fires after %v (%v), the doctor drains after %v", d, err, rotation.DefaultConfig().DrainAfter)
	}
	if want := "gateway.park_time (" + gateway.DefaultConfig().ParkTime.String() + ")"; !strings.Contains(by["HoldfastParkedLong"].Annotations["action"], want) {
		t.Errorf("HoldfastParkedLong does not say %q", want)
	}
	text, err := os.ReadFile("../../deploy/grafana/holdfast.json")
	if err != nil {
		t.Fatal(err)
	}
	slow := spinup.DefaultRules()
	if want := fmt.Sprintf("below %v MiB/s of download and %v MiB/s of extract", slow.Download, slow.Extract); !strings.Contains(string(text), want) {
		t.Errorf("the dashboard does not say %q", want)
	}
}
