package api_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/platform/frame"
	"holdfast/test/lab/labtest"
)

// example is a request that an operation answers as its document says.
type example struct {
	method, path, body string
	headers            []string
}

// examples has a valid request for each operation. The session "alice" runs.
func examples() map[string]example {
	return map[string]example{
		"version":        {method: "GET", path: "/v1/version"},
		"listSessions":   {method: "GET", path: "/v1/sessions"},
		"getSession":     {method: "GET", path: "/v1/sessions/alice"},
		"startSession":   {method: "POST", path: "/v1/sessions/bob/start", body: `{"template":"shell"}`},
		"stopSession":    {method: "POST", path: "/v1/sessions/stuck/stop"},
		"suspendSession": {method: "POST", path: "/v1/sessions/alice/suspend"},
		"resumeSession":  {method: "POST", path: "/v1/sessions/alice/resume"},
		"wakeSession":    {method: "POST", path: "/v1/sessions/alice/wake", body: `{"in_ms":600000}`},
		"takeSnapshot":   {method: "POST", path: "/v1/sessions/alice/snapshot", body: `{"name":"v2","keep_ms":60000}`},
		"forkSession":    {method: "POST", path: "/v1/sessions/stuck/fork", body: `{"children":["child-1","child-2"]}`},
		"listSnapshots":  {method: "GET", path: "/v1/snapshots"},
		"removeSnapshot": {method: "DELETE", path: "/v1/snapshots/v1"},
		"moveSession":    {method: "POST", path: "/v1/sessions/stuck/move"},
		"sessionUsage":   {method: "GET", path: "/v1/sessions/alice/usage"},
		"sessionLogs":    {method: "GET", path: "/v1/sessions/alice/logs?tail=2&timestamps=true&follow=false"},
		"execSession": {method: "POST", path: "/v1/sessions/alice/exec", body: `{"command":["echo","hi"]}`,
			headers: []string{"Connection: Upgrade", "Upgrade: " + frame.Protocol}},
		"forwardSession": {method: "POST", path: "/v1/sessions/alice/forward", body: `{"port":7}`,
			headers: []string{"Connection: Upgrade", "Upgrade: " + frame.Protocol}},
		"placeJob":     {method: "POST", path: "/v1/jobs/place", body: `{"images":["app:1"],"runs":3}`},
		"estimatePull": {method: "POST", path: "/v1/nodes/n1/pull-estimate", body: `{"images":["app:1","db:1"]}`},
		"runJob": {method: "POST", path: "/v1/nodes/n1/jobs", body: `{"id":"0123456789ab","job":{"images":[{"image":"app:1"}],"steps":[{"run":"true"}],"parallelism":3},"runs":[0,2]}`,
			headers: []string{"Connection: Upgrade", "Upgrade: " + frame.Protocol}},
		"startCommand":  {method: "POST", path: "/v1/sessions/alice/commands", body: `{"command":["echo","hi"],"stdin":true}`},
		"listCommands":  {method: "GET", path: "/v1/sessions/alice/commands"},
		"signalCommand": {method: "POST", path: "/v1/sessions/alice/commands/c1/signal", body: `{"signal":"TERM"}`},
		"attachCommand": {method: "POST", path: "/v1/sessions/alice/commands/c2/attach", body: `{"offset":-4}`,
			headers: []string{"Connection: Upgrade", "Upgrade: " + frame.Protocol}},
		"listEndings":          {method: "GET", path: "/v1/endings?key=oom&limit=3"},
		"sessionEndings":       {method: "GET", path: "/v1/sessions/broken/endings"},
		"nodeEndings":          {method: "GET", path: "/v1/nodes/n1/endings?limit=1"},
		"sessionEvents":        {method: "GET", path: "/v1/events?after=0&follow=false"},
		"sessionEventsByID":    {method: "GET", path: "/v1/nodes/n1/events?after=0&key=oom&follow=false"},
		"readFile":             {method: "GET", path: "/v1/sessions/alice/files?path=/etc/motd"},
		"writeFile":            {method: "PUT", path: "/v1/sessions/alice/files?path=/new&mode=0755&uid=0", body: "hello"},
		"removeFile":           {method: "DELETE", path: "/v1/sessions/alice/files?path=/etc&recursive=true"},
		"statFile":             {method: "GET", path: "/v1/sessions/alice/files/stat?path=/etc/motd&follow=true"},
		"listFiles":            {method: "GET", path: "/v1/sessions/alice/files/list?path=/etc&limit=3"},
		"makeDirectory":        {method: "POST", path: "/v1/sessions/alice/files/directory", body: `{"path":"/a/b","parents":true}`},
		"moveFile":             {method: "POST", path: "/v1/sessions/alice/files/move", body: `{"from":"/etc","to":"/etc2"}`},
		"packFiles":            {method: "GET", path: "/v1/sessions/alice/files/archive?path=/etc"},
		"unpackFiles":          {method: "PUT", path: "/v1/sessions/alice/files/archive?path=/", body: archive()},
		"watchFiles":           {method: "GET", path: "/v1/sessions/alice/files/watch?path=/etc&recursive=true"},
		"listNodes":            {method: "GET", path: "/v1/nodes"},
		"drainNode":            {method: "POST", path: "/v1/node/drain", body: `{"budget_ms":1000,"pause_engine":false}`},
		"uncordonNode":         {method: "POST", path: "/v1/node/uncordon"},
		"cordonNode":           {method: "POST", path: "/v1/node/cordon"},
		"drainNodeByID":        {method: "POST", path: "/v1/nodes/n1/drain"},
		"uncordonNodeByID":     {method: "POST", path: "/v1/nodes/n1/uncordon"},
		"cordonNodeByID":       {method: "POST", path: "/v1/nodes/n1/cordon"},
		"replaceSessions":      {method: "POST", path: "/v1/replace", body: `{"keys":["alice","stuck"],"parallel":1,"timeout_ms":60000}`},
		"listReplacementsByID": {method: "GET", path: "/v1/nodes/n1/replacements"},
		"listReplacements":     {method: "GET", path: "/v1/replacements?limit=3"},
		"listGroups":           {method: "GET", path: "/v1/groups"},
		"stopReplacing":        {method: "POST", path: "/v1/groups/db/stop-replacing"},
		"listExperiments":      {method: "GET", path: "/v1/experiments"},
		"getExperiment":        {method: "GET", path: "/v1/experiments/next-image"},
		"stopExperiment":       {method: "POST", path: "/v1/experiments/next-image/stop", body: `{"why":"enough"}`},
		"listPrefetchImages":   {method: "GET", path: "/v1/prefetch"},
		"addPrefetchImages":    {method: "POST", path: "/v1/prefetch", body: `{"images":["redis:7"]}`},
		"removePrefetchImages": {method: "POST", path: "/v1/prefetch/remove", body: `{"images":["redis:7"]}`},
		"planCollection":       {method: "GET", path: "/v1/gc/plan"},
		"listObjects":          {method: "GET", path: "/v1/gc/objects"},
		"runCollection":        {method: "POST", path: "/v1/gc/run", body: "{}"},
		"collectionStatus":     {method: "GET", path: "/v1/gc/status"},
		"listCollections":      {method: "GET", path: "/v1/gc/history?limit=2"},
		"listSpinups":          {method: "GET", path: "/v1/spinups?since=2026-01-01T00:00:00Z&kind=session&slow=true&limit=3"},
		"getSpinup":            {method: "GET", path: "/v1/spinups/" + apitest.Samples()[0].ID[:14]},
		"addSpinup":            {method: "POST", path: "/v1/spinups", body: asJSON(apitest.Samples()[1])},
		"spinupStats":          {method: "GET", path: "/v1/spinup-stats?by=driver&against=aufs&outcome=ok"},
		"spinupsUnderWay":      {method: "GET", path: "/v1/spinups-under-way"},
		"beginSpinup":          {method: "POST", path: "/v1/spinups-under-way", body: `{"name":"deploy","for_ms":60000}`},
		"endSpinup":            {method: "POST", path: "/v1/spinups-under-way/0000000000000001/end"},
		"protection":           {method: "GET", path: "/v1/protect"},
		"doctorStatus":         {method: "GET", path: "/v1/doctor"},
		"fleetSpinupStats":     {method: "GET", path: "/v1/spinup-stats/fleet?by=driver"},
		"spinupSketch":         {method: "GET", path: "/v1/nodes/n1/spinup-sketch?by=driver"},
		"doctorStatusByID":     {method: "GET", path: "/v1/nodes/n1/doctor"},
		"doctorHistory":        {method: "GET", path: "/v1/doctor/history?since=2026-01-01T00:00:00Z&limit=2&samples=true"},
		"doctorEvents":         {method: "GET", path: "/v1/doctor/events"},
		"doctorFleet":          {method: "GET", path: "/v1/doctor/fleet?by=p50"},
		"listBaselines":        {method: "GET", path: "/v1/doctor/baselines"},
		"saveBaseline":         {method: "POST", path: "/v1/doctor/baselines", body: asJSON(apitest.SomeBaseline())},
		"removeBaseline":       {method: "POST", path: "/v1/doctor/baselines/remove", body: `{"name":"ci-6.1.0"}`},
		"doctorCures":          {method: "GET", path: "/v1/doctor/cures?limit=2"},
		"allowCure":            {method: "POST", path: "/v1/doctor/cures/allow", body: `{"cure":"memcg"}`},
		"listRecordings":       {method: "GET", path: "/v1/doctor/recordings"},
		"record":               {method: "POST", path: "/v1/doctor/recordings", body: `{"for_ms":1000,"container":"web"}`},
		"getRecording":         {method: "GET", path: "/v1/doctor/recordings/20260102-020405-000"},
		"stopAgent":            {method: "POST", path: "/v1/agent/stop", body: `{"keep":true}`},
		"upgradeAgent":         {method: "POST", path: "/v1/agent/upgrade", body: `{"trial_ms":0}`},
		"lastUpgrade":          {method: "GET", path: "/v1/agent/upgrade"},
		"openapi":              {method: "GET", path: "/v1/openapi.json"},
		"healthz":              {method: "GET", path: "/healthz"},
		"readyz":               {method: "GET", path: "/readyz"},
		"metrics":              {method: "GET", path: "/metrics"},
	}
}

