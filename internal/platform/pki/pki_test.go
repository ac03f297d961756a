package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
)

// newFleet makes an authority that is valid from a time on.
func newFleet(t *testing.T, began time.Time) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "fleet")
	if _, err := InitCA(dir, began); err != nil {
		t.Fatal(err)
	}
	return dir
}

// join issues a certificate for node.
func join(t *testing.T, ca string, node holdfast.NodeID, change func(*Join)) Files {
	t.Helper()
	j := Join{CA: ca, Node: node, Validity: time.Hour, Out: t.TempDir(), Now: time.Now()}
	if change != nil {
		change(&j)
	}
	if _, err := j.Do(); err != nil {
		t.Fatal(err)
	}
	return FilesIn(j.Out)
}

func load(t *testing.T, f Files) *Identity {
	t.Helper()
	id, err := Load(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func certIn(t *testing.T, path, key string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(path, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestAuthorityIsConfined(t *testing.T) {
	now := time.Now()
	dir := newFleet(t, now)
	ca := certIn(t, filepath.Join(dir, CAFile), filepath.Join(dir, CAKey))
	if !ca.IsCA || !ca.MaxPathLenZero || ca.KeyUsage != x509.KeyUsageCertSign || !slices.Equal(ca.PermittedURIDomains, []string{"node"}) || !ca.PermittedDNSDomainsCritical {
		t.Errorf("the authority is %+v", ca)
	}
	if left := ca.NotAfter.Sub(now); left < CAValidity-time.Minute || left > CAValidity {
		t.Errorf("it is good for %v", left)
	}
	if k, c := modeOf(t, filepath.Join(dir, CAKey)), modeOf(t, dir); k != 0o600 || c != 0o700 {
		t.Errorf("modes: key %o, directory %o", k, c)
	}
	before, err := os.ReadFile(filepath.Join(dir, CAKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"", CAFile} {
		if gone != "" {
			if err := os.Remove(filepath.Join(dir, gone)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := InitCA(dir, now); err == nil || holdfast.HintOf(err) == "" {
			t.Errorf("a second authority over the first: %v", err)
		}
	}
	after, err := os.ReadFile(filepath.Join(dir, CAKey))
	if err != nil || string(before) != string(after) {
		t.Errorf("the key was overwritten (%v)", err)
	}
}

func TestNodesCertificate(t *testing.T) {
	dir, now := newFleet(t, time.Now()), time.Now()
	f := join(t, dir, "web-1", func(j *Join) {
		j.Addresses = []string{"web-1.example.org", "10.1.2.3", "2001:db8::1"}
		j.Validity = 48 * time.Hour
	})
	c := certIn(t, f.Cert, f.Key)
	if len(c.URIs) != 1 || c.URIs[0].String() != "holdfast://node/web-1" || !slices.Equal(c.DNSNames, []string{"web-1.example.org"}) || len(c.IPAddresses) != 2 {
		t.Errorf("it names %v %v %v", c.URIs, c.DNSNames, c.IPAddresses)
	}
	if c.IsCA || len(c.ExtKeyUsage) != 2 || c.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("it may be used for %+v", c)
	}
	if left := c.NotAfter.Sub(now); left < 47*time.Hour || left > 49*time.Hour || c.NotBefore.After(now.Add(-14*time.Hour)) { // a clock may show the time of another zone
		t.Errorf("it is good from %v for %v", c.NotBefore, left)
	}
	if k := modeOf(t, f.Key); k != 0o600 {
		t.Errorf("the key's mode is %o", k)
	}
	if id := load(t, f); id.Node() != "web-1" || !id.Expires().Equal(c.NotAfter) {
		t.Errorf("read as %s until %v", id.Node(), id.Expires())
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(f.Key), CAKey)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the authority's key was copied to the node: %v", err)
	}
	odd := holdfast.NodeID("a%2Fb?c#d:e@f")
	if id := load(t, join(t, dir, odd, nil)); id.Node() != odd {
		t.Errorf("%s is read as %s", odd, id.Node())
	}
	if end := load(t, join(t, dir, "long", func(j *Join) { j.Validity = 20 * CAValidity })).Expires(); end.Sub(now) > CAValidity {
		t.Errorf("it outlives its authority: %v", end)
	}
}

func TestJoinRefuses(t *testing.T) {
	dir := newFleet(t, time.Now())
	old := newFleet(t, time.Now().Add(-CAValidity-time.Hour))
	open := newFleet(t, time.Now())
	if err := os.Chmod(filepath.Join(open, CAKey), 0o640); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Dir(join(t, dir, "n", nil).Cert)
	for name, c := range map[string]struct {
		change func(*Join)
		want   string
	}{
		"no authority":       {func(j *Join) { j.CA = t.TempDir() }, "no such file"},
		"an open key":        {func(j *Join) { j.CA = open }, "lets other users"},
		"an old authority":   {func(j *Join) { j.CA = old }, "it is valid only from"},
		"no node":            {func(j *Join) { j.Node = "" }, "empty"},
		"a bad node":         {func(j *Join) { j.Node = "a/b" }, "not a valid node id"},
		"no time":            {func(j *Join) { j.Validity = 0 }, "validity"},
		"a port":             {func(j *Join) { j.Addresses = []string{"web:80"} }, "neither"},
		"a wildcard":         {func(j *Join) { j.Addresses = []string{"*.example.org"} }, "neither"},
		"a zone":             {func(j *Join) { j.Addresses = []string{"fe80::1%eth0"} }, "neither"},
		"what is there":      {func(j *Join) { j.Out = taken }, "is there already"},
		"another's, renewed": {func(j *Join) { j.CA, j.Out, j.Renew = newFleet(t, time.Now()), taken, true }, "another authority"},
	} {
		j := Join{CA: dir, Node: "n", Validity: time.Hour, Out: filepath.Join(t.TempDir(), "out"), Now: time.Now()}
		c.change(&j)
		if _, err := j.Do(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if files, _ := filepath.Glob(filepath.Join(j.Out, "*")); j.Out != taken && len(files) > 0 {
			t.Errorf("%s: left %v", name, files)
		}
	}
	if id := load(t, FilesIn(taken)); id.Node() != "n" {
		t.Errorf("what was there is %s", id.Node())
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := newFleet(t, time.Now().Add(-24*time.Hour))
	good, other := join(t, dir, "a", nil), join(t, newFleet(t, time.Now()), "a", nil)
	late := join(t, dir, "a", func(j *Join) { j.Now = time.Now().Add(-2 * time.Hour) })
	open := join(t, dir, "a", nil)
	if err := os.Chmod(open.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    Files
		want string
	}{
		"an open key":       {open, "lets other users"},
		"another's key":     {Files{good.CA, good.Cert, other.Key}, "private key"},
		"another authority": {Files{other.CA, good.Cert, good.Key}, "unknown authority"},
		"run out":           {late, "expired"},
		"no certificates":   {Files{good.Key, good.Cert, good.Key}, "contains no certificate"},
		"the authority's":   {Files{good.CA, filepath.Join(dir, CAFile), filepath.Join(dir, CAKey)}, "URIs"},
	} {
		if _, err := Load(c.f, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
