// Package dev is what people do with an environment that is kept: make it, put their
// folder in it, train again in seconds, look inside, and give it back.
package dev

import "github.com/spf13/cobra"

// Commands are those of mlenv that it adds.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		upCommand(), downCommand(), trainCommand(), syncCommand(), shellCommand(), devCommand(), openCommand(),
	}
}
