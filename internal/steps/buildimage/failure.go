// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func (b *builder) failure(ctx context.Context, build *buildv1.Build, lines []string) error {
	build, pod := b.outcome(ctx, build)
	if len(lines) == 0 && build.Status.LogSnippet != "" {
		lines = strings.Split(build.Status.LogSnippet, "\n")
	}
	e := end{plan: b.plan, BuildStatus: build.Status, name: build.Name, lines: lines}
	if seconds := build.Spec.CompletionDeadlineSeconds; seconds != nil {
		e.deadline = time.Duration(*seconds) * time.Second
	}
	if pod != nil {
		e.overdue = pod.Status.Reason == "DeadlineExceeded"
		for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			e.outOfMemory = e.outOfMemory || status.State.Terminated != nil && status.State.Terminated.Reason == "OOMKilled"
		}
	}
	return b.because(explain(e), build.Name)
}

type end struct {
	plan
	buildv1.BuildStatus
	name  string
	lines []string
	// overdue and outOfMemory are the reasons why the kubelet ended the build's pod.
	overdue, outOfMemory bool
}

// newFinding returns a finding about a build, with the lines of its log that show it.
func newFinding(reason fail.Reason, seen string, lines []string, next string) fail.Finding {
	var shown []string
	for _, line := range lines {
		if line = shortened(line); !slices.Contains(shown, line) {
			shown = append(shown, line)
		}
	}
	if len(shown) > 0 {
		seen += "\nits log:\n  " + strings.Join(shown, "\n  ")
	}
	return fail.Finding{Reason: reason, Seen: seen, Next: next}
}

func (p plan) because(f fail.Finding, build string) error {
	f.Object, f.Next = "build "+build, cmp.Or(f.Next, fmt.Sprintf("oc describe build %s -n %s", build, p.namespace))
	return f.Err("")
}

// explain finds the cause, and what shows more of it if nothing better is known.
func explain(e end) fail.Finding {
	f := e.cause()
	if f.Next == "" && e.hasLog() {
		f.Next = fmt.Sprintf("oc logs build/%s -n %s", e.name, e.namespace)
	}
	return f
}

// hasLog reports whether the server has a log of the build. For a cancelled build, and for one in phase Error, it answers 400,
// and so it does without the build's pod.
func (e end) hasLog() bool {
	return e.Phase == buildv1.BuildPhaseFailed && len(e.tail(1)) > 0
}

// cause returns the cluster's reason if it is precise, else what the output of the failed instruction shows.
func (e end) cause() fail.Finding {
	switch {
	case e.Phase == buildv1.BuildPhaseCancelled:
		return newFinding(fail.Cancelled, "it was cancelled, and not by this step", nil,
			fmt.Sprintf("start it again, unless it was cancelled on purpose; its state: oc describe build %s -n %s", e.name, e.namespace))
	case e.outOfMemory || e.Reason == buildv1.StatusReasonOutOfMemoryKilled:
		return newFinding(fail.OutOfMemory, "it was killed for memory"+e.instruction(), e.tail(4),
			"raise image.build_resources.limits.memory in the cluster file, or compile fewer things at once (MAX_JOBS)")
	case e.Reason == buildv1.StatusReasonBuildPodEvicted && diskPressure.MatchString(e.Message):
		return newFinding(fail.DiskFull, "its pod was evicted: "+e.Message, nil, evictionAdvice(e.Message))
	case e.Reason == buildv1.StatusReasonBuildPodEvicted:
		return newFinding(fail.BuildPodLost, "its pod was evicted: "+e.Message, nil, "start it again; with image.build_resources.requests in "+
			"the cluster file other pods are evicted first")
	case e.Reason == buildv1.StatusReasonBuildPodDeleted:
		return newFinding(fail.BuildPodLost, "its pod was deleted: "+e.Message, nil, "start it again")
	case e.Reason == buildv1.StatusReasonInvalidOutputReference || e.Reason == buildv1.StatusReasonInvalidImageReference:
		return newFinding(fail.InvalidInput, "the name of an image is invalid: "+e.Message, nil, "")
	case e.Reason == buildv1.StatusReasonCannotCreateBuildPod || e.Reason == buildv1.StatusReasonCannotCreateBuildPodSpec:
		return e.notCreated()
	case strings.HasPrefix(e.Message, "These resources do not exist"):
		return newFinding(fail.InvalidInput, e.Message, nil, "create them in namespace "+e.namespace+
			", or correct the cluster file; then start it again")
	case e.overdue:
		return newFinding(fail.BuildTimeout, "it did not end within "+e.deadline.String()+e.instruction(), e.tail(4),
			"give it longer: param build-timeout")
	case e.Reason == buildv1.StatusReasonPushImageToRegistryFailed || find(e.lines, pushing) != "" && find(e.lines, pushFailed) != "":
		return e.notPushed()
	}
	if row, ok := judge("builder", e.lines); ok {
		return newFinding(row.Reason, row.Means, matching(e.lines, row.Matches),
			strings.NewReplacer("{build}", e.name, "{namespace}", e.namespace).Replace(row.Next))
	}
	if f, ok := e.base(); ok {
		return f
	}
	if f, ok := e.instructionFailed(); ok {
		return f
	}
	if e.Reason == buildv1.StatusReasonFetchSourceFailed {
		return newFinding(fail.NetworkFailed, "the folder did not reach it: "+e.Message, e.tail(4), "start it again")
	}
	if line := find(e.lines, badDockerfile); e.Reason == buildv1.StatusReasonManageDockerfileFailed || line != "" {
		return newFinding(fail.DockerfileInvalid, "the Dockerfile is invalid", e.tail(4), "correct the Dockerfile")
	}
	return newFinding(fail.BuildFailed, fmt.Sprintf("%s: %s: %s", e.Phase, e.Reason, e.Message), e.tail(10), "")
}

