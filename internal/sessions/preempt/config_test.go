package preempt

import (
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestConfig(t *testing.T) {
	var c Config
	if s := c.Sources(); len(s) > 0 {
		t.Errorf("%d sources are on by default", len(s))
	}
	err := yaml.UnmarshalWithOptions([]byte(`
gce: {enabled: true}
aws: {enabled: true, endpoint: "http://[fd00:ec2::254]"}
azure: {enabled: true, endpoint: "http://127.0.0.1:1/", acknowledge: true}
logind: {enabled: true, endpoint: "unix:path=/run/dbus/system_bus_socket"}
`), &c, yaml.Strict())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range c.Sources() {
		names = append(names, s.Name())
	}
	if !slices.Equal(names, []string{"gce", "aws", "azure", "logind"}) {
		t.Errorf("sources %v", names)
	}
	s := c.Sources()
	if e := s[0].(*gce).endpoint; e != "http://169.254.169.254" {
		t.Errorf("gce is asked at %s", e)
	}
	if e := s[1].(*aws).endpoint; e != "http://[fd00:ec2::254]" {
		t.Errorf("aws is asked at %s", e)
	}
	if a := s[2].(*azure); a.endpoint != "http://127.0.0.1:1" || !a.acknowledge {
		t.Errorf("azure: %+v", a)
	}
}

func TestMistakesAreRefused(t *testing.T) {
	for _, bad := range []struct {
		c    Config
		want string
	}{
		{Config{GCE: Endpoint{Endpoint: "metadata.google.internal"}}, "gce.endpoint: "},
		{Config{AWS: Endpoint{Endpoint: "http://169.254.169.254/latest"}}, "aws.endpoint: "},
		{Config{Azure: Azure{Endpoint: Endpoint{Endpoint: "ftp://x"}}}, "azure.endpoint: "},
		{Config{Logind: Endpoint{Endpoint: "tcp:host=x,port=1"}}, "logind.endpoint: "},
	} {
		if err := bad.c.Validate(); err == nil || !strings.HasPrefix(err.Error(), bad.want) {
			t.Errorf("%+v: %v, want %s", bad.c, err, bad.want)
		}
	}
}
