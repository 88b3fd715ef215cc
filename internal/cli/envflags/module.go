// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"strings"

	"github.com/spf13/pflag"
)

// Module is the flag -m, which names a module in place of a script, as Python's own does.
type Module string

// AddTo adds the flag.
func (m *Module) AddTo(flags *pflag.FlagSet) {
	flags.StringVarP((*string)(m), "module", "m", "",
		"instead of SCRIPT: run this module, PACKAGE.MODULE from the top of the folder or repository, as python -m does")
}

// Script returns the script that the flag stands for, "" without the flag.
func (m *Module) Script() string {
	if *m == "" {
		return ""
	}
	return "-m " + strings.TrimSpace(string(*m))
}
