// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// validate adds a problem for every value that is well-formed and invalid.
func (r *reader) validate(errs field.ErrorList) {
	for _, err := range errs {
		reported := slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Path == err.Field })
		if reported || r.misspelt[err.Field] {
			continue // what could not be read has its default here
		}
		value, want := fmt.Sprint(err.BadValue), err.Detail
		if err.Type == field.ErrorTypeRequired {
			value, want = "", "is missing; "+want
		}
		r.problem(r.nearestNode(err.Field), err.Field, value, "%s", want)
	}
}

// nearestNode returns the value's place in the file. For a missing value it is the place of its parent.
func (r *reader) nearestNode(path string) *yaml.Node {
	for {
		if node, ok := r.nodes[path]; ok {
			return node
		}
		if path == "" {
			return &yaml.Node{Line: 1, Column: 1}
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// Validate returns every invalid value, and every pair of values that exclude each other.
func (f *File) Validate() field.ErrorList {
	return slices.Concat(
		f.Cluster.validate(field.NewPath("cluster")),
		f.Nodes.validate(field.NewPath("nodes")),
		f.GPUs.validate(field.NewPath("gpus"), f.Nodes.GPUNodes),
		f.Storage.validate(field.NewPath("storage")),
		f.Network.validate(field.NewPath("network")),
		required(field.NewPath("security", "service_account"), f.Security.ServiceAccount, "the service account of the pods, as in ml-dev-sa"),
		wellFormed(field.NewPath("security", "service_account"), f.Security.ServiceAccount, validation.IsDNS1123Subdomain),
		wellFormed(field.NewPath("security", "scc"), f.Security.SCC, validation.IsDNS1123Subdomain),
		invalidIf(f.Security.RunAsUser < 0 || f.Security.RunAsUser > math.MaxInt32, field.NewPath("security", "run_as_user"),
			f.Security.RunAsUser, "want a user ID from 1 to 2147483647, or nothing on OpenShift"),
		f.Security.capabilities(field.NewPath("security", "capabilities")),
		f.Resources.validate(field.NewPath("resources")),
		f.NCCL.validate(field.NewPath("nccl")),
		f.Image.validate(field.NewPath("image")),
		wellFormed(field.NewPath("notify", "secret"), f.Notify.Secret, validation.IsDNS1123Subdomain),
		f.Monitoring.validate(field.NewPath("monitoring")),
	)
}

func (m Monitoring) validate(path *field.Path) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		at := path.Child("labels").Key(name)
		errs = slices.Concat(errs,
			wellFormed(at, name, validation.IsQualifiedName),
			wellFormed(at, m.Labels[name], validation.IsValidLabelValue),
			invalidIf(name == "", at, name, "want the name of a label"),
		)
	}
	return append(errs, requiredIf(len(m.Labels) > 0 && !m.PodMonitor, path.Child("pod_monitor"),
		"labels are those of PodMonitors; want true, or no labels")...)
}

// capabilities have Kubernetes' form of their names, which lacks the kernel's CAP_.
func (s Security) capabilities(path *field.Path) (errs field.ErrorList) {
	for i, name := range s.Capabilities {
		if !capability.MatchString(name) || strings.HasPrefix(name, "CAP_") {
			errs = append(errs, field.Invalid(path.Index(i), name, "a capability's name in capitals and without CAP_, as in SYS_PTRACE"))
		}
	}
	return errs
}

var capability = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

func (c Cluster) validate(path *field.Path) field.ErrorList {
	errs := slices.Concat(
		required(path.Child("name"), c.Name, "the cluster's name, as in barcelona"),
		required(path.Child("api"), c.API, "the API server's host, as in api.cluster.example.com"),
		required(path.Child("namespace"), c.Namespace, "the namespace to work in"),
		wellFormed(path.Child("name"), c.Name, validation.IsDNS1123Label),
		wellFormed(path.Child("namespace"), c.Namespace, validation.IsDNS1123Label),
	)
	host, port, hasPort := strings.Cut(c.API, ":")
	switch {
	case strings.Contains(c.API, "://"):
		errs = append(errs, field.Invalid(path.Child("api"), c.API, "want a host without a scheme, as in "+strings.SplitN(c.API, "://", 2)[1]))
	case c.API != "" && len(validation.IsDNS1123Subdomain(host)) > 0:
		errs = append(errs, field.Invalid(path.Child("api"), c.API, "want a host name, as in api.cluster.example.com"))
	case hasPort:
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			errs = append(errs, field.Invalid(path.Child("api"), c.API, "want a port from 1 to 65535 after the colon, or none"))
		}
	}
	return errs
}

