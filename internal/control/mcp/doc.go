// Package mcp offers an agent's API as tools of the Model Context Protocol, for programs
// with a language model. Its tools read; those that change something, and those that
// read what runs inside a session, exist only if the operator allows writes.
package mcp