// evictionAdvice depends on whether the pod used more than its own limit, or the disk of its node was full.
func evictionAdvice(message string) string {
	const file = " in the cluster file"
	switch clean := ", or have the node's disk cleaned"; {
	case overLimit.MatchString(message):
		return "raise image.build_resources.limits.ephemeral_storage" + file
	case strings.Contains(message, "inodes"):
		return "have the node's disk cleaned: it has too many files, whatever their size"
	case noRequest.MatchString(message):
		return "set image.build_resources.requests.ephemeral_storage" + file +
			" to what the build needs: its pod requested none, so it ran on a node without room, and was evicted before pods within their requests" +
			clean
	default:
		return "raise image.build_resources.requests.ephemeral_storage" + file + " to what the build needs, so that it runs on a node with room" +
			clean
	}
}

var (
	diskPressure = regexp.MustCompile(`(?i)ephemeral|disk|storage|no space|inodes|emptydir`)
	// The kubelet's messages (kubernetes:pkg/kubelet/eviction/helpers.go): "Pod ephemeral local storage usage exceeds the total limit of
	// containers 10Gi.", "Container docker-build was using 12Gi, request is 0, has larger consumption of ephemeral-storage.", and until 1.25
	// "..., which exceeds its request of 0."
	overLimit = regexp.MustCompile(`(?i)exceed\S* .*\blimit\b`)
	noRequest = regexp.MustCompile(`request is 0\b|exceeds its request of 0\b`)

	stepLine      = regexp.MustCompile(`^(?:\[\d+/\d+\] )?STEP \d+(?:/\d+)?: (.+)`) // [2/3] in builds of several stages
	pushing       = regexp.MustCompile(`^Pushing image `)
	pushFailed    = regexp.MustCompile(`(?i)^(warning: Push failed|error: build error: Failed to push image|Registry server Address)`)
	badDockerfile = regexp.MustCompile(
		`(?i)unknown instruction|dockerfile parse error|parse error on line|no FROM statement|Syntax error|error parsing`)
	baseFailed = regexp.MustCompile(
		`(?i)(creating build container|initializing source docker://|error pulling image|Failed to pull image|unable to (copy|pull)|copying ` +
			`system image|reading manifest|pinging container registry|determining manifest)`)

	exitStatus = regexp.MustCompile(`(?:exit status|returned a non-zero code:|exit code:?) (\d+)`)
	atStep     = regexp.MustCompile(`building at STEP "(.+?)": *(.*)`)
	// baseInLine finds the image in the error of a pull, which may be of a COPY --from.
	baseInLine = regexp.MustCompile(`docker://([^\s:"]+(?::\d+/[^\s:"]+)?(?::[\w.-]+)?(?:@sha256:[0-9a-f]+)?)`)
)

// judge returns the first row of a kind that fits a line of the output. ok is false if none does.
func judge(kind string, output []string) (row known.Row, ok bool) {
	return known.Builds().FindOf(kind, strings.Join(output, "\n"))
}