// archive is a tar archive with a file.
func archive() string {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "in", Typeflag: tar.TypeReg, Mode: 0o644}), w.Close()); err != nil {
		panic(err)
	}
	return b.String()
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// spec is an OpenAPI document for checking replies.
type spec struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
}

func newSpec(t *testing.T, doc map[string]any) *spec {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("doc.json", doc); err != nil {
		t.Fatal(err)
	}
	return &spec{doc, c}
}

// at follows keys into nested objects; it returns nil if one is missing.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// check compares a reply with the document.
func (s *spec) check(e example, r reply) error {
	path, _, _ := strings.Cut(e.path, "?")
	at1, op := s.operation(e.method, path)
	if op == nil {
		return fmt.Errorf("%s %s is not in the document", e.method, path)
	}
	pointer := "/paths/" + escape(at1) + "/" + strings.ToLower(e.method) + "/responses/" + strconv.Itoa(r.status)
	answer, ok := at(op, "responses", strconv.Itoa(r.status)).(map[string]any)
	if !ok {
		pointer = "/components/responses/error"
		answer, _ = at(s.doc, "components", "responses", "error").(map[string]any)
		if at(op, "responses", "default", "$ref") != "#"+pointer {
			return fmt.Errorf("status %d is not in the document", r.status)
		}
	}
	content, ok := answer["content"].(map[string]any)
	if !ok {
		if r.body != "" {
			return fmt.Errorf("there is a body, the document knows none: %s", r.body)
		}
		return nil
	}
	return s.checkBody(content, pointer, r)
}

