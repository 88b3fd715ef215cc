// SPDX-License-Identifier: Apache-2.0

// Package buildstatus defines the reasons and messages of a Build's status in OpenShift's words, and the report in
// which a build's pod returns them.
package buildstatus

import (
	"encoding/json"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
)

// messages returns OpenShift's messages for the reasons that have a fixed message.
func messages() map[buildv1.StatusReason]string {
	return map[buildv1.StatusReason]string{
		buildv1.StatusReasonCannotCreateBuildPodSpec:        "Failed to create pod spec.",
		buildv1.StatusReasonCannotCreateBuildPod:            "Failed creating build pod.",
		buildv1.StatusReasonInvalidOutputReference:          "Output image could not be resolved.",
		buildv1.StatusReasonInvalidImageReference:           "Referenced image could not be resolved.",
		buildv1.StatusReasonBuildPodDeleted:                 "The pod for this build was deleted before the build completed.",
		buildv1.StatusReasonMissingPushSecret:               "Missing push secret.",
		buildv1.StatusReasonPostCommitHookFailed:            "Build failed because of post commit hook.",
		buildv1.StatusReasonPushImageToRegistryFailed:       "Failed to push the image to the registry.",
		buildv1.StatusReasonPullBuilderImageFailed:          "Failed pulling builder image.",
		buildv1.StatusReasonFetchSourceFailed:               "Failed to fetch the input source.",
		buildv1.StatusReasonInvalidContextDirectory:         "The supplied context directory does not exist.",
		buildv1.StatusReasonManageDockerfileFailed:          "Failed to prepare the dockerfile for the build.",
		buildv1.StatusReasonCancelledBuild:                  "The build was cancelled by the user.",
		buildv1.StatusReasonDockerBuildFailed:               "Dockerfile build strategy has failed.",
		buildv1.StatusReasonBuildPodExists:                  "The pod for this build already exists and is older than the build.",
		buildv1.StatusReasonNoBuildContainerStatus:          "The pod for this build has no container statuses indicating success or failure.",
		buildv1.StatusReasonFailedContainer:                 "The pod for this build has at least one container with a non-zero exit status.",
		buildv1.StatusReasonGenericBuildFailed:              "Generic Build failure - check logs for details.",
		buildv1.StatusReasonOutOfMemoryKilled:               "The build pod was killed due to an out of memory condition.",
		buildv1.StatusReasonUnresolvableEnvironmentVariable: "Unable to resolve build environment variable reference.",
		buildv1.StatusReasonCannotRetrieveServiceAccount:    "Unable to look up the service account secrets for this build.",
	}
}

// Message returns the fixed message for the reason, or "".
func Message(reason buildv1.StatusReason) string { return messages()[reason] }

// Report is the termination message of a build pod's container. OpenShift's container writes the same to the Build
// itself; this one also works while the API server is down.
type Report struct {
	Reason buildv1.StatusReason `json:"reason,omitempty"`
	// ImageDigest is the digest of the pushed image, with its algorithm.
	ImageDigest string              `json:"imageDigest,omitempty"`
	Stages      []buildv1.StageInfo `json:"stages,omitempty"`
	// LogTail are the last lines of the log.
	LogTail string `json:"logTail,omitempty"`
}

// Encode returns the report in at most max bytes. It omits the first lines of the log until the report fits.
func (r Report) Encode(max int) []byte {
	for {
		content, err := json.Marshal(r)
		if err != nil || len(content) <= max || r.LogTail == "" {
			return content
		}
		_, rest, found := strings.Cut(r.LogTail, "\n")
		if !found {
			rest = r.LogTail[min(len(r.LogTail), len(content)-max):]
		}
		r.LogTail = rest
	}
}

// Decode reads a termination message. If a container died without a report, the message is the end of its log.
func Decode(message string) Report {
	var r Report
	if json.Unmarshal([]byte(message), &r) != nil {
		return Report{LogTail: message}
	}
	return r
}

// Snippet returns the end of a failed build's log in the form of status.logSnippet: five lines. Lines of over 120
// characters lose their middle.
func Snippet(log string) string {
	log = strings.TrimRight(log, "\n")
	if log == "" {
		return ""
	}
	lines := strings.Split(log, "\n")
	lines = lines[max(0, len(lines)-5):]
	for i, line := range lines {
		if len(line) > 120 {
			lines[i] = line[:58] + "..." + line[len(line)-59:]
		}
	}
	return strings.Join(lines, "\n")
}
