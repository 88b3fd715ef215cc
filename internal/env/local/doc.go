// SPDX-License-Identifier: Apache-2.0

// Package local runs the nodes of an environment on this machine, if that runs Linux: agents in this process, with folders in place of
// claims.
package local

// Options are what Start starts.
type Options struct {
	// Folder is where all lies that stays: trees, records, virtual environments, and what ranks write.
	Folder string
	// Name of the environment. Environments of other names may use the folder at the same time.
	Name string
	// Nodes is how many there are. The GPUs of this machine are divided between them.
	Nodes int
	// Python is the path of the ranks' Python, "" for the python3 in PATH.
	Python string
	// Environ are the variables of this process.
	Environ []string
}
