// Package kubedrain_test compares Holdfast's drain with the drain of kubectl's own package. On
// the same random clusters and the same real API server, both choose the same pods and send
// the same requests in the same order. It is a separate module because kubectl's package has
// 64 MB of dependencies.
package kubedrain_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/drain"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/test/kube/kubetest"
)

// clusters is the number of random clusters.
const clusters = 100

// recorder is a proxy in front of the API server that records the requests.
type recorder struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string
	// refused returns the refused evictions since take.
	refused map[string]bool
}

func newRecorder(t *testing.T, s *kubetest.Server) *recorder {
	t.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{refused: make(map[string]bool)}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(s.Config().CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target); p.Out.Host = target.Host },
		Transport: transport,
	}
	token, err := s.Config().Token(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.note(q)
		if r.refuse(q) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, refusal)
			return
		}
		q.Header.Set("Authorization", "Bearer "+token)
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(r.Close)
	return r
}

// refusal is a server's answer if the disruption budget allows no eviction.
const refusal = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":429,"reason":"TooManyRequests",
"message":"Cannot evict pod as it would violate the pod's disruption budget.","details":{"causes":[{"reason":"DisruptionBudget"}]}}`

// refuse reports whether a request is the first eviction of one of every three pods.
func (r *recorder) refuse(q *http.Request) bool {
	if !strings.HasSuffix(q.URL.Path, "/eviction") || crc32.ChecksumIEEE([]byte(q.URL.Path))%3 > 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.refused[q.URL.Path]
	r.refused[q.URL.Path] = true
	return first
}

// note records a request. It ignores kubectl's requests that check for the eviction API,
// because all supported servers have it.
func (r *recorder) note(q *http.Request) {
	if q.URL.Path == "/api/v1" || q.URL.Path == "/api" || q.URL.Path == "/apis" {
		return
	}
	query := q.URL.Query()
	query.Del("limit") // page size
	call := q.Method + " " + q.URL.Path
	if len(query) > 0 {
		call += "?" + query.Encode()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls
	r.calls = nil
	clear(r.refused)
	return c
}

// inOrder sorts calls, because pods are evicted concurrently. The calls before the first
// eviction keep their order. Then come the calls for each pod in their order. It removes
// repeated checks whether a pod is gone.
func inOrder(calls []string) []string {
	begin := slices.IndexFunc(calls, func(c string) bool { return strings.HasSuffix(c, "/eviction") })
	if begin < 0 {
		return calls
	}
	out := slices.Clone(calls[:begin])
	rest := slices.Clone(calls[begin:])
	pod := func(c string) string {
		_, path, _ := strings.Cut(c, " ")
		return strings.TrimSuffix(path, "/eviction")
	}
	slices.SortStableFunc(rest, func(a, b string) int { return strings.Compare(pod(a), pod(b)) })
	return slices.Compact(append(out, rest...))
}

// settings are the options that both drains have.
type settings struct{ localData, force bool }

// result is the result of a drain.
type result struct {
	Chosen  []string // pods, as namespace/name
	Refused bool
	Calls   []string
}

func ours(t *testing.T, r *recorder, node string, o settings) result {
	c, err := kube.New(kube.Config{Server: r.URL}, kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := replace.Drain{Client: c, Rules: replace.Rules{LocalData: o.localData, Unmanaged: o.force}, Grace: -1, Patience: time.Minute, Again: 50 * time.Millisecond, Look: 20 * time.Millisecond}
	all, err := d.Pods(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	var x result
	pods, err := replace.Evictable(node, all)
	var refused *replace.RefusedError
	switch {
	case errors.As(err, &refused):
		x.Refused = true
		for _, p := range all {
			if p.Treatment == replace.Evict {
				x.Chosen = append(x.Chosen, p.Pod.Meta.Namespace+"/"+p.Pod.Meta.Name)
			}
		}
	case err != nil:
		t.Fatal(err)
	default:
		for _, p := range pods {
			x.Chosen = append(x.Chosen, p.Meta.Namespace+"/"+p.Meta.Name)
		}
		if err := d.Evict(t.Context(), pods); err != nil {
			t.Fatalf("our drain: %v", err)
		}
	}
	x.Calls = inOrder(r.take())
	return x
}

func theirs(t *testing.T, r *recorder, node string, o settings) result {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: r.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	d := &drain.Helper{
		Ctx: t.Context(), Client: client, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: o.localData, Force: o.force,
		Out: io.Discard, ErrOut: io.Discard, EvictErrorRetryDelay: 50 * time.Millisecond,
	}
	var x result
	list, errs := d.GetPodsForDeletion(node)
	x.Refused = len(errs) > 0
	if list == nil {
		t.Fatalf("kubectl's drain: %v", errs)
	}
	for _, p := range list.Pods() {
		x.Chosen = append(x.Chosen, p.Namespace+"/"+p.Name)
	}
	if !x.Refused {
		if err := d.DeleteOrEvictPods(list.Pods()); err != nil {
			t.Fatalf("kubectl's drain: %v", err)
		}
	}
	x.Calls = inOrder(r.take())
	return x
}

// Holdfast and kubectl's package drain the same 100 random nodes, each with new, equal pods.
func TestSameAsKubectl(t *testing.T) {
	s := cluster(t)
	owners(t, s)
	r := newRecorder(t, s)
	refused, evicted, left := 0, 0, 0
	for seed := range uint64(clusters) {
		rng := rand.New(rand.NewPCG(seed, 1))
		node := fmt.Sprintf("n%d", seed)
		pods := randomPods(rng, node)
		o := settings{rng.IntN(3) > 0, rng.IntN(3) > 0}
		makePods(t, s, pods)
		want := theirs(t, r, node, o)
		forget(t, s, pods)
		makePods(t, s, pods)
		got := ours(t, r, node, o)
		forget(t, s, pods)
		if want.Refused != got.Refused || !slices.Equal(want.Chosen, got.Chosen) || !slices.Equal(want.Calls, got.Calls) {
			t.Errorf("seed %d, %+v, pods %v:\nkubectl %+v\n   ours %+v", seed, o, pods, want, got)
		}
		if got.Refused {
			refused++
		}
		evicted += len(got.Chosen)
		left += len(pods) - len(got.Chosen)
	}
	if refused < clusters/20 || refused > clusters*9/10 || evicted < clusters || left < clusters/2 {
		t.Errorf("the clusters are not mixed: %d refused, %d pods evicted, %d left", refused, evicted, left)
	}
	t.Logf("%d clusters: %d refused, %d pods chosen, %d left", clusters, refused, evicted, left)
}
