package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"holdfast"
	"holdfast/internal/platform/frame"
)

// document returns the OpenAPI 3.1 document of a route table. It has 0.4 MB and is made for each
// request, because few ask for it. It panics if a type of the table has no schema: the table is
// fixed, so every test would find it.
func document(table []route) []byte {
	s := newSchemas()
	failed := map[string]any{
		"description": "The error, with a stable code.",
		"content":     content(mediaJSON, s.of(reflect.TypeFor[ErrorBody]())),
	}
	// The payloads of an exec stream belong to the document.
	s.of(reflect.TypeFor[ExecExit]())
	s.of(reflect.TypeFor[frame.Position]())
	paths := map[string]map[string]any{}
	for _, rt := range table {
		if paths[rt.path] == nil {
			paths[rt.path] = map[string]any{}
		}
		paths[rt.path][strings.ToLower(rt.method)] = operation(rt, s)
	}
	b, err := json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": "Holdfast", "version": "1", "description": "The agent of a container host. It also passes requests on to the other nodes of its fleet."},
		"paths":   paths,
		"components": map[string]any{
			"schemas":         s.named,
			"responses":       map[string]any{"error": failed},
			"securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}},
		},
		// No token is needed on the unix socket, nor for reading if none is configured.
		"security": []any{map[string]any{}, map[string]any{"token": []string{}}},
	}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("api: OpenAPI document: %v", err))
	}
	return append(b, '\n')
}

func operation(rt route, s *schemas) map[string]any {
	op := map[string]any{
		"operationId": rt.id,
		"summary":     rt.summary,
		"responses": map[string]any{
			strconv.Itoa(cmp.Or(rt.status, http.StatusOK)): answer(rt, s),
			"default": map[string]any{"$ref": "#/components/responses/error"},
		},
	}
	if rt.partial {
		op["responses"].(map[string]any)[strconv.Itoa(http.StatusPartialContent)] = answer(rt, s)
	}
	if rt.body != "" {
		op["requestBody"] = map[string]any{"required": true, "content": bytesOf(rt.body)}
	}
	if p := parameters(rt, s); len(p) > 0 {
		op["parameters"] = p
	}
	if rt.request != nil {
		t := reflect.TypeOf(rt.request)
		ref := s.of(t)
		_, required := s.named[schemaName(t)].(map[string]any)["required"]
		op["requestBody"] = map[string]any{"required": required, "content": content(mediaJSON, ref)}
	}
	return op
}

func answer(rt route, s *schemas) map[string]any {
	if rt.status == http.StatusSwitchingProtocols {
		return map[string]any{"description": "From here on frames of " + frame.Protocol + "; the last one holds an ExecExit."}
	}
	m := map[string]any{"description": rt.summary}
	switch {
	case rt.answer == nil && rt.media == "":
		m["description"] = "Done."
	case rt.answer == nil:
		m["content"] = bytesOf(rt.media)
	default:
		m["content"] = content(cmp.Or(rt.media, mediaJSON), s.of(reflect.TypeOf(rt.answer)))
	}
	return m
}

func parameters(rt route, s *schemas) []any {
	var list []any
	schemas := map[string]map[string]any{"key": keySchema(), "node": s.of(reflect.TypeFor[holdfast.NodeID]()), "id": {"type": "string"}, "name": {"type": "string"}}
	if strings.HasPrefix(rt.path, "/v1/snapshots/") {
		schemas["name"] = keySchema()
	}
	for _, name := range []string{"key", "node", "id", "name"} {
		if strings.Contains(rt.path, "{"+name+"}") {
			list = append(list, map[string]any{"name": name, "in": "path", "required": true, "schema": schemas[name]})
		}
	}
	for _, p := range rt.query {
		about := map[string]any{"name": p.name, "in": "query", "description": p.summary, "schema": s.ofParam(p.zero)}
		if _, ok := p.zero.(needed); ok {
			about["required"] = true
		}
		list = append(list, about)
	}
	return list
}

// bytesOf is the content of a body that is text, or no text at all.
func bytesOf(media string) map[string]any {
	schema := map[string]any{"type": "string"}
	if !strings.HasPrefix(media, "text/") {
		schema["format"] = "binary"
	}
	return content(media, schema)
}

func content(media string, schema map[string]any) map[string]any {
	return map[string]any{media: map[string]any{"schema": schema}}
}
