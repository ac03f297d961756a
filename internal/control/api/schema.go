package api

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
)

// schemas turns Go types into JSON Schema (2020-12, as OpenAPI 3.1 uses it),
// each named struct once.
type schemas struct {
	named map[string]any
	types map[string]reflect.Type
	// limits are those of the fields, by schema and field.
	limits map[string]map[string]any
}

func newSchemas() *schemas {
	return &schemas{named: map[string]any{}, types: map[string]reflect.Type{}, limits: limits()}
}

// of returns the schema of t: a reference if t is a struct. It panics on a type that no
// route should use.
func (s *schemas) of(t reflect.Type) map[string]any {
	if m := special(t); m != nil {
		return m
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint16:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 1<<16 - 1}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.Struct:
		return s.ref(t)
	}
	panic(fmt.Sprintf("api: no schema for %v", t))
}

// ofParam returns the schema of a query parameter by its zero value.
func (s *schemas) ofParam(zero any) map[string]any {
	switch z := zero.(type) {
	case oneOf:
		return map[string]any{"type": "string", "enum": append(slices.Clone(z), "")} // "" is as absent
	case pattern:
		return map[string]any{"type": "string", "pattern": string(z)}
	case needed:
		return map[string]any{"type": "string", "pattern": string(z)}
	case span:
		return map[string]any{"type": "integer", "minimum": z.least, "maximum": z.most}
	}
	return s.of(reflect.TypeOf(zero))
}

// limits are what the handlers check beyond the types of fields, as far as a schema can
// state it.
func limits() map[string]map[string]any {
	return map[string]map[string]any{
		"ExecRequest.command":       {"minItems": 1, "prefixItems": []any{map[string]any{"type": "string", "minLength": 1}}},
		"ExecRequest.env":           {"items": map[string]any{"type": "string", "pattern": "^[^=]+="}},
		"ExecRequest.dir":           {"pattern": "^(/|$)"},
		"ExecRequest.user":          {"pattern": "^([0-9]{1,10}:[0-9]{1,10})?$"},
		"DrainRequest.budget_ms":    {"minimum": 0, "maximum": MaxDrainBudget.Milliseconds()},
		"JobImages.images":          {"minItems": 1, "maxItems": job.MaxImages, "items": map[string]any{"type": "string", "minLength": 1}},
		"JobImages.pull":            {"enum": []job.Policy{"", job.PullMissing, job.PullAlways, job.PullNever}},
		"PlaceJobRequest.runs":      {"minimum": 1, "maximum": job.MaxParallelism},
		"PlaceJobRequest.images":    {"minItems": 1, "maxItems": job.MaxImages, "items": map[string]any{"type": "string", "minLength": 1}},
		"JobRequest.id":             {"pattern": jobID().String()},
		"PlaceJobRequest.pull":      {"enum": []job.Policy{"", job.PullMissing, job.PullAlways, job.PullNever}},
		"BeginSpinupRequest.for_ms": {"minimum": 0, "maximum": MaxUnderWay.Milliseconds()},
		"BeginSpinupRequest.kind":   {"enum": []spinup.Kind{"", spinup.ForPull, spinup.ForRun}},
		"MakeDirRequest.path":       {"pattern": pathPattern},
		"MakeDirRequest.mode":       {"pattern": modePattern},
		"MakeDirRequest.uid":        {"minimum": 0},
		"MakeDirRequest.gid":        {"minimum": 0},
		"ForkRequest.children":      {"minItems": 1, "maxItems": holdfast.MaxForks, "uniqueItems": true},
		"ForwardRequest.port":       {"minimum": 1, "maximum": 1<<16 - 1},
		"SnapshotRequest.name":      keySchema(),
		"SnapshotRequest.keep_ms":   {"minimum": time.Minute.Milliseconds()},
		"MoveFileRequest.from":      {"pattern": pathPattern},
		"MoveFileRequest.to":        {"pattern": pathPattern},
		"BaselineName.name":         {"pattern": "^[a-z0-9_][a-z0-9._-]{0,63}$"},
	}
}

// merged adds keywords to the schema of a field.
func merged(schema any, more map[string]any) map[string]any {
	all := maps.Clone(schema.(map[string]any)) // of returns nothing else
	maps.Copy(all, more)
	return all
}

// special returns the schema of types whose JSON differs from their kind, and of those
// with a fixed set of values.
func special(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[holdfast.Millis]():
		most := int64(math.MaxInt64 / time.Millisecond)
		return map[string]any{"type": "number", "description": "milliseconds", "minimum": -most, "maximum": most}
	case reflect.TypeFor[holdfast.SessionKey]():
		return keySchema()
	case reflect.TypeFor[holdfast.State]():
		return map[string]any{"type": "string", "enum": []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving, holdfast.IsSuspended}}
	case reflect.TypeFor[gc.Amount]():
		return map[string]any{"type": "string", "description": "a share such as 85%, or a size such as 20GiB"}
	case reflect.TypeFor[Code]():
		return map[string]any{"type": "string", "enum": Codes()}
	}
	return nil
}

func keySchema() map[string]any {
	return map[string]any{"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
}

func (s *schemas) ref(t reflect.Type) map[string]any {
	name := schemaName(t)
	if have, ok := s.types[name]; ok && have != t {
		panic(fmt.Sprintf("api: %v and %v have one name", have, t))
	}
	if _, ok := s.types[name]; !ok {
		s.types[name] = t // before the fields: a type may contain itself
		properties, required := map[string]any{}, []string{}
		s.fields(t, properties, &required)
		m := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
		if len(required) > 0 {
			m["required"] = required
		}
		s.named[name] = m
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

// schemaName returns a type's name in the document. Types of other packages get a
// prefix.
func schemaName(t reflect.Type) string {
	prefixes := map[string]string{"spinup": "Spinup", "spinup/underway": "UnderWay", "spinup/prefetch": "Prefetch", "gc": "GC", "job": "Job",
		"doctor": "Doctor", "doctor/watch": "Doctor", "doctor/ranking": "Ranking", "doctor/rule": "Rule", "doctor/cure": "Cure", "doctor/schedule": "Schedule"}
	if t == reflect.TypeFor[holdfast.File]() {
		return "FileInfo" // generators have a File of their own, for contents
	}
	_, part, _ := strings.Cut(t.PkgPath(), "/internal/hosts/")
	return prefixes[part] + t.Name()
}

// fields adds the fields of t as encoding/json encodes them.
func (s *schemas) fields(t reflect.Type, properties map[string]any, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			s.fields(f.Type, properties, required)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			panic(fmt.Sprintf("api: field %v.%s has no JSON name", t, f.Name))
		}
		properties[name] = s.of(f.Type)
		if more, ok := s.limits[schemaName(t)+"."+name]; ok {
			properties[name] = merged(properties[name], more)
		}
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}
