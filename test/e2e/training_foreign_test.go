//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// foreignPods tests that check-fabric measures pods that this project did not create, and leaves
// no process and no file in them, even if it is killed in the middle.
func foreignPods(u trainer) {
	u.awaitPullSecret()
	u.apply("foreign-pods.yaml", map[string]string{"REGISTRY": registryHost})
	u.waitFor("condition=Ready", "pod/foreign-1")
	u.waitFor("condition=Ready", "pod/foreign-2")
	check := func(flags ...string) *exec.Cmd {
		return exec.CommandContext(u.Context(), u.program,
			append([]string{"check-fabric", "--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "--pods=app=foreign", "--timeout=60s"}, flags...)...)
	}
	out, err := check().CombinedOutput()
	if err != nil {
		u.Errorf("check-fabric: %v", err)
	}
	u.mustContain(string(out), "Node 1 is pod foreign-2", "Fabric: pass: 2 nodes of 1 rank each, gloo over", "The agents are gone from the pods.")
	for _, pod := range []string{"foreign-1", "foreign-2"} {
		u.untouched(pod)
	}

	// The killed command cannot notify the agents.
	const timeForTheMeasurementToBegin = 3 * time.Minute
	ctx, cancel := context.WithTimeout(u.Context(), timeForTheMeasurementToBegin)
	defer cancel()
	killed := check("--idle=10s")
	said := &finder{text: "Measuring 2 nodes", done: func() {
		if err := killed.Process.Signal(os.Kill); err != nil {
			u.Error(err)
		}
	}}
	killed.Stdout, killed.Stderr = said, said
	if err := killed.Run(); err == nil || !said.seen {
		u.Fatalf("check-fabric, killed during the measurement: %v\n%s", err, said.all.String())
	}
	agents := map[string]string{}
	for _, pod := range []string{"foreign-1", "foreign-2"} {
		agents[pod] = strings.TrimSpace(u.kubectl("exec", pod, "--", "sh", "-c",
			`for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline | grep -q '[m]lenv-agent guest' && echo ${p#/proc/}; done; :`))
		if agents[pod] == "" {
			u.Fatalf("no agent runs in %s although its check was killed just now", pod)
		}
	}
	for pod, agent := range agents {
		if out, err := exec.CommandContext(ctx, stateDir+"/bin/kubectl", "--kubeconfig="+kubeconfig, "--namespace="+u.namespace,
			"exec", pod, "--", "tail", "--pid="+agent, "--follow", "/dev/null").CombinedOutput(); err != nil {
			u.Fatalf("waiting for the agent in %s to end: %v\n%s", pod, err, out)
		}
		u.untouched(pod)
	}
}

// untouched fails unless a pod has only its own process, no zombie, and no file of an agent.
func (u trainer) untouched(pod string) {
	u.Helper()
	processes := strings.Fields(u.kubectl("exec", pod, "--", "sh", "-c", "echo /proc/[0-9]*"))
	if len(processes) != 2 { // sleep, and the shell that lists them
		u.Errorf("processes in %s: %v, want its own and the one that lists them\n%s", pod, processes, u.kubectl("exec", pod, "--", "sh", "-c", "head -n 3 /proc/[0-9]*/status"))
	}
	u.equal("files in "+pod, u.kubectl("exec", pod, "--", "sh", "-c", "find / -path /proc -prune -o -name 'mlenv-guest-*' -print 2>/dev/null; :"), "")
}