func (n Nodes) validate(path *field.Path) (errs field.ErrorList) {
	grace := time.Duration(n.StopGrace)
	for i, node := range n.GPUNodes {
		at := path.Child("gpu_nodes").Index(i)
		switch first := slices.Index(n.GPUNodes, node); {
		case node == "":
			errs = append(errs, field.Required(at, "the name of a node"))
		case first < i:
			errs = append(errs, field.Invalid(at, node, fmt.Sprintf("is listed at gpu_nodes[%d] already; list each node once", first)))
		default:
			errs = append(errs, wellFormed(at, node, validation.IsDNS1123Subdomain)...)
		}
	}
	errs = slices.Concat(errs,
		invalidIf(n.GPUNodes != nil && len(n.GPUNodes) == 0, path.Child("gpu_nodes"), "[]", "an empty list allows no node; list nodes, or "+
			"write null for any node with GPUs"),
		n.rack(path),
		wellFormed(path.Child("queue"), n.Queue, validation.IsDNS1123Subdomain),
		invalidIf(grace != 0 && (grace < time.Second || grace > time.Hour), path.Child("stop_grace"), grace.String(), "want 1s to 1h"),
	)
	for i, toleration := range n.Tolerations {
		errs = append(errs, toleration.validate(path.Child("tolerations").Index(i))...)
	}
	return errs
}

// rack checks how the rack of a node is found.
func (n Nodes) rack(path *field.Path) field.ErrorList {
	errs := wellFormed(path.Child("rack_label"), n.RackLabel, validation.IsQualifiedName)
	if n.RackPattern == "" {
		return errs
	}
	at := path.Child("rack_pattern")
	switch pattern, err := regexp.Compile(n.RackPattern); {
	case err != nil:
		errs = append(errs, field.Invalid(at, n.RackPattern, err.Error()))
	case pattern.NumSubexp() < 1:
		errs = append(errs, field.Invalid(at, n.RackPattern, `want a group in parentheses, which is the rack, as in r4pcc(\d+)u`))
	}
	return errs
}

func (n NCCL) validate(path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("debug"), n.Debug, "INFO", "WARN", "TRACE")
	for _, name := range slices.Sorted(maps.Keys(n.Env)) {
		if !strings.HasPrefix(name, "NCCL_") || len(validation.IsCIdentifier(name)) > 0 {
			errs = append(errs, field.Invalid(path.Child("env").Key(name), name, "want a variable of NCCL, as in NCCL_IB_TC"))
		}
	}
	return errs
}

func (t Toleration) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		wellFormed(path.Child("key"), t.Key, validation.IsQualifiedName),
		wellFormed(path.Child("value"), t.Value, validation.IsValidLabelValue),
		oneOf(path.Child("operator"), t.Operator, "", "Exists", "Equal"),
		oneOf(path.Child("effect"), t.Effect, "", "NoSchedule", "PreferNoSchedule", "NoExecute"),
		invalidIf(t.Operator == "Exists" && t.Value != "", path.Child("value"), t.Value, "operator Exists takes any value; leave the value "+
			"out, or write operator Equal"),
		requiredIf(t.Operator != "Exists" && t.Key == "", path.Child("key"), "operator Equal needs a key; only operator Exists can do without, "+
			"for every taint"),
	)
}

func (g GPUs) validate(path *field.Path, nodes []string) field.ErrorList {
	return slices.Concat(
		invalidIf(g.PerNode < 1, path.Child("per_node"), g.PerNode, "want at least 1"),
		invalidIf(g.DefaultNodes < 1, path.Child("default_nodes"), g.DefaultNodes, "want at least 1"),
		invalidIf(len(nodes) > 0 && g.DefaultNodes > len(nodes), path.Child("default_nodes"), g.DefaultNodes,
			fmt.Sprintf("is more than the %s of nodes.gpu_nodes; lower it or list more nodes", humanize.Count(len(nodes), "node"))),
	)
}

