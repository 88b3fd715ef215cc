//go:build !linux

package main

// agentMain returns: the agent needs Linux.
func agentMain() {}
