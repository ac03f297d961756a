package bench

import (
	"os"
	"testing"
	"time"
)

func TestGatewayComparesAllWays(t *testing.T) {
	o := GatewayOptions{Conns: 10, Duration: 400 * time.Millisecond, Rounds: 1, Only: []string{"ws-64", "wss-64", "http", "h2"}, Child: []string{os.Args[0], childArg}}
	res, err := Gateway(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// Rates and latencies: of two works on three ways, of two over TLS on two.
	if res.Failed != 0 || res.Score <= 0 || len(res.Rows) != 2*(2*ways+2*(ways-1)) {
		t.Errorf("failed %d, score %v, %d rows", res.Failed, res.Score, len(res.Rows))
	}
	for _, r := range res.Rows {
		if r.N == 0 || r.P50 <= 0 {
			t.Errorf("row without figures: %+v", r)
		}
	}
	if testing.Verbose() {
		res.WriteText(os.Stdout)
	}
}
