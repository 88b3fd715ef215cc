// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	pipelinerun "github.com/ml-dev-env/ml-dev-env/internal/run"
)

// nightlyName is the name of the schedule's CronJob and account.
const nightlyName = "mlenv-nightly"

// nightly tests that the CronJob controller starts a night's run, that an interrupted Job and a
// second Job for the same time find this run again, and that no other run starts in parallel. The
// first night writes a receipt; after three of them a slower night ends with Regression. A
// schedule uses the image that is installed next, and uninstall removes it too.
func nightly(u trainer) {
	began := time.Now()
	// The controller catches up on a time in the past, so the test need not wait for the next
	// minute.
	at := began.Add(-3 * time.Minute).Truncate(time.Minute)
	u.schedule(at, "0.05")

	giveBack := u.takenBy("H. Kim")
	u.mustContain(u.jobByHand("held"), "Skipped: environment ml-dev-env is taken: it is held by H. Kim")
	giveBack()

	u.due(at)
	night := nightRun(at)
	u.runStarted(night)
	job := fmt.Sprintf("%s-%d", nightlyName, at.Unix()/60) // the name that the controller gives it
	u.kubectl("delete", "pod", "--selector="+batchv1.JobNameLabel+"="+job, "--wait=false")
	u.schedule(at.Add(time.Minute), "0.05")
	u.due(at.Add(time.Minute))
	u.waitEvent(nightlyName, "concurrency policy is Forbid")
	u.schedule(at, "0.05")
	u.leaseTaken()
	u.mustContain(u.jobByHand("beside"), "Skipped: environment ml-dev-env is taken: it is held by pipelinerun "+night)
	e := u.end(night).succeeded()
	u.waitFor("condition=complete", "job/"+job)
	u.mustContain(u.kubectl("logs", "job/"+job), "Following pipelinerun "+u.namespace+"/"+night, "step time")
	u.equal("the receipt's schedule", e.receipt.Schedule, "nightly")
	u.equal("the receipt's repository", e.receipt.Repository, u.repo)

	u.nightsBefore(e.receipt, 2)
	u.schedule(at, "0.5")
	u.kubectl("create", "job", "slow", "--from=cronjob/"+nightlyName)
	u.mustContain(u.jobAgain(at), "Following pipelinerun "+u.namespace+"/"+night)
	u.waitFor("condition=failed", "job/slow")
	u.equal("runs of the schedule", u.kubectl("get", "pipelineruns", "--selector="+pipelinerun.ScheduleLabel+"=nightly", "--output=name"),
		"pipelinerun.tekton.dev/"+night+"\npipelinerun.tekton.dev/"+u.runOf("slow")+"\n")
	message := u.kubectl("get", "pods", "--selector="+batchv1.JobNameLabel+"=slow",
		"--output=jsonpath={.items[*].status.containerStatuses[*].state.terminated.message}")
	u.mustContain(message, "Regression: comparing run "+u.runOf("slow"), "step time ", "worse than the median "+
		e.receipt.Curve.StepTime.Round(10*time.Microsecond).String()+" of 3 runs before; want at most 10.0% worse")
	picture := filepath.Join(u.TempDir(), "nightly.svg")
	out, _ := u.says(u.TempDir(), command.Done, "runs", "--trend", "--schedule=nightly", "--svg="+picture)
	u.mustContain(out, u.repo+": e2e/pace.py, by command on 2 nodes with 1 rank each", night+"  Succeeded", "  Regression  ",
		"of 3 runs before")
	if drawn, err := os.ReadFile(picture); err != nil || !strings.Contains(string(drawn), night+": step time") {
		u.Errorf("the picture does not show %s: %v", night, err)
	}
	u.nightlyRights(began)

	next := u
	next.steps = strings.Replace(u.steps, "/steps@", "/steps-of-tomorrow@", 1)
	next.installChanged()
	u.equal("the schedule's image",
		u.kubectl("get", "cronjob", nightlyName, "--output=jsonpath={.spec.jobTemplate.spec.template.spec.containers[*].image}"), next.steps)
	u.says(u.TempDir(), command.Done, "uninstall")
	u.equal("what uninstall left", u.kubectl("get", "cronjobs,roles,rolebindings,serviceaccounts", "--selector="+install.PartLabel,
		"--output=name"), "")
}

// schedule runs mlenv schedule install for a script whose steps take pace seconds.
func (u trainer) schedule(at time.Time, pace string) {
	u.Helper()
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		u.Fatal(err)
	}
	u.says(u.TempDir(), command.Done, "schedule", "install", "--at="+at.In(zone).Format("15:04"), "--time-zone="+zone.String(),
		"--param=repo-url="+u.repo, "--param=script=e2e/pace.py", "--param=launcher=command", "--param=gpus-per-node=1",
		"--param=check-fabric=false", "--param=env=PACE="+pace)
}

