// Package local runs the nodes of an environment on this machine, if that runs Linux: agents in this process, with folders in place of
// claims.
package local