func (s Storage) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		wellFormed(path.Child("class_rwx"), s.ClassRWX, validation.IsDNS1123Subdomain),
		wellFormed(path.Child("class_rwo"), s.ClassRWO, validation.IsDNS1123Subdomain),
		oneOf(path.Child("mode"), string(s.Mode), string(SharedStorage), string(NodeStorage), string(AutoStorage)),
		oneOf(path.Child("caches"), string(s.Caches), "", string(ClaimCaches), string(NodeCaches)),
		positive(path.Child("workspace_size"), s.WorkspaceSize),
		positive(path.Child("datasets_size"), s.DatasetsSize),
		s.claims(path),
		requiredIf(s.Mode == SharedStorage && s.ClassRWX == "", path.Child("class_rwx"),
			"mode rwx needs a storage class that gives ReadWriteMany"),
		requiredIf(s.Mode == NodeStorage && s.ClassRWO == "", path.Child("class_rwo"), "mode volumeClaimTemplates needs a storage class that "+
			"gives ReadWriteOnce"),
		requiredIf(s.Mode == AutoStorage && s.ClassRWO == "" && s.ClassRWX == "", path.Child("class_rwo"), "want storage.class_rwx, or "+
			"storage.class_rwo, which gives each node claims of its own"),
	)
}

// claims checks the names of claims, which only nodes that share their files mount.
func (s Storage) claims(path *field.Path) (errs field.ErrorList) {
	for _, key := range []struct{ name, claim string }{{"workspace_claim", s.WorkspaceClaim}, {"datasets_claim", s.DatasetsClaim}} {
		errs = slices.Concat(errs,
			wellFormed(path.Child(key.name), key.claim, validation.IsDNS1123Subdomain),
			invalidIf(key.claim != "" && s.Mode == NodeStorage, path.Child(key.name), key.claim,
				"names one claim for all nodes, and mode volumeClaimTemplates gives each node claims of its own; want mode rwx or auto"),
		)
	}
	return append(errs, invalidIf(s.DatasetsClaim != "" && s.DatasetsClaim == s.WorkspaceClaim, path.Child("datasets_claim"), s.DatasetsClaim,
		"is storage.workspace_claim too; want another claim")...)
}

func (r Resources) validate(path *field.Path) (errs field.ErrorList) {
	check := func(name string, request, limit Quantity) {
		errs = slices.Concat(errs,
			positive(path.Child("requests", name), request),
			positive(path.Child("limits", name), limit),
			invalidIf(request.Cmp(limit.Quantity) > 0, path.Child("requests", name), request.String(),
				fmt.Sprintf("is more than resources.limits.%s, %s", name, limit.String())),
		)
	}
	check("memory", r.Requests.Memory, r.Limits.Memory)
	check("cpu", r.Requests.CPU, r.Limits.CPU)
	for where, memory := range map[string]Quantity{"requests": r.Requests.Memory, "limits": r.Limits.Memory} {
		// 128m is 0.128 bytes, and 128 is 128 bytes.
		errs = append(errs, invalidIf(memory.Value() < 1<<20, path.Child(where, "memory"), memory.String(),
			"is less than a mebibyte; want a suffix as in 128Gi")...)
	}
	return errs
}

func invalidIf(wrong bool, path *field.Path, value any, want string) field.ErrorList {
	if !wrong {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, want)}
}

func requiredIf(missing bool, path *field.Path, want string) field.ErrorList {
	if !missing {
		return nil
	}
	return field.ErrorList{field.Required(path, want)}
}

func required(path *field.Path, value, what string) field.ErrorList {
	return requiredIf(value == "", path, "want "+what)
}

// wellFormed checks an optional text by one of Kubernetes' own rules.
func wellFormed(path *field.Path, value string, check func(string) []string) field.ErrorList {
	problems := check(value)
	return invalidIf(value != "" && len(problems) > 0, path, value, strings.Join(problems, "; "))
}

// oneOf checks a word; "" among the allowed lets it be absent.
func oneOf(path *field.Path, value string, allowed ...string) field.ErrorList {
	wrong := !slices.Contains(allowed, value)
	allowed = slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
	return invalidIf(wrong, path, value, "want one of "+strings.Join(allowed, ", "))
}

// number checks an optional whole number that the file has as text.
func number(path *field.Path, value string, least, most int) field.ErrorList {
	n, err := strconv.Atoi(value)
	wrong := err != nil || n < least || n > most
	return invalidIf(value != "" && wrong, path, value, fmt.Sprintf("want a whole number from %d to %d", least, most))
}

func positive(path *field.Path, q Quantity) field.ErrorList {
	return invalidIf(q.Sign() <= 0, path, q.String(), "want more than nothing")
}