func (s *spec) checkBody(content map[string]any, pointer string, r reply) error {
	media := slices.Collect(maps.Keys(content))[0]
	want, _, _ := mime.ParseMediaType(media)
	have, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil || want != have {
		return fmt.Errorf("media type is %q, the document says %q", have, want)
	}
	schema, err := s.compiler.Compile("doc.json#" + pointer + "/content/" + escape(media) + "/schema")
	if err != nil {
		return err
	}
	if have == "text/plain" || have == "application/octet-stream" || have == "application/x-tar" {
		return schema.Validate(r.body)
	}
	lines := []string{r.body}
	if have == "application/x-ndjson" {
		lines = strings.Split(strings.TrimSpace(r.body), "\n")
	}
	if have == "text/event-stream" {
		lines = nil
		for l := range strings.Lines(r.body) {
			if data, ok := strings.CutPrefix(l, "data: "); ok {
				lines = append(lines, data)
			}
		}
	}
	for _, l := range lines {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(l))
		if err != nil {
			return err
		}
		if err := schema.Validate(v); err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	return nil
}

// operation returns the document's operation for a real path.
func (s *spec) operation(method, path string) (string, map[string]any) {
	have := strings.Split(path, "/")
	paths, _ := s.doc["paths"].(map[string]any)
	for p, item := range paths {
		want := strings.Split(p, "/")
		if slices.EqualFunc(want, have, func(w, h string) bool { return w == h || w == "{key}" || w == "{node}" || w == "{id}" || w == "{name}" }) {
			if op, ok := at(item, strings.ToLower(method)).(map[string]any); ok {
				return p, op
			}
		}
	}
	return "", nil
}

// escape makes a key part of a JSON pointer in a URL fragment (RFC 6901).
func escape(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D", " ", "%20", ";", "%3B", "=", "%3D").Replace(s)
}

