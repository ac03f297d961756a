package enginetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// archive is an image of one file with the given text, as `docker save` writes it.
func archive(t *testing.T, ref, text string) []byte {
	t.Helper()
	return archiveOf(t, ref, map[string][]byte{"file": []byte(text)}, map[string]any{"Cmd": []string{"/file"}, "Labels": map[string]string{label: "image"}})
}

// archiveOf is an image of one layer with the given files and configuration.
func archiveOf(t *testing.T, ref string, files map[string][]byte, config map[string]any) []byte {
	t.Helper()
	layer := pack(t, files)
	sum := sha256.Sum256(layer)
	encoded := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	whole := encoded(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	id := sha256.Sum256(whole)
	name := hex.EncodeToString(id[:]) + ".json"
	return pack(t, map[string][]byte{
		"layer.tar": layer, name: whole,
		"manifest.json": encoded([]map[string]any{{"Config": name, "RepoTags": []string{ref}, "Layers": []string{"layer.tar"}}}),
	})
}

func pack(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (s *suite) load(t *testing.T) {
	ref := fmt.Sprintf("enginetest-load:%d", s.names.Add(1))
	image := archive(t, ref, "#!loaded\n")
	for range 2 { // the second time there is nothing to do
		if err := s.Engine.Load(s.context(t), bytes.NewReader(image)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Engine.ImageID(s.context(t), ref); err != nil {
		t.Errorf("after the load: %v", err)
	}
	spec := s.spec()
	spec.Image = ref
	if c := s.inspect(t, s.create(t, spec)); c.Labels[label] != "yes" {
		t.Errorf("the image's label replaces the container's: %v", c.Labels)
	}
	for what, text := range map[string]string{"no archive": "what is this?", "half of one": string(image[:len(image)/2])} {
		if err := s.Engine.Load(s.context(t), strings.NewReader(text)); err == nil {
			t.Errorf("%s is loaded", what)
		}
	}
}

func (s *suite) noCapabilities(t *testing.T) {
	const sets = "grep -E '^Cap(Prm|Eff|Bnd)' /proc/1/status | tr -d '[:space:]'"
	if got := s.shell(t, s.start(t, s.spec()), sets); strings.Contains(got, "CapEff:0000000000000000") {
		t.Errorf("by default the capabilities are %s", got)
	}
	spec := s.spec()
	spec.NoCapabilities = true
	const none = "0000000000000000"
	if got := s.shell(t, s.start(t, spec), sets); got != "CapPrm:"+none+"CapEff:"+none+"CapBnd:"+none {
		t.Errorf("without any the capabilities are %s", got)
	}
	spec = s.spec()
	spec.NoCapabilities, spec.Capabilities, spec.ReadOnlyRoot = true, []string{"SYS_ADMIN"}, true
	const one = "0000000000200000" // bit 21, linux/capability.h
	id := s.start(t, spec)
	if got := s.shell(t, id, sets); got != "CapPrm:"+one+"CapEff:"+one+"CapBnd:"+one {
		t.Errorf("with one the capabilities are %s", got)
	}
	if got := s.shell(t, id, "touch /x 2>/dev/null && echo yes || echo no"); got != "no" {
		t.Error("a read-only root can be written to")
	}
}
