// Package api is the agent's HTTP interface: the wire types, the table of all
// routes, errors as status codes with stable string codes, who may call what,
// and an OpenAPI document that is made from the same table. The agent is behind
// the interface Backend. internal/control/api/client is the other end.
package api
