package kube

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var refusedRequest = regexp.MustCompile(
	`User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"(?: in the namespace "([^"]*)")?`)

// LacksRight reports whether RBAC refuses the caller, and not admission the object: the API server calls both Forbidden.
func LacksRight(err error) bool { return refusedRequest.MatchString(err.Error()) }

func denied(err error) error {
	next := "oc auth can-i --list"
	if found := refusedRequest.FindStringSubmatch(err.Error()); found != nil && found[1] == "system:anonymous" {
		next = "oc login"
	} else if found != nil {
		next = Grant(found[1], found[2], found[3], found[4], found[5])
	}
	return fail.Advise(fail.Because(fail.PermissionDenied, err), "%s", next)
}

// Grant are the commands that let user do verb, or several with commas; an empty namespace means the whole cluster.
func Grant(user, verb, resource, group, namespace string) string {
	resource, sub, isSub := strings.Cut(resource, "/")
	name := "ml-dev-env-" + strings.ReplaceAll(verb, ",", "-") + "-" + resource
	if isSub {
		name += "-" + sub
	}
	if group != "" {
		resource += "." + group
	}
	if isSub {
		resource += "/" + sub
	}
	kind, where := "role", " -n "+namespace
	if namespace == "" {
		kind, where = "clusterrole", ""
	}
	return fmt.Sprintf("oc create %s %s%s --verb=%s --resource=%s\noc create %sbinding %s%s --%s=%s %s",
		kind, name, where, companions(verb), resource, kind, name, where, kind, name, subject(user))
}

// companions adds the verbs that the API server would refuse next.
func companions(verb string) string {
	switch verb {
	case "patch":
		// Server-side apply of what does not exist asks for create as well.
		return "patch,create"
	case "list", "watch":
		return "list,watch"
	}
	return verb
}

func subject(user string) string {
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		return "--serviceaccount=" + account
	}
	return "--user=" + user
}
