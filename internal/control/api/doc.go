// Package api is the agent's HTTP interface: the wire types, the routes and handlers of
// each part of the agent, access control, errors as status codes with stable string
// codes, and an OpenAPI document made from the same route table. Parts names the parts.
// Package internal/control/api/client is the client.
package api
