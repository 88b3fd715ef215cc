// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// agentMain returns: the agent needs Linux.
func agentMain() {}
