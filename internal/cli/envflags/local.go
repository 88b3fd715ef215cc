// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// LocalRunOf returns the local run that the first argument names. ok is false if this machine has none of that name, or if a flag chooses
// a cluster or a namespace.
func LocalRunOf(flags kube.Flags, args []string) (r local.Run, ok bool) {
	if len(args) == 0 || flags != (kube.Flags{}) {
		return r, false
	}
	return local.Find(args[0])
}

// LocalRun returns the local run that the command line means, for a command that takes runs: the one that it names, or without a name the
// newest one in progress. ok is false if there is none, or if a flag chooses a cluster or a namespace.
func (f *Flags) LocalRun() (r local.Run, ok bool) {
	switch {
	case f.ClusterFile != "" || f.Kube != (kube.Flags{}):
		return r, false
	case f.flags.Changed(NameFlag):
		return local.Find(f.flags.Lookup(NameFlag).Value.String())
	case f.Runs:
		return local.InProgress()
	}
	return r, false
}

// notLocal returns the error of a command that needs an environment on a cluster, for the name of a local run; err for any other name.
func (f *Flags) notLocal(err error) error {
	r, ok := f.LocalRun()
	if !ok {
		return err
	}
	no := fail.Becausef(fail.InvalidInput, "looking for environment %s: it is a local run, whose nodes are processes of this machine", r.Name)
	return fail.Advise(no, "mlenv status %s; logs, top, ui, doctor, receipt and fetch know local runs, too", r.Name)
}