// find returns the last line that matches, "" for none.
func find(lines []string, pattern *regexp.Regexp) string {
	for _, line := range slices.Backward(lines) {
		if pattern.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// matching returns the last few lines that match. If lines differ only in numbers it returns the last of them.
func matching(lines []string, matches ...func(string) bool) (found []string) {
	const most = 6
	var seen []string
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		kind := digits.ReplaceAllString(line, "0")
		fits := slices.ContainsFunc(matches, func(matches func(string) bool) bool { return matches(line) })
		if len(found) < most && fits && !slices.Contains(seen, kind) {
			seen, found = append(seen, kind), append(found, line)
		}
	}
	slices.Reverse(found)
	return found
}

var digits = regexp.MustCompile(`\d+`)

// tail returns the last lines that are not blank.
func (e end) tail(n int) (lines []string) {
	for _, line := range e.lines {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}

func (e end) step() (instruction string, output []string) {
	output = e.lines
	for i, line := range e.lines {
		if found := stepLine.FindStringSubmatch(line); found != nil {
			instruction, output = found[1], e.lines[i+1:]
		}
	}
	return instruction, output
}

// instruction returns " in INSTRUCTION" for the last instruction that began.
func (e end) instruction() string {
	if text, _ := e.step(); text != "" {
		return " in " + shortened(text)
	}
	return ""
}

// shortened cuts the middle of a long line: the cause is often at its end.
func shortened(text string) string {
	const each = 150
	if runes := []rune(text); len(runes) > 2*each {
		return string(runes[:each]) + " … " + string(runes[len(runes)-each:])
	}
	return text
}

func (e end) notCreated() fail.Finding {
	if refused := kube.Refusal(errors.New(e.Message), kube.PodOwner{Namespace: e.namespace, ServiceAccount: "builder"}); refused != nil {
		return newFinding(fail.ReasonOf(refused), "the namespace does not allow its pod: "+e.Message, nil, fail.NextOf(refused))
	}
	return newFinding(fail.PermissionDenied, "the cluster did not create its pod: "+e.Message, nil, "oc describe build "+e.name+" -n "+
		e.namespace)
}

func (e end) notPushed() fail.Finding {
	row, _ := judge("push", e.lines)
	evidence := matching(e.lines, pushFailed.MatchString, func(line string) bool { return row.ID != "" && row.Matches(line) })
	switch {
	case row.Reason == fail.DiskFull:
		return newFinding(fail.DiskFull, "the image was not pushed: a disk is full", matching(e.lines, row.Matches),
			"have the registry's storage, or the node's disk, cleaned: oc adm prune images")
	case row.ID == "denied" && e.pushSecret != "":
		return newFinding(fail.PushRefused, "the registry refused the image with Secret "+e.pushSecret, evidence,
			fmt.Sprintf("oc create secret docker-registry %s --docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD -n %s "+
				"--dry-run=client -o yaml | oc apply -f -", e.pushSecret, e.namespace))
	}
	return newFinding(fail.PushRefused, "the registry refused the image: "+e.Message, append(evidence, e.tail(2)...),
		fmt.Sprintf("oc policy add-role-to-user system:image-builder -z builder -n %s", e.namespace))
}

func (e end) base() (fail.Finding, bool) {
	_, output := e.step()
	line := find(output, baseFailed)
	if e.Reason != buildv1.StatusReasonPullBuilderImageFailed && line == "" {
		return fail.Finding{}, false
	}
	evidence := matching(output, baseFailed.MatchString, func(line string) bool {
		_, ok := judge("base", []string{line})
		return ok
	})
	row, _ := judge("base", append(slices.Clip(evidence), e.Message))
	bases := slices.Sorted(maps.Keys(e.inputs.Bases))
	if named := baseInLine.FindStringSubmatch(line); named != nil {
		bases = []string{e.baseOf(named[1])}
	}
	which := strings.Join(bases, " or ")
	login := e.login(bases)
	switch row.ID {
	case "certificate":
		return newFinding(fail.CertificateUntrusted, "the base image "+which+" cannot be pulled: the certificate of its registry is not trusted",
			evidence,
			"have the authority added to the cluster: oc edit image.config.openshift.io/cluster (additionalTrustedCA)"), true
	case "disk-full":
		return newFinding(fail.DiskFull, "the base image "+which+" does not fit on the disk", evidence,
			"raise image.build_resources.limits.ephemeral_storage in the cluster file"), true
	case "limited":
		return newFinding(fail.ImageUnavailable, "the base image "+which+" cannot be pulled: its registry limits how often it may be pulled",
			evidence, login), true
	case "denied":
		return newFinding(fail.ImageUnavailable,
			"the base image "+which+" cannot be pulled: its registry requires credentials, or has no such image", evidence, login), true
	case "no-image":
		return newFinding(fail.ImageUnavailable, "the base image "+which+" does not exist", evidence,
			"correct image.base in the cluster file, or the FROM of the Dockerfile"), true
	case "network":
		return newFinding(fail.NetworkFailed, "the registry of the base image "+which+" cannot be reached", evidence,
			"check the name, and network.proxy in the cluster file"), true
	}
	return newFinding(fail.ImageUnavailable, "the base image "+which+" cannot be pulled", append(evidence, e.tail(3)...), login), true
}

// baseOf returns the base that the build pulled by this name: pinned bases have another one.
func (p plan) baseOf(pulled string) string {
	for base, digest := range p.inputs.Bases {
		if pulled == base || digest != "" && pulled == untagged(base)+"@"+digest {
			return base
		}
	}
	return pulled
}

// login returns what lets the build pull its bases, one of which was refused.
func (p plan) login(bases []string) string {
	for _, base := range bases {
		if namespace, _, ok := kube.InternalImage(base); ok {
			allow := kube.AllowPull(p.namespace, namespace)
			if p.pullSecret != "" {
				allow = fmt.Sprintf("image.base_pull_secret: \"-\" in the cluster file, so that the account builder pulls it and not Secret %s; or %s",
					p.pullSecret, allow)
			}
			return allow
		}
	}
	if p.pullSecret == "" {
		return p.makePullSecret(bases)
	}
	return fmt.Sprintf("put a login for %s into Secret %s, which exists: %s (this replaces its other logins)", registryOf(bases), p.pullSecret,
		p.applySecret(p.pullSecret, bases))
}

// makePullSecret returns the command that creates the base's pull secret, and the key that names it.
func (p plan) makePullSecret(bases []string) string {
	name := cmp.Or(p.pullSecret, "base-image")
	return fmt.Sprintf("%s; then image.base_pull_secret: %s in the cluster file", p.applySecret(name, bases), name)
}

// applySecret also changes a Secret that exists, where oc create alone would fail.
func (p plan) applySecret(name string, bases []string) string {
	return fmt.Sprintf("oc create secret docker-registry %s --docker-server=%s --docker-username=USER --docker-password=PASSWORD "+
		"-n %s --dry-run=client -o yaml | oc apply -f -", name, registryOf(bases), p.namespace)
}

func registryOf(bases []string) string {
	if len(bases) == 0 {
		return "REGISTRY"
	}
	host, _, ok := strings.Cut(bases[0], "/")
	if !ok || !strings.ContainsAny(host, ".:") || host == "docker.io" {
		return "https://index.docker.io/v1/"
	}
	return host
}

// instructionFailed explains why an instruction failed, by its output. Causes come before their consequences: without a
// network pip also reports that a package does not exist.
func (e end) instructionFailed() (fail.Finding, bool) {
	instruction, output := e.step()
	why := ""
	if found := atStep.FindStringSubmatch(strings.Join(output, "\n")); found != nil {
		instruction, why = found[1], found[2]
	}
	if instruction == "" || e.Reason == buildv1.StatusReasonManageDockerfileFailed {
		return fail.Finding{}, false
	}
	if row, ok := judge("build", output); ok {
		lines := matching(output, row.Matches)
		if row.Reason == fail.DependencyConflict {
			lines = around(output, row.Matches)
		}
		return newFinding(row.Reason, row.Means+" in "+shortened(instruction), lines,
			strings.ReplaceAll(row.Next, "{ca-args}", strings.Join(trustedCAArgs, " "))), true
	}
	code := exitStatus.FindStringSubmatch(strings.Join(output, "\n"))
	switch {
	case code == nil && why != "": // no program ran, as in COPY, or a signal ended it
		return newFinding(fail.BuildStepFailed, fmt.Sprintf("%s failed: %s", shortened(instruction), shortened(why)),
			(end{lines: output}).tail(12), ""), true
	case code == nil:
		return fail.Finding{}, false
	}
	return newFinding(fail.BuildStepFailed, fmt.Sprintf("exit code %s of %s", code[1], shortened(instruction)), (end{lines: output}).tail(12),
		""), true
}

// around returns the first matching line with the lines after it, in which pip lists conflicts.
func around(lines []string, matches func(string) bool) []string {
	const most = 10
	for i, line := range lines {
		if matches(line) {
			return (end{lines: lines[i:min(len(lines), i+most)]}).tail(most)
		}
	}
	return nil
}
