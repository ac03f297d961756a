// Package api is the agent's HTTP interface. It has the wire types, the routes and
// handlers of each part of the agent, access control, and errors as status codes with
// stable string codes. The OpenAPI document is made from the same route table. Parts
// names the parts. Package internal/control/api/client is the client.
package api
