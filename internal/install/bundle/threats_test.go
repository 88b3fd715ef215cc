// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"strings"
	"testing"
)

// threat is one row of the threat model that SECURITY.md summarizes.
type threat struct {
	// from names who or what attacks, and what they control.
	from string
	// keptFrom is what they must not reach.
	keptFrom string
	// tests show it.
	tests []string
}

// threats is the threat model. A new way to reach a node, a claim or a credential needs a row with a test.
var threats = []threat{
	{
		from:     "repository, git server, with control of the content of the named commit",
		keptFrom: "paths outside the tree; the credentials of other hosts; more disk and memory than a fetch may use",
		tests: []string{"TestFetchUnsafeTree", "TestReadContentsRefuses", "TestFetchRedirect", "TestAuthShowsNoSecret",
			"TestFetchLimitsDisk", "TestFetchLimitsMemory", "TestFetchLFSIsBounded"},
	},
	{
		from:     "author of a folder that a user trains from, with control of its files, its .git and its submodules",
		keptFrom: "a program on the user's machine; a read that never returns",
		tests:    []string{"TestFolderRunsNothing", "TestFolderOfOthers", "TestFolderDoesNotBlock"},
	},
	{
		from:     "ssh server with another key, with control of the connection",
		keptFrom: "the credentials and the tree of the known host",
		tests:    []string{"TestFetchKnownHostKeyOfSeveral"},
	},
	{
		from:     "registry, ImageStream tag, with control of the image of the named digest",
		keptFrom: "the steps' API token",
		tests:    []string{"TestTokenStays", "TestTokenGuard"},
	},
	{
		from: "training code, its image and packages, with control of everything in its pod and on its claims",
		keptFrom: "the API server; commands to other agents, and a wrong tree on them; the tree that later jobs of its commit " +
			"run; the steps, by forged or endless answers; life after its job, even by the programs that the agent runs " +
			"for it; the agent's own programs; the memory of steps and of mlenv top, by its metrics; a virtual environment " +
			"that another run uses",
		tests: []string{"TestRestricted", "TestCertificates", "TestAgentsMayOnlyReadTrees", "TestNodesPassTheTreeOn",
			"TestWrongPartIsThrownAway", "TestForgedAnswers", "TestAnswersAreBounded", "TestOnlyRegularFilesAreOpened",
			"TestContentsDoNotBlock", "TestWritesStayOutOfTheTree", "TestLayAgain", "TestStoppedSupervisor",
			"TestProgramsAreReadOnly", "TestRanksChooseNoProgramOfTheAgent", "TestNothingOutlivesTheAgentsPrograms",
			"TestTheSearchForAModuleRunsNothing", "TestDumpsRunNothing", "TestLastIsBounded",
			"TestRequirementsAreInstalledOnce"},
	},
	{
		from:     "Prometheus, or anyone who can read its Secret, with control of a certificate of the environment",
		keptFrom: "anything of an agent except /metrics; more series by what a training writes",
		tests: []string{"TestPrometheusMayOnlyReadMetrics", "TestEachRequestIsForFew", "TestCertificates",
			"TestMetricsAreBounded", "TestDevicesAreBounded"},
	},
	{
		from:     "a user who can read the ConfigMaps of a namespace, with control of a certificate of each person's environment",
		keptFrom: "anything of an agent except when its node was used last, and by what kind of use",
		tests:    []string{"TestReaperMayOnlyReadUse", "TestEachRequestIsForFew", "TestCertificates"},
	},
	{
		from:     "training code, services and users of an idle environment, with control of the answers of its agents",
		keptFrom: "the release of another environment; a release while a node is in use or does not answer",
		tests:    []string{"TestIdleEnvironments", "TestUnknownUseKeepsIt", "TestUsedMeanwhile", "TestGateNotesUse"},
	},
	{
		from:     "any process in the pod network, with connections to port 7443",
		keptFrom: "an agent",
		tests:    []string{"TestStrangersAreRefused", "TestAnotherEnvironmentIsRefused", "TestUnprovenConnections"},
	},
	{
		from: "any process in a node's pod, without a user's key, with connections to the port of ssh on loopback",
		keptFrom: "a shell, a file or a port by ssh; the node's agent by connections that prove nothing; a user's ssh, by " +
			"another host key",
		tests: []string{"TestSSHRefuses", "TestKeysExpire", "TestConnectionsWithoutAProof"},
	},
	{
		from: "a user with a key for ssh, with control of their shells on the node",
		keptFrom: "hosts of the cluster's network by forwarded ports; variables other than LANG, LC_* and TERM; connections and " +
			"channels without bound; a command after its connection is lost",
		tests: []string{"TestSSHForwards", "TestSSHCommands", "TestConnectionsAreBounded", "TestChannelsAreBounded",
			"TestSSHHangUp", "TestSilentClients"},
	},
	{
		from:     "code in an environment with services, with control of its own services, and the cookies of their host name",
		keptFrom: "a user's session with the services of another environment",
		tests:    []string{"TestSessionsStayWithTheirEnvironment", "TestGatePassesNoSession"},
	},
	{
		from:     "text of arguments and variables, with control of what the script gets",
		keptFrom: "another argument or flag of the step, the variables of the step's container",
		tests:    []string{"TestArgumentsArriveExactly", "FuzzParams", "FuzzText"},
	},
	{
		from:     "a training's output, with control of the lines of logs, receipts and pages",
		keptFrom: "workflow commands and the rest of the Action's page; a user's terminal; a line of a log; the run's receipt",
		tests: []string{"TestNoMessageIsACommand", "TestOutputThatEndsItself", "TestNoWorkflowShowsATrainingsText",
			"TestNothingSteersTheTerminal", "TestTopIsPlain", "TestNoMessageForgesALine", "TestReceiptAlwaysFits",
			"TestPartsAlwaysFit", "TestForgedMemory", "TestGoodputOfForgedMetrics"},
	},
	{
		from:     "writer of a cluster file, event or message, with control of its text",
		keptFrom: "more than a finding or a list of mistakes",
		tests:    []string{"FuzzLoad", "FuzzExplain", "FuzzRefusal"},
	},
	{
		from:     "user who may start runs, with control of their own runs, and the steps' account, see below",
		keptFrom: "an environment of another holder, unless they delete its Lease",
		tests:    []string{"TestAcquire", "TestBusyEnvironment"},
	},
	{
		from:     "user who deletes claims with `mlenv`, with control of claims that no environment may mount",
		keptFrom: "the files of an environment that exists, even of one that shares the claim",
		tests:    []string{"TestDelete"},
	},
	{
		from: "whatever lies between a client and the API server or an agent, with control of answers that are late, lost, " +
			"or sent twice",
		keptFrom: "the verdict of a run; a run or an environment without an end; a fetched file that is not the node's",
		tests: []string{"TestEveryRequestMayFail", "TestEndCancelsARunThatWasLost", "TestFinishesReceipts",
			"TestFetchNoticesAChange"},
	},
	{
		from:     "reaper, with control of Leases without a holder",
		keptFrom: "a Lease that was renewed or recreated, even if the machine's clock is wrong",
		tests:    []string{"TestTakenMeanwhile", "TestUnknownHolderKeepsIt", "TestTheClockOfTheMachineDoesNotCount"},
	},
	{
		from:     "receiver of notifications, with control of its answers; it reads the messages of failures",
		keptFrom: "another host's request by a redirect; the run's time or verdict; a log with its URL",
		tests:    []string{"TestReceiversAreBounded", "TestSecret"},
	},
	{
		from:     "sender of a GitHub event, with control of the event's content",
		keptFrom: "runs without the webhook's secret, and with it of repositories that the filter does not name; Secrets",
		tests:    []string{"TestTriggersExample"},
	},
	{
		from:     "publisher of an action, image or package, with control of new versions and moved tags",
		keptFrom: "a release or an image that names its versions",
		tests: []string{"TestUpdates", "TestDockerfilesNameTheirBase", "TestPinned", "TestRequirementsArePinned",
			"TestPipChecksHashes", "TestPins"},
	},
}

// TestThreatModel fails if a row of the threat model is incomplete, or names a test that does not exist.
func TestThreatModel(t *testing.T) {
	var tests strings.Builder
	for _, path := range filesBelow(t, `_test\.go$`, "internal", "test") {
		tests.Write(read(t, path))
	}
	for _, row := range threats {
		if row.from == "" || row.keptFrom == "" || len(row.tests) == 0 {
			t.Errorf("%+v: want all of it", row)
		}
		for _, test := range row.tests {
			if !strings.Contains(tests.String(), "\nfunc "+test+"(") {
				t.Errorf("%s: %s does not exist", row.from, test)
			}
		}
	}
}
