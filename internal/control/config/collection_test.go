package config

import (
	"slices"
	"testing"
)

func TestImagesOfTemplatesAreKept(t *testing.T) {
	c, err := load(t, `
gc: {keep: ["base/*"]}
images: {prefetch: [redis]}
templates:
  - {name: a, image: web, port: 80, init_steps: [{name: i, image: docker.io/library/busybox:1, command: [x]}]}
  - {name: b, image: "registry.example.org:5000/team/app:2", port: 80}
`, Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"base/*", "redis:latest", "web:latest", "busybox:1", "registry.example.org:5000/team/app:2"}
	if got := c.Collection().Keep; !slices.Equal(got, want) {
		t.Errorf("kept are %q", got)
	}
	if len(c.GC.Keep) != 1 {
		t.Errorf("the configuration has changed: %q", c.GC.Keep)
	}
}
