// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// deletion is a row for a function. site is FILE:FUNCTION below internal or cmd, or several of them. asks is what the function looks at
// first, or its caller where the text says so: who still needs what it deletes. tests are functions FOLDER.TestNAME that show that it asks.
type deletion struct{ site, deletes, asks, tests string }

// own is for a folder that the same process made for itself a moment before.
const own = "its own scratch"

// deletions lists every delete by a client of Kubernetes, and every RemoveAll. A function that removes single files needs no row if it made
// them, or names each one; those that remove whatever they find in a folder, or call such a function, do have one.
var deletions = []deletion{
	{"cli/claims/command.go:confirmAndDelete", "named claims, with their files", "no pod mounts it, no Lease's environment uses it, " +
		"no unfinished run will mount it, by receipts and by PipelineRuns; again after the user's answer; the UID", "cli/claims.TestDelete"},
	{"pipeline/receipt/store.go:remove", "receipts", "Prune: its run has ended, and Keep newer ones of its environment and schedule stay; " +
		"Delete: it is still of the same run; the UID",
		"pipeline/receipt.TestDelete pipeline/receipt.TestPrune pipeline/receipt.TestPruneKeepsRunsInProgress"},
	{"cli/runs/cluster.go:onCluster.remove", "receipts", "pruneReceipts: unless it is named, its PipelineRun is gone; --files: no run in " +
		"progress is of its series; the user's answer", "cli/runs.TestPruneReceipts cli/runs.TestPruneFiles cli/runs.TestNothingHiddenIsPruned"},
	{"agent/program/files.go:removeFiles", "records and work folders on a claim", "the path is below the folder; the caller, prune --files: " +
		"no run in progress is of the series", "agent/program.TestListOfWorkingDirectory cli/runs.TestPruneFiles"},
	{"cli/runs/here.go:onMachine.remove", "local runs", "pruneLocal: no run in progress is of its series; the user's answer",
		"cli/runs.TestLocalPrune cli/runs.TestLocalPruneKeepsTheSeries"},
	{"env/local/run.go:Run.Remove env/local/run.go:Run.removeScratch", "a local run: record, receipt, work folder; temporary files of one " +
		"that was killed", "nothing holds its lock; the path of the scratch folder is one of that kind",
		"env/local.TestKilled env/local.TestRemoveTakesNothingElse"},
	{"pipeline/launch/launch.go:Delete", "a PipelineRun", "the UID; its callers ask more: the next two rows", "cli/runs.TestStartAgain"},
	{"pipeline/launch/launch.go:Restart", "a PipelineRun, to start it again", "the caller: no step of it has run, because its pods came " +
		"before their pull secrets", "cli/runs.TestCourse cli/runs.TestStartAgain"},
	{"cli/runs/environment.go:choice.start", "its new PipelineRun", "another run in progress has its environment", "cli/runs.TestRunsAtOnce"},
	{"install/install.go:deleteAll", "installed objects, and Leases", "install: it is ours, not among the new ones, no other cluster file " +
		"has it; uninstall: no run, no environment; or --end-runs", "install.TestInstallPrunesItsOwn install.TestUninstallRefusesWhileInUse"},
	{"cli/schedule/command.go:remove", "the objects of a schedule", "the label of schedules, and the name; the UID",
		"cli/schedule.TestRemove"},
	{"env/lease/lease.go:Client.delete", "a Lease", "the UID; DeleteSeen: it has not changed since the caller judged its holder",
		"env/lease.TestDelete env/lease.TestAcquireLeavesWhatIsRenewedMeanwhile steps/reaper.TestTakenMeanwhile"},
	{"env/pods.go:Environment.Release", "a Lease", "the caller: it holds it, or nobody does, or --force; at a step's end: no teardown follows",
		"steps/teardown.TestWhoseEnvironment env.TestDetachGivesBackWhereNoTeardownFollows"},
	{"env/pods.go:Environment.endPods", "a StatefulSet", "the Lease that was released owns it; the UID", "env.TestRelease"},
	{"env/pods.go:Environment.deletePod", "a node's pod", "the UID; endPods: the StatefulSet controls it; LeaveOut: others are left for it, " +
		"and it is still on the faulty one; ReplacePod: it is the one that lost its devices", "env.TestRelease env.TestReplacePod " +
		"env.TestLeaveOutOfAPodThatHasMoved steps/train.TestLeaveOut"},
	{"steps/provision/change.go:provisioner.change", "a StatefulSet that is to change", "--on-change=recreate, and each node that runs says " +
		"that it has no job; the UID", "steps/provision.TestChangedRequest"},
	{"steps/provision/pullsecrets.go:provisioner.replaceWithoutPullSecrets", "nodes' pods", "it cannot pull an image, and lacks a Secret " +
		"that its account has now; the UID", "steps/provision.TestPodsWithoutPullSecretsAreReplaced"},
	{"steps/provision/services.go:provisioner.applyNodeZero", "the Service of node 0", "no service is requested, and it is this " +
		"environment's; the UID", "steps/provision.TestServices steps/provision.TestServicesThatCannotBe"},
	{"steps/provision/services.go:provisioner.applyRoutes", "Routes", "it is not requested, and this environment's; the UID",
		"steps/provision.TestServices steps/provision.TestServicesThatCannotBe"},
	{"cli/fetch/pod.go:pod.remove", "pods of mlenv fetch", "the UID; removeEnded: the label, and that it has ended",
		"cli/fetch.TestEndedPodsAreRemoved"},
	{"agent/treestore/collect.go:Store.remove", "a tree", "Collect: neither current nor among the newest; no job or work folder needs it",
		"agent/treestore.TestCollect agent/server.TestUnreadableRecordPins agent/treestore.TestNodesShare"},
	{"agent/treestore/collect.go:remover.emptyFolder", "files of a tree or work folder, and folders that are empty then",
		"it is as sync wrote it, or Python compiled it from such a file", "agent/treestore.TestCollectLeavesWhatProgramsWrote"},
	{"agent/treestore/work.go:remover.removeAll", "files of a work folder", "it is as sync wrote it; the caller: no node uses the folder",
		"agent/treestore.TestUnchangedFilesAreDeleted agent/treestore.TestNodesShare"},
	{"agent/treestore/work.go:Store.clean", "the notes about a work folder", "no node uses it; CleanUp: none has renewed its use for a day",
		"agent/treestore.TestNodesShare agent/treestore.TestAbandoned"},
	{"agent/treestore/collect.go:Store.removeOlder", "scraps of transfers", "it is more than a day old",
		"agent/treestore.TestCollectDropsScraps"},
	{"agent/treestore/sources.go:Store.has", "a kept content", "its digest is not its name", "agent/treestore.TestKeptContentsAreRead"},
	{"agent/treestore/receive.go:Store.dropKept", "kept contents", "the tree that has just landed has it",
		"agent/treestore.TestKeptContentsOfOthersStay"},
	{"agent/venv/collect.go:item.remove", "a virtual environment", "Collect: not among the last used, and unused for long; twice: no job " +
		"runs; its last use is still the same", "agent/venv.TestCollect agent/venv.TestCollectSeesALateUse"},
	{"agent/venv/venv.go:publish", "the virtual environment it made", "a complete one has its name", "agent/venv.TestPublishKeepsTheFirst"},
	{"agent/server/extensions.go:Config.removeLocks", "locks of torch's extensions", "no process has it open; the folder is this node's",
		"agent/server.TestLocksOfExtensions agent/server.TestLocksOfOthersStay"},
	{"source/tree/landing.go:Landing.removeParts", "parts of contents", "it has not been written to for an hour",
		"source/tree.TestLandingRemovesOldParts"},
	{"source/git/git.go:empty", "what a failed Fetch wrote", "the folder was empty before", "source/git.TestFetchNeedsAnEmptyFolder"},
	{"claimfile/claimfile.go:RemoveAll claimfile/claimfile.go:RemoveFolder", "what the other rows say",
		"both paths are absolute, and one is below the other, also through links", "claimfile.TestRemoveAll"},
	{`agent/server/job.go:job.leaveNothing agent/treestore/receive.go:Store.Receive agent/treestore/work.go:Store.lay
agent/venv/venv.go:install cli/runs/folder.go:packedFolder.remove cli/runs/local.go:runOptions.localSource
cli/setup/stepsimage.go:stepsImage.build steps/syncrepo/run.go:Run source/git/folder.go:Folder.Close source/git/git.go:Fetch
env/local/local.go:Environment.Shutdown env/local/local.go:Environment.claimName env/local/local.go:Start
source/git/look.go:ListFiles source/git/program.go:repository.runGit
source/git/program.go:repository.setHashKind source/git/revision.go:repository.expand steps/preflight/inputs.go:probe.repository`,
		"temporary folders", own, ""},
}

