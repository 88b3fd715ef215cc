package admin

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
)

func outcomes(t *testing.T, c *fakeCluster, r Request) []string {
	t.Helper()
	var changes []string
	if _, err := Apply(t.Context(), c.Clients, r, func(string) {}, func(change install.Change) { changes = append(changes, change.Object+" "+string(change.Outcome)) }); err != nil {
		t.Fatal(err)
	}
	return changes
}

func TestApplyTwice(t *testing.T) {
	rebooting := own(t)
	rebooting.Reboot = true
	tests := []struct {
		name   string
		r      Request
		before []*unstructured.Unstructured
		want   []string
	}{
		{"our own constraint", own(t), nil, []string{
			"serviceaccount/ml-dev-sa", "securitycontextconstraints/mlenv-rdma", "clusterrole/system:openshift:scc:mlenv-rdma", "rolebinding/system:openshift:scc:mlenv-rdma",
		}},
		{"h-kim", hKim(t), append(nics(103, 104, 105, 106), constraint("nccl-scc", "IPC_LOCK", "SYS_ADMIN")), []string{
			"serviceaccount/h-kim-sa", "clusterrole/system:openshift:scc:nccl-scc", "rolebinding/system:openshift:scc:nccl-scc",
			"networkattachmentdefinition/eno5np0-network", "networkattachmentdefinition/eno6np0-network",
			"networkattachmentdefinition/eno7np0-network", "networkattachmentdefinition/eno8np0-network",
		}},
		{"with a reboot", rebooting, []*unstructured.Unstructured{workers(nil, nil, 3, "Updated")}, []string{
			"serviceaccount/ml-dev-sa", "securitycontextconstraints/mlenv-rdma", "clusterrole/system:openshift:scc:mlenv-rdma", "rolebinding/system:openshift:scc:mlenv-rdma",
			"machineconfig/99-worker-crio-memlock", "machineconfig/99-worker-iommu-passthrough",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, test.before...)
			for _, outcome := range []install.Outcome{install.Created, install.Unchanged} {
				var want []string
				for _, object := range test.want {
					want = append(want, object+" "+string(outcome))
				}
				got := outcomes(t, c, test.r)
				slices.Sort(want)
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if len(c.applied) != len(test.want) {
				t.Errorf("%d objects were changed in both runs, want %d", len(c.applied), len(test.want))
			}
		})
	}
}

// TestOthersKeepTheirRight: oc adm policy add-scc-to-user keeps all accounts of a namespace in one binding, and applying a
// list of subjects replaces the list.
func TestOthersKeepTheirRight(t *testing.T) {
	c := newCluster(t, constraint("privileged", "*"))
	first, second := requestOf(fileOf(t, "cairo")), requestOf(fileOf(t, "cairo"))
	first.Namespace, second.Namespace, second.ServiceAccount = "team", "team", "h-kim-sa"
	outcomes(t, c, first)
	got := outcomes(t, c, second)
	want := []string{"clusterrole/system:openshift:scc:privileged unchanged", "serviceaccount/h-kim-sa created", "rolebinding/system:openshift:scc:privileged changed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, account := range []string{"ml-dev-sa", "h-kim-sa"} {
		if !c.bound("system:serviceaccount:team:"+account, "privileged", "team") {
			t.Errorf("%s may not use privileged", account)
		}
	}
}

func TestCopies(t *testing.T) {
	c := newCluster(t, append(nics(103, 104, 103, 106), constraint("nccl-scc", "IPC_LOCK"))...)
	plan, err := Apply(t.Context(), c.Clients, hKim(t), func(string) {}, func(install.Change) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0], "default/eno5np0-network (10.0.103.0/24) and default/eno7np0-network (10.0.103.0/24)") {
		t.Errorf("warnings %q, want that of eno5np0 and eno7np0", plan.Warnings)
	}
	original := nics(103)[0]
	made := c.get("NetworkAttachmentDefinition", "k8s.cni.cncf.io/v1", "team", original.GetName())
	if diff := cmp.Diff(original.Object["spec"], made.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"k8s.v1.cni.cncf.io/resourceName": "openshift.io/eno5np0rdma"}, made.GetAnnotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if made.GetUID() != "" || len(made.GetOwnerReferences()) > 0 {
		t.Errorf("uid %q, owners %v: want none", made.GetUID(), made.GetOwnerReferences())
	}
}

