// Package mcp offers an agent's API as tools of the Model Context Protocol, for programs
// with a language model. Its tools read records, and for administrators files of sessions.
// Those that change something, and those that read the output of commands, exist only if
// the operator allows writes.
package mcp
