package docker_test

import (
	"bytes"
	"strings"
	"testing"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// Containers on a created network resolve each other's aliases, and other containers
// do not. The network can be removed when they are gone.
func TestNetworkWithAliases(t *testing.T) {
	e, _ := open(t)
	labels := map[string]string{"holdfast.networktest": t.Name()}
	ids := map[string]string{}
	for _, name := range []string{"one", "other"} {
		id, err := e.CreateNetwork(t.Context(), "networktest-"+name, labels)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
	}
	up := func(network, alias string) string {
		t.Helper()
		id, err := e.Create(t.Context(), engine.Spec{
			Image: labtest.Busybox, Network: network, Aliases: []string{alias},
			Entrypoint: []string{"sleep"}, Command: []string{"inf"}, WorkDir: "/etc",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	db, client, stranger := up(ids["one"], "db"), up("networktest-one", "client"), up(ids["other"], "db-too")
	lookup := func(id, name string) (int, string) {
		t.Helper()
		var out bytes.Buffer
		code, err := e.Exec(t.Context(), id, engine.Exec{Command: []string{"nslookup", name}, Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		return code, out.String()
	}
	c, err := e.Inspect(t.Context(), db)
	if err != nil || len(c.Addresses) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if code, out := lookup(client, "db"); code != 0 || !strings.Contains(out, c.Addresses[0]) {
		t.Errorf("db is not %s: %d\n%s", c.Addresses[0], code, out)
	}
	if code, out := lookup(stranger, "db"); code == 0 {
		t.Errorf("another network finds db:\n%s", out)
	}
	var pwd bytes.Buffer
	if _, err := e.Exec(t.Context(), db, engine.Exec{Command: []string{"pwd"}, Stdout: &pwd}); err != nil || pwd.String() != "/etc\n" {
		t.Errorf("in %q, %v", &pwd, err)
	}
	if err := e.RemoveNetwork(t.Context(), ids["one"]); err == nil {
		t.Error("a network that is in use was removed")
	}
	list, err := e.Networks(t.Context(), labels)
	if err != nil || len(list) != 2 || list[0].Created.IsZero() || !strings.HasPrefix(list[0].Name, "networktest-") {
		t.Errorf("%+v, %v", list, err)
	}
	for _, id := range []string{db, client, stranger} {
		if err := e.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	for range 2 { // the second time it is gone
		for _, id := range ids {
			if err := e.RemoveNetwork(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
	if list, err := e.Networks(t.Context(), labels); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
