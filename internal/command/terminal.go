// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// ForTerminal returns a text for a terminal: without control characters that a training, or the author of an object, put into it,
// and with commands that this shell can run as they stand.
func ForTerminal(text string) string {
	return inShell(humanize.Plain(text), os.Args, func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	})
}

// command matches a command up to its namespace, and the flags of its cluster if it has them already.
var command = regexp.MustCompile("(?m)(^|[\\s(\"'`])(mlenv|oc|kubectl)( [^;,:(\\n]*? -n [a-z][a-z0-9-]*)((?: " +
	"--(?:context|kubeconfig)=\\S+)*)")

// inShell changes the commands in a text, which name mlenv and oc: to kubectl where oc is not installed, to the path by
// which this program was started if mlenv is not in PATH, and to the cluster that the arguments choose.
func inShell(text string, args []string, installed func(program string) bool) string {
	if strings.Contains(text, "oc ") && !installed("oc") {
		text = withKubectl(text)
	}
	self := ""
	if filepath.Base(args[0]) == "mlenv" && args[0] != "mlenv" && !installed("mlenv") {
		self = args[0]
	}
	flags := clusterFlags(args)
	if self == "" && flags == "" {
		return text
	}
	return command.ReplaceAllStringFunc(text, func(found string) string {
		part := command.FindStringSubmatch(found)
		program := part[2]
		if program == "mlenv" {
			program = cmp.Or(self, program)
		}
		return part[1] + program + part[3] + cmp.Or(part[4], flags)
	})
}

// clusterFlags returns the flags with which these arguments choose a cluster.
func clusterFlags(args []string) (flags string) {
	if dash := slices.Index(args, "--"); dash >= 0 {
		args = args[:dash]
	}
	for i, arg := range args {
		name, value, whole := strings.Cut(arg, "=")
		if name != "--kubeconfig" && name != "--context" {
			continue
		}
		if !whole && i+1 < len(args) {
			value = args[i+1]
		}
		flags += " " + name + "=" + value
	}
	return flags
}

// forOC matches the commands of oc that kubectl has too, and the log of a build, which kubectl has not.
var forOC = regexp.MustCompile(`\boc (logs build/|get projects|new-project|whoami --show-server|adm cordon|adm uncordon|` +
	`(annotate|apply|auth|config|create|delete|describe|edit|exec|get|label|logs|patch|port-forward)\b)`)

// withKubectl replaces oc by kubectl in commands that both have. Commands that only oc has stay: they concern objects that only
// OpenShift has.
func withKubectl(text string) string {
	return forOC.ReplaceAllStringFunc(text, func(command string) string {
		switch command {
		case "oc logs build/":
			return command
		case "oc get projects":
			return "kubectl get namespaces"
		case "oc new-project":
			return "kubectl create namespace"
		case "oc whoami --show-server":
			return "kubectl cluster-info"
		}
		return "kubectl " + strings.TrimPrefix(strings.TrimPrefix(command, "oc "), "adm ")
	})
}
