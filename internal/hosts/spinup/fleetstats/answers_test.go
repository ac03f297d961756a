package fleetstats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/fleetstats"
)

// BenchmarkAnswers asks a thousand nodes with 10,000 records each, over a TLS connection of its own
// for each node, as agents do. All of them are in this process, so it also has the servers' CPU
// time.
func BenchmarkAnswers(b *testing.B) {
	const count, records = 1000, 10_000
	var all []spinup.Record
	for i := range records {
		r := spinup.NewRecord(spinup.ForRun, "app", time.Unix(int64(i), 0), spinup.Cohort{Host: "h", Driver: "overlay2"})
		r.Times[spinup.Create] = holdfast.Millis(time.Duration(rand.IntN(1e9)))
		r.Times[spinup.Start] = holdfast.Millis(time.Duration(rand.IntN(1e9)))
		all = append(all, r)
	}
	text, err := json.Marshal(spinup.NewSketch(all, spinup.Question{By: spinup.ByDriver}, spinup.DefaultRules()))
	if err != nil {
		b.Fatal(err)
	}
	var nodes []holdfast.Node
	for i := range count {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
		b.Cleanup(s.Close)
		nodes = append(nodes, holdfast.Node{ID: holdfast.NodeID(fmt.Sprintf("n%04d", i)), PeerAddress: s.URL})
	}
	pool := httptest.NewUnstartedServer(nil)
	pool.StartTLS()
	b.Cleanup(pool.Close)
	client := pool.Client() // all of them have the same certificate
	client.Transport.(*http.Transport).DisableKeepAlives = true
	f := fleetstats.Fleet{
		Nodes: func(context.Context) ([]holdfast.Node, error) { return nodes, nil },
		Ask: func(ctx context.Context, n holdfast.Node, _ spinup.Question) (s spinup.Sketch, err error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.PeerAddress, nil)
			if err != nil {
				return s, err
			}
			res, err := client.Do(req)
			if err != nil {
				return s, err
			}
			defer res.Body.Close()
			return s, json.NewDecoder(res.Body).Decode(&s)
		},
	}
	for b.Loop() {
		if r, err := f.Report(b.Context(), spinup.Question{By: spinup.ByDriver}); err != nil || r.Count != count*records {
			b.Fatalf("%d records, %v", r.Count, err)
		}
	}
	b.ReportMetric(float64(len(text)), "bytes/answer")
}