func served(t *testing.T) (*apitest.Backend, *spec, func(example) reply) {
	b := &apitest.Backend{Files: t.TempDir()}
	if err := errors.Join(os.Mkdir(filepath.Join(b.Files, "etc"), 0o755), os.WriteFile(filepath.Join(b.Files, "etc", "motd"), []byte("hello\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []holdfast.SessionKey{"alice", "stuck"} {
		if _, err := b.StartSession(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range [][]string{{"wait"}, {"echo", "hi"}} {
		if _, err := b.StartCommand(t.Context(), "alice", api.ExecRequest{Command: command}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Parts().Prefetcher.Add("redis:7"); err != nil {
		t.Fatal(err)
	}
	b.SetSpinups(apitest.Samples())
	b.SetDoctor()
	b.SetGroups(holdfast.Group{Name: "db", Replicas: []holdfast.Replica{{Key: "db-0", State: holdfast.ReplicaServing, Epoch: 1}}})
	if err := b.Parts().Groups.BeginReplace(t.Context(), "db", nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := b.Parts().Doctor.SaveBaseline(t.Context(), apitest.SomeBaseline()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Parts().UnderWay.Begin("outside", "deploy", time.Minute); err != nil {
		t.Fatal(err)
	}
	s := serve(t, b, api.Options{Admin: true, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintln(w, "up 1")
	})})
	var doc map[string]any
	if err := json.Unmarshal([]byte(call(t, s, "GET", "/v1/openapi.json", "").body), &doc); err != nil {
		t.Fatal(err)
	}
	return b, newSpec(t, doc), func(e example) reply { return call(t, s, e.method, e.path, e.body, e.headers...) }
}

// Every operation answers as the document says, and the document has exactly the routes
// of the table.
func TestAnswersAreAsDocumented(t *testing.T) {
	b, spec, askFailing := served(t)
	calls := examples()
	var inTable, inDoc []string
	for _, rt := range api.RouteTable() {
		inTable = append(inTable, rt.ID)
		if _, ok := calls[rt.ID]; !ok {
			t.Errorf("route %s has no example here", rt.ID)
		}
	}
	paths, _ := spec.doc["paths"].(map[string]any)
	for _, item := range paths {
		for method := range item.(map[string]any) {
			inDoc = append(inDoc, at(item, method, "operationId").(string))
		}
	}
	slices.Sort(inTable)
	slices.Sort(inDoc)
	if !slices.Equal(inTable, inDoc) {
		t.Errorf("routes are %q, the document has %q", inTable, inDoc)
	}
	for _, id := range inDoc {
		_, _, ask := served(t) // a fresh backend: some requests change what the next one needs
		r := ask(calls[id])
		if r.status >= 300 {
			t.Errorf("%s: status %d: %s", id, r.status, r.body)
		}
		if err := spec.check(calls[id], r); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	b.SetFault(fmt.Errorf("listing: %w", holdfast.ErrStore))
	failed := 0
	for _, id := range inDoc {
		r := askFailing(calls[id])
		if r.status == http.StatusServiceUnavailable {
			failed++
		}
		if err := spec.check(calls[id], r); err != nil {
			t.Errorf("%s with the store down: %v", id, err)
		}
	}
	if want := 79; failed != want { // all but exec and runJob, which fail in their streams, and those that cannot fail: version, lastUpgrade, openapi, healthz, metrics, listPrefetchImages, listExperiments, spinupsUnderWay
		t.Errorf("%d operations said that the store is down, want %d", failed, want)
	}
}

// The check above finds errors.
func TestCheckFindsMismatch(t *testing.T) {
	_, spec, ask := served(t)
	calls := examples()
	e := calls["getSession"]
	good := ask(e)
	for name, change := range map[string]func(map[string]any){
		"missing field": func(m map[string]any) { delete(m, "epoch") },
		"wrong type":    func(m map[string]any) { m["connections"] = "3" },
		"fraction":      func(m map[string]any) { m["epoch"] = 1.5 },
		"unknown field": func(m map[string]any) { m["colour"] = "blue" },
		"unknown state": func(m map[string]any) { m["state"] = "asleep" },
		"bad time":      func(m map[string]any) { m["claimed_at"] = "yesterday" },
		"null":          func(m map[string]any) { m["key"] = nil },
	} {
		var m map[string]any
		if err := json.Unmarshal([]byte(good.body), &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if spec.check(e, reply{good.status, good.header, string(b)}) == nil {
			t.Errorf("%s went unnoticed", name)
		}
	}
	if spec.check(e, reply{good.status, http.Header{"Content-Type": {"text/html"}}, good.body}) == nil {
		t.Error("wrong media type went unnoticed")
	}
	if spec.check(e, reply{http.StatusNotFound, good.header, good.body}) == nil {
		t.Error("an undocumented error went unnoticed")
	}
	// Each document is compiled anew. By default one operation in six is left out of it.
	for i, id := range slices.Sorted(maps.Keys(calls)) {
		if i%labtest.Count(6, 1) != 0 {
			continue
		}
		e := calls[id]
		less := newSpec(t, api.Document(id))
		if err := less.check(e, ask(e)); err == nil {
			t.Errorf("%s missing in the document went unnoticed", id)
		}
	}
}