// TestNothingIsHalfApplied: each of these fails with nothing changed.
func TestNothingIsHalfApplied(t *testing.T) {
	elsewhere := own(t)
	elsewhere.Namespace = "new"
	rebooting := own(t)
	rebooting.Reboot = true
	paused := workers(nil, []string{"a"}, 0)
	paused.Object["spec"].(map[string]any)["paused"] = true
	tests := []struct {
		name   string
		r      Request
		before []*unstructured.Unstructured
		mutate func(*fakeCluster)
		reason fail.Reason
		want   []string
		next   string
	}{
		{"no namespace", elsewhere, nil, nil, fail.InvalidInput, []string{"preparing namespace new: it does not exist"}, "oc new-project new"},
		{"rights", own(t), nil, func(c *fakeCluster) {
			c.refused = []string{"create securitycontextconstraints", "patch securitycontextconstraints", "patch clusterroles"}
		}, fail.PermissionDenied, []string{
			"nothing was changed: 2 of 4 objects are refused",
			"securitycontextconstraints.security.openshift.io mlenv-rdma: may not create, patch",
			"clusterroles.rbac.authorization.k8s.io system:openshift:scc:mlenv-rdma: may not patch",
		}, "--output=yaml"},
		{"admission", own(t), nil, func(c *fakeCluster) { c.refusedApply = []string{"ClusterRole", "RoleBinding"} }, fail.PermissionDenied, []string{
			"nothing was changed", "clusterroles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io", "permissions not currently held",
		}, ""},
		{"no such constraint", hKim(t), nics(103, 104, 105, 106), nil, fail.InvalidInput, []string{"SecurityContextConstraints nccl-scc: it does not exist"}, "oc get scc"},
		{"a constraint without IPC_LOCK", hKim(t), append(nics(103, 104, 105, 106), constraint("nccl-scc", "SYS_ADMIN")), nil, fail.InvalidInput,
			[]string{"its allowedCapabilities are [SYS_ADMIN]: want IPC_LOCK among them"}, "oc edit scc nccl-scc"},
		{"attachments missing", hKim(t), append(nics(103, 104), constraint("nccl-scc", "IPC_LOCK")), nil, fail.InvalidInput,
			[]string{"not found: default/eno7np0-network, default/eno8np0-network"}, "oc get network-attachment-definitions"},
		{"no such pool", rebooting, nil, nil, fail.InvalidInput, []string{"MachineConfigPool worker: it does not exist"}, "oc get machineconfigpools"},
		{"a paused pool", rebooting, []*unstructured.Unstructured{paused}, nil, fail.InvalidInput, []string{"it is paused"}, `{"spec":{"paused":false}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, test.before...)
			if test.mutate != nil {
				test.mutate(c)
			}
			_, err := Apply(t.Context(), c.Clients, test.r, func(string) {}, func(install.Change) {})
			if fail.ReasonOf(err) != test.reason || !strings.Contains(fail.NextOf(err), test.next) {
				t.Fatalf("%v: reason %s, next %q; want %s, %q", err, fail.ReasonOf(err), fail.NextOf(err), test.reason, test.next)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant %q", err, want)
				}
			}
			if len(c.applied) > 0 {
				t.Errorf("%v were applied", c.applied)
			}
		})
	}
}

func TestHalfwayIsSaid(t *testing.T) {
	c := newCluster(t)
	c.refuseReal = "RoleBinding"
	_, err := Apply(t.Context(), c.Clients, own(t), func(string) {}, func(install.Change) {})
	if err == nil || !strings.Contains(err.Error(), "applied before it: serviceaccount/ml-dev-sa, securitycontextconstraints/mlenv-rdma, clusterrole/") {
		t.Errorf("%v: want what was applied before it", err)
	}
	if next := fail.NextOf(err); !strings.Contains(next, "the same command again") {
		t.Errorf("next %q, want the same command again", next)
	}
}
