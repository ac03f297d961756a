package bench

import (
	"os"
	"testing"
	"time"

	"holdfast/test/lab/labtest"
)

// Clients of each kind connect, and another client is served beside them. Without -long
// there are fewer kinds.
func TestClientsOfEachKind(t *testing.T) {
	o := ClientsOptions{Clients: 2 * flooders, Window: 50 * time.Millisecond, Rounds: 1, Child: []string{os.Args[0], childArg}}
	want := len(clientKinds())
	if !labtest.Long() {
		o.Only = []string{"idle, HTTP/2", "slow body", "rapid reset"}
		want = len(o.Only)
	}
	res, err := Clients(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	table, _ := res.Details.(ClientsTable)
	if len(table) != want || res.Failed != 0 || res.Score <= 0 {
		t.Errorf("%d kinds, failed %d, score %v", len(table), res.Failed, res.Score)
	}
	for _, r := range table {
		if r.Clients == 0 || r.Without.N == 0 || r.With.N == 0 {
			t.Errorf("row without figures: %+v", r)
		}
	}
	if testing.Verbose() {
		res.WriteText(os.Stdout)
	}
}
