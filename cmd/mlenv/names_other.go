// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// byName returns: the agent and the steps need Linux.
func byName() {}