// takenBy makes a user hold the environment until the returned function releases it.
func (u trainer) takenBy(person string) (giveBack func()) {
	u.Helper()
	client := u.environment().Lease(command.TextLog(u.Output()))
	held, err := client.Acquire(u.Context(), lease.Request{Holder: lease.Holder{ID: "person", Display: person}, Duration: time.Hour})
	if err != nil {
		u.Fatal(err)
	}
	return func() {
		if err := client.Delete(u.Context(), held.UID()); err != nil {
			u.Fatal(err)
		}
	}
}

// due makes the CronJob controller believe that it missed the scheduled time.
func (u trainer) due(at time.Time) {
	u.Helper()
	u.kubectl("patch", "cronjob", nightlyName, "--subresource=status", "--type=merge",
		fmt.Sprintf(`--patch={"status":{"lastScheduleTime":%q}}`, at.Add(-time.Minute).UTC().Format(time.RFC3339)))
}

// runStarted waits until the PipelineRun exists.
func (u trainer) runStarted(name string) {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	err := kube.WatchUntil(ctx, "pipelinerun "+name, u.clients.Tekton.TektonV1().PipelineRuns(u.namespace), named(name),
		func(runs []*v1.PipelineRun) (bool, error) {
			return len(runs) > 0, nil
		})
	if err != nil {
		u.Fatal(err)
	}
}

// leaseTaken waits until the environment has a holder.
func (u trainer) leaseTaken() {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	err := kube.WatchUntil(ctx, "leases", u.clients.Kube.CoordinationV1().Leases(u.namespace), named(objects.DefaultName),
		func(leases []*coordinationv1.Lease) (bool, error) {
			return len(leases) > 0, nil
		})
	if err != nil {
		u.Fatal(err)
	}
}

// jobByHand starts the schedule as users do, and returns the log of the completed Job.
func (u trainer) jobByHand(name string) string {
	u.Helper()
	u.kubectl("create", "job", name, "--from=cronjob/"+nightlyName)
	u.waitFor("condition=complete", "job/"+name)
	return u.kubectl("logs", "job/"+name)
}

// jobAgain creates another Job for a scheduled time, as the controller does, and returns its log.
func (u trainer) jobAgain(at time.Time) string {
	u.Helper()
	cron, err := u.clients.Kube.BatchV1().CronJobs(u.namespace).Get(u.Context(), nightlyName, metav1.GetOptions{})
	if err != nil {
		u.Fatal(err)
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "again",
		Annotations: map[string]string{batchv1.CronJobScheduledTimestampAnnotation: at.Format(time.RFC3339)}}, Spec: cron.Spec.JobTemplate.Spec}
	if _, err := u.clients.Kube.BatchV1().Jobs(u.namespace).Create(u.Context(), job, metav1.CreateOptions{}); err != nil {
		u.Fatal(err)
	}
	u.waitFor("condition=complete", "job/again")
	return u.kubectl("logs", "job/again")
}

// runOf returns the name of the run of a Job that was created by hand.
func (u trainer) runOf(job string) string {
	u.Helper()
	made, err := time.Parse(time.RFC3339, u.kubectl("get", "job", job, "--output=jsonpath={.metadata.creationTimestamp}"))
	if err != nil {
		u.Fatal(err)
	}
	return nightRun(made)
}

// nightRun returns the name of the run of a scheduled time.
func nightRun(at time.Time) string { return nightlyName + "-" + at.UTC().Format("20060102-150405") }

// nightsBefore copies the receipt of one night as the receipts of earlier nights.
func (u trainer) nightsBefore(r receipt.Receipt, n int) {
	u.Helper()
	for i := range n {
		r.Started, r.Ended = r.Started.AddDate(0, 0, -1), r.Ended.AddDate(0, 0, -1)
		r.Run, r.RunUID = fmt.Sprintf("mlenv-nightly-before-%d", i), ""
		if err := receipt.Write(u.Context(), u.clients.Kube, r); err != nil {
			u.Fatal(err)
		}
	}
}

// nightlyRights fails unless the schedule's account was refused nothing and used every right of
// its Role.
func (u trainer) nightlyRights(since time.Time) {
	u.Helper()
	var role rbacv1.Role
	if err := json.Unmarshal([]byte(u.kubectl("get", "role", nightlyName, "--output=json")), &role); err != nil {
		u.Fatal(err)
	}
	given := rightsOf(role.Rules)
	// Server-side apply of a missing object needs the right to create too, but the audit log has
	// only the patch.
	delete(given, right{"", "configmaps", "create"})
	for _, request := range requestsOf(u.T, nightlyName, since) {
		if request.ObjectRef.Namespace != u.namespace {
			continue
		}
		if request.Annotations["authorization.k8s.io/decision"] == "forbid" {
			u.Errorf("%v was refused to the schedule", request.right())
		}
		delete(given, request.right())
	}
	for unused := range given {
		u.Errorf("the schedule did not use %v: remove it from its Role", unused)
	}
}
