package api

import (
	"net/http"
	"slices"
	"time"

	"holdfast"
)

// route is one line of the table that the server and the OpenAPI document are
// both made from.
type route struct {
	method, path string
	id, summary  string
	access       access
	at           place
	limit        time.Duration // for the whole request; 0 is none, for streams
	query        []param
	request      any // zero value of the body's type; nil: no body
	answer       any // zero value of the answer's type, or of one line of it; nil: none
	media        string
	status       int
	handle       func(*server, http.ResponseWriter, *http.Request) error
}

// param is a query parameter.
type param struct {
	name, summary string
	zero          any // of its type
}

// Media types.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
	mediaText   = "text/plain; charset=utf-8"
)

// Time limits of requests. A start is bounded by its template's readiness limit
// first; this one is for when that fails.
const (
	limitAsk   = 10 * time.Second
	limitStop  = time.Minute
	limitMove  = 5 * time.Minute // images may be large
	limitStart = 10 * time.Minute
)

// routes lists everything that the API answers.
func routes() []route {
	return slices.Concat([]route{
		{method: "GET", path: "/v1/version", id: "version", summary: "Which build answers.",
			access: forReader, limit: limitAsk, answer: Version{}, handle: (*server).version},
		{method: "GET", path: "/v1/sessions", id: "listSessions", summary: "All sessions, by key.",
			access: forReader, limit: limitAsk, answer: Sessions{}, handle: (*server).sessions},
		{method: "GET", path: "/v1/sessions/{key}", id: "getSession", summary: "One session.",
			access: forReader, at: atItsOwner, limit: limitAsk, answer: Session{}, handle: (*server).session},
		{method: "POST", path: "/v1/sessions/{key}/start", id: "startSession", summary: "Start a session; answers when it is ready.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: StartRequest{}, answer: Session{}, handle: (*server).start},
		{method: "POST", path: "/v1/sessions/{key}/stop", id: "stopSession", summary: "Kill a session's container; answers when it is seen dead.",
			access: forAdmin, at: atItsOwner, limit: limitStop, request: Empty{}, answer: holdfast.KillReport{}, handle: (*server).stop},
		{method: "POST", path: "/v1/sessions/{key}/move", id: "moveSession", summary: "Stop a session that is to come up on another node, which is told before; answers when its container is seen dead, and its memory is there where it is to go along.",
			access: forAdmin, at: atItsOwner, limit: limitMove, request: MoveRequest{}, answer: holdfast.MoveReport{}, handle: (*server).move},
		{method: "POST", path: "/v1/sessions/{key}/suspend", id: "suspendSession", summary: "Save what a session has in memory for whoever connects next, and end its container; answers when it is seen dead.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: Empty{}, answer: holdfast.SuspendReport{}, handle: (*server).suspend},
		{method: "POST", path: "/v1/sessions/{key}/resume", id: "resumeSession", summary: "Start a suspended session with its memory; answers when it is ready.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: Empty{}, answer: Session{}, handle: (*server).resume},
		{method: "GET", path: "/v1/sessions/{key}/logs", id: "sessionLogs", summary: "The container's output. An error after the first byte is in the trailer " + ErrorTrailer + ".",
			access: forAdmin, at: atItsOwner, media: mediaText, query: []param{
				{"tail", "last lines to begin with; below 0 is all", 0},
				{"follow", "go on with what the container says from now on", false},
				{"timestamps", "begin each line with its time", false},
			}, handle: (*server).logs},
		{method: "POST", path: "/v1/sessions/{key}/exec", id: "execSession", summary: "Run a command in the container, over an upgrade to holdfast-exec/1.",
			access: forAdmin, at: atItsOwner, request: ExecRequest{}, status: http.StatusSwitchingProtocols, handle: (*server).exec},
		{method: "GET", path: "/v1/nodes", id: "listNodes", summary: "All nodes that are up, by id.",
			access: forReader, limit: limitAsk, answer: Nodes{}, handle: (*server).nodes},
		{method: "POST", path: "/v1/node/drain", id: "drainNode", summary: "Hand over everything this node owns; one line for each step, then one with the report. Goes on when the caller leaves.",
			access: forAdmin, request: DrainRequest{}, answer: DrainEvent{}, media: mediaNDJSON, handle: (*server).drain},
		{method: "POST", path: "/v1/node/uncordon", id: "uncordonNode", summary: "Let this node take sessions again after a drain or a cordon.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: (*server).uncordon},
		{method: "POST", path: "/v1/node/cordon", id: "cordonNode", summary: "Let this node take no new session; it keeps those it has.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: (*server).cordon},
		{method: "POST", path: "/v1/nodes/{node}/drain", id: "drainNodeByID", summary: "As drainNode, of the given node.",
			access: forAdmin, at: atItsNode, request: DrainRequest{}, answer: DrainEvent{}, media: mediaNDJSON, handle: (*server).drain},
		{method: "POST", path: "/v1/nodes/{node}/uncordon", id: "uncordonNodeByID", summary: "As uncordonNode, of the given node.",
			access: forAdmin, at: atItsNode, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: (*server).uncordon},
		{method: "POST", path: "/v1/nodes/{node}/cordon", id: "cordonNodeByID", summary: "As cordonNode, of the given node.",
			access: forAdmin, at: atItsNode, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: (*server).cordon},
		{method: "POST", path: "/v1/replace", id: "replaceSessions", summary: "Give sessions new containers, a few at a time; a line when each begins and when it has ended, then one with the report. When the caller leaves, no more are begun.",
			access: forAdmin, request: ReplaceRequest{}, answer: ReplaceEvent{}, media: mediaNDJSON, handle: (*server).replace},
		{method: "GET", path: "/v1/replacements", id: "listReplacements", summary: "Replacements that this node's agent did, the newest first.",
			access: forReader, limit: limitAsk, answer: Replacements{}, query: []param{{"limit", "at most that many; 0 is all that are kept", 0}},
			handle: (*server).replacements},
		{method: "GET", path: "/v1/nodes/{node}/replacements", id: "listReplacementsByID", summary: "As listReplacements, of the given node's agent.",
			access: forReader, at: atItsNode, limit: limitAsk, answer: Replacements{}, query: []param{{"limit", "at most that many; 0 is all that are kept", 0}},
			handle: (*server).replacements},
		{method: "POST", path: "/v1/agent/stop", id: "stopAgent", summary: "Make the agent end; answers before it does.",
			access: forAdmin, limit: limitAsk, request: StopAgentRequest{}, status: http.StatusNoContent, handle: (*server).stopAgent},
		{method: "GET", path: "/v1/openapi.json", id: "openapi", summary: "This document.",
			access: forReader, limit: limitAsk, answer: map[string]any{}, handle: (*server).openapi},
		{method: "GET", path: "/healthz", id: "healthz", summary: "The agent answers.",
			access: forAnyone, limit: limitAsk, answer: Health{}, handle: (*server).healthz},
		{method: "GET", path: "/readyz", id: "readyz", summary: "The agent can serve sessions.",
			access: forAnyone, limit: limitAsk, answer: Health{}, handle: (*server).readyz},
		{method: "GET", path: "/metrics", id: "metrics", summary: "Metrics in the Prometheus text format.",
			access: forReader, limit: limitAsk, media: mediaText, query: []param{{"name[]", "only metrics of this name", ""}}, handle: (*server).metrics},
	}, upgradeRoutes(), prefetchRoutes(), spinupRoutes(), gcRoutes(), protectRoutes(), doctorRoutes(), recordingRoutes())
}