// TestDeletes fails if a function that deletes something has no row, or a row names one that does not, or a test that does not exist. It
// knows no types: a Delete with two arguments or more, other than slices.Delete, is one by a client, whatever its context is called.
func TestDeletes(t *testing.T) {
	found, single, tests, listed := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, top := range []string{"../internal", "../cmd"} {
		err := fs.WalkDir(os.DirFS(top), ".", func(name string, _ fs.DirEntry, err error) error {
			if err != nil || path.Ext(name) != ".go" {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path.Join(top, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, declared := range file.Decls {
				function := nameOf(declared)
				if strings.HasSuffix(name, "_test.go") {
					tests[path.Dir(name)+"."+function] = strings.HasPrefix(function, "Test")
					continue
				}
				site := name + ":" + function
				for node := range ast.Preorder(declared) {
					call, ok := node.(*ast.CallExpr)
					if !ok {
						continue
					}
					switch called := types.ExprString(call.Fun); called[strings.LastIndex(called, ".")+1:] {
					case "Delete", "DeleteCollection":
						found[site] = found[site] || len(call.Args) > 1 && called != "slices.Delete"
					case "RemoveAll", "RemoveFolder":
						found[site] = true
					case "Remove", "removeFile":
						single[site] = true
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range deletions {
		for _, site := range strings.Fields(row.site) {
			if !found[site] && !single[site] || listed[site] {
				t.Errorf("%s has a row, and deletes nothing, or has two rows", site)
			}
			listed[site] = true
		}
		if row.tests == "" && row.asks != own {
			t.Errorf("%s deletes %s: name the test that shows that it asks: %s", row.site, row.deletes, row.asks)
		}
		for _, name := range strings.Fields(row.tests) {
			if !tests[name] {
				t.Errorf("%s names the test %s, which does not exist", row.site, name)
			}
		}
	}
	for site, deletes := range found {
		if deletes && !listed[site] {
			t.Errorf("%s deletes something: add a row with who may still need it, and the test that shows that it asks", site)
		}
	}
}

// nameOf returns FUNCTION or TYPE.METHOD, "" for the declaration of something else.
func nameOf(declared ast.Decl) string {
	function, ok := declared.(*ast.FuncDecl)
	switch {
	case !ok:
		return ""
	case function.Recv == nil:
		return function.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(function.Recv.List[0].Type), "*") + "." + function.Name.Name
}
