// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// allServices requests all services.
const allServices = "--param=services=all"

// developmentServices uses all services of the agent, in an image that has them, with a real
// browser and a debugger.
func developmentServices(image string) func(trainer) {
	return func(u trainer) {
		d := desk{trainer: u, image: image}
		log := d.provision(allServices)
		d.credentials(log)
		d.reachedThroughTheService()
		d.changedWithoutAnotherPod()
		ports, end := d.forward("service/ml-dev-env", 8080, 8888, 6006)
		d.inTheBrowser(ports)
		d.startedAgain(ports[8888])
		end()
		d.debugger()
		for key, value := range d.secrets {
			d.nowhereBut(d.environment().ServicesSecret, value)
			if strings.Contains(log, value) {
				u.Errorf("the log of provision contains %s", key)
			}
		}
		d.taken("services=none")
		d.opened()
		u.enters(u.project(map[string]string{"train.py": "print('trains', flush=True)\n"}), "", successorsInEditors()...)
		u.task("teardown")
	}
}

// desk is an environment for development.
type desk struct {
	trainer
	image string
	// secrets has the passwords and tokens by key.
	secrets map[string]string
}

// task runs a single Task, which must succeed, and returns its log.
func (u trainer) task(name string, flags ...string) string {
	u.Helper()
	started := u.startTkn("task", "mlenv-"+name, flags...)
	ended, results := u.taskEnd(started)
	if !ended.IsSuccessful() {
		u.Fatalf("task %s: %s: %s", name, results["reason"], results["message"])
	}
	return u.kubectl("logs", ended.Status.PodName, "--container=step-"+name)
}

// provision sends the same request each time, except for its flags.
func (d *desk) provision(flags ...string) string {
	d.Helper()
	return d.task("provision", append([]string{"--param=nodes=2", oneGPU, "--param=keep-for=30m", "--param=image=" + d.image}, flags...)...)
}

// credentials reads the passwords and tokens with the commands that provision printed.
func (d *desk) credentials(log string) {
	d.Helper()
	host := d.environment().LocalHost("10.223.0.2:6443") // as clusters/local.yaml names it
	d.mustContain(log, "Services on node 0 are reached by: kubectl port-forward service/ml-dev-env 8080 8888 6006 -n "+d.namespace,
		"code-server: http://"+host+":8080/ with the password", "jupyter: http://"+host+":8888/lab with the token", "tensorboard: http://"+host+
			":6006/ with the token")
	d.secrets = map[string]string{}
	for _, s := range agent.Services() {
		command := fmt.Sprintf(`get secret ml-dev-env-services -n %s -o go-template='{{index .data "%s" | base64decode}}'`, d.namespace, s.Key)
		d.mustContain(log, "kubectl "+command)
		out, err := run(d.T, nil, "sh", "-c", stateDir+"/bin/kubectl "+command)
		if err != nil || len(out) < 20 {
			d.Fatalf("kubectl %s: %v: %q", command, err, out)
		}
		d.secrets[s.Key] = out
	}
}

// reachedThroughTheService connects from the other node by the Service's name: every service
// requires its password or token.
func (d *desk) reachedThroughTheService() {
	d.Helper()
	const ask = `
import sys, urllib.error, urllib.parse, urllib.request
seconds_for_an_answer = 20
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments): return None
for line in sys.stdin:
    url, authorization, form = line.rstrip("\n").split("\t")
    request = urllib.request.Request(url, data=form.encode() or None, headers={"Authorization": authorization} if authorization else {})
    try:
        answer = urllib.request.build_opener(Stay).open(request, timeout=seconds_for_an_answer)
        print(answer.status, "")
    except urllib.error.HTTPError as error:
        print(error.code, error.headers.get("Location", ""))
    except urllib.error.URLError as error:
        print(error.reason)
`
	var questions, want []string
	expect := func(url, token, form, answer string) {
		authorization := ""
		if token != "" {
			authorization = "Bearer " + token
		}
		questions, want = append(questions, url+"\t"+authorization+"\t"+form), append(want, answer)
	}
	at := func(port int) string { return fmt.Sprintf("http://ml-dev-env.%s.svc:%d", d.namespace, port) }
	jupyter, tensorboard, password := d.secrets["jupyter-token"], d.secrets["tensorboard-token"], d.secrets["code-server-password"]
	expect(at(8080)+"/", "", "", "302 ./login")
	expect(at(8080)+"/login", "", "password=wrong", "200 ")
	expect(at(8080)+"/login", "", "password="+password, "302 ./")
	for _, wrong := range []string{"", "wrong", password} {
		expect(at(8888)+"/api/contents", wrong, "", "401 ")
		expect(at(6006)+"/data/environment", wrong, "", "401 ")
	}
	expect(at(8888)+"/api/contents", jupyter, "", "200 ")
	expect(at(8888)+"/api/contents?token="+jupyter, "", "", "200 ")
	expect(at(6006)+"/data/environment", tensorboard, "", "200 ")
	expect(at(6006)+"/data/environment", jupyter, "", "401 ")
	// Workers have no services.
	for _, port := range []int{8080, 8888, 6006} {
		expect(fmt.Sprintf("http://ml-dev-env-1.ml-dev-env-headless:%d/", port), "", "", "[Errno 111] Connection refused")
	}
	cmd := exec.CommandContext(d.Context(), stateDir+"/bin/kubectl", "--kubeconfig="+kubeconfig, "--namespace="+d.namespace, "exec", "--stdin",
		"ml-dev-env-1", "--container=train", "--", "python3", "-c", ask)
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.Fatalf("connecting from node 1: %v: %s", err, out)
	}
	d.equal("answers through the Service", string(out), strings.Join(want, "\n")+"\n")
}

// changedWithoutAnotherPod provisions again with two services, then with all, and keeps the pods.
func (d *desk) changedWithoutAnotherPod() {
	d.Helper()
	pods := func() string {
		return d.kubectl("get", "pods", "--selector="+ours, "--output=jsonpath={.items[*].metadata.uid}")
	}
	before := pods()
	log := d.provision("--param=services=jupyter,tensorboard")
	d.mustContain(log, "The environment exists already, as requested.", "kubectl port-forward service/ml-dev-env 8888 6006 -n")
	d.equal("the Service's ports", d.kubectl("get", "service", "ml-dev-env", "--output=jsonpath={.spec.ports[*].port}"), "8888 6006")
	known := d.secrets
	d.credentials(d.provision(allServices))
	d.equal("the passwords", fmt.Sprint(d.secrets), fmt.Sprint(known))
	d.equal("the pods", pods(), before)
}

// forward runs kubectl port-forward to ports of a pod or Service and returns the ports on this
// machine; end ends it.
func (u user) forward(to string, ports ...int) (local map[int]string, end func()) {
	u.Helper()
	args := []string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "port-forward", "--address=127.0.0.1", to}
	for _, port := range ports {
		args = append(args, fmt.Sprintf(":%d", port))
	}
	ctx, cancel := context.WithCancel(u.Context())
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		u.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	end = func() {
		cancel()
		_ = cmd.Wait() // the test itself killed it
	}
	u.Cleanup(end)
	local = map[int]string{}
	for lines := bufio.NewScanner(stdout); len(local) < len(ports) && lines.Scan(); {
		if m := forwarding.FindStringSubmatch(lines.Text()); m != nil {
			port, err := strconv.Atoi(lines.Text()[strings.LastIndex(lines.Text(), " ")+1:])
			if err != nil {
				u.Fatalf("port-forward printed %q", lines.Text())
			}
			local[port] = m[1]
		}
	}
	if len(local) < len(ports) {
		u.Fatalf("port-forward to %s forwards %v", to, local)
	}
	return local, end
}

// startedAgain kills a service and waits until it answers again.
func (d *desk) startedAgain(jupyter string) {
	d.Helper()
	d.kubectl("exec", "ml-dev-env-0", "--container=train", "--", "python3", "-c", `
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: command = open(f"/proc/{pid}/cmdline").read()
    except OSError: continue
    if "--no-browser" in command.split("\0"): os.kill(int(pid), signal.SIGKILL)`)
	ctx, cancel := d.within(timeForTheObjectToChange)
	defer cancel()
	for ticks := time.Tick(500 * time.Millisecond); ; {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+jupyter+"/api/status?token="+d.secrets["jupyter-token"], nil)
		if err != nil {
			d.Fatal(err)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ticks:
		case <-ctx.Done():
			d.Fatal("jupyter was killed and does not answer again")
		}
	}
	d.mustContain(d.kubectl("logs", "ml-dev-env-0", "--container=train"), "Service jupyter is started again in 1s: it ended with "+
		"signal: killed")
}

// taken provisions without services, and waits until no service answers.
func (d *desk) taken(param string) {
	d.Helper()
	d.provision("--param=" + param)
	if out, err := d.try("get", "service", "ml-dev-env"); err == nil {
		d.Errorf("found a Service without services: %s", out)
	}
	for _, s := range agent.Services() {
		d.waitLog("ml-dev-env-0", "train", "Service "+s.Name+" is stopped")
	}
}

// opened opens JupyterLab in the environment, which has no service: mlenv open starts it, and forwards its port. At the same time mlenv
// port-forward forwards the same port of the node.
func (d *desk) opened() {
	d.Helper()
	ctx, cancel := d.within(timeForTheObjectToChange)
	defer cancel()
	text, end := d.matching(ctx, d.TempDir(), regexp.MustCompile(`jupyter: (\S+)/lab with token (\S+)`), "open", "jupyter", "--show-password",
		"--browser=false")
	defer end()
	address, token := text[1], text[2]
	d.equal("the token of Jupyter", token, d.secrets["jupyter-token"])
	text, end = d.matching(ctx, d.TempDir(), regexp.MustCompile(`localhost:(\d+) leads to port 8888 of node 0`), "port-forward", "8888")
	defer end()
	port := text[1]
	// The resolver need not know names below localhost.
	at, err := url.Parse(address)
	if err != nil {
		d.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1:" + at.Port(), "127.0.0.1:" + port} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/api/status?token="+token, nil)
		if err != nil {
			d.Fatal(err)
		}
		request.Host = at.Host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			d.Fatalf("JupyterLab by %s: %v", host, err)
		}
		response.Body.Close()
		d.equal("JupyterLab by "+host, response.Status, "200 OK")
	}
	d.equal("the Service's ports", d.kubectl("get", "service", "ml-dev-env", "--output=jsonpath={.spec.ports[*].port}"), "8888")
}

// inTheBrowser logs in to all three services and uses them.
func (d *desk) inTheBrowser(ports map[int]string) {
	d.Helper()
	// A container has no user namespaces for Chromium's sandbox.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1280, 900))
	ctx, cancel := chromedp.NewExecAllocator(d.Context(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	// The browser runs until the context of the first run is done.
	if err := chromedp.Run(ctx); err != nil {
		d.Fatalf("starting Chromium: %v", err)
	}
	tab := ctx
	// Another tab, because an editor asks for confirmation before it leaves its page.
	newTab := func() {
		var cancel context.CancelFunc
		tab, cancel = chromedp.NewContext(ctx)
		d.Cleanup(cancel)
	}
	do := func(what string, actions ...chromedp.Action) {
		d.Helper()
		if err := chromedp.Run(tab); err != nil {
			d.Fatalf("%s: %v", what, err)
		}
		const timeForThePageToShowIt = 5 * time.Minute
		ctx, cancel := context.WithTimeout(tab, timeForThePageToShowIt)
		defer cancel()
		if err := chromedp.Run(ctx, actions...); err != nil {
			d.Fatalf("%s: %v", what, err)
		}
	}
	terminal := `echo "nccl $NCCL_IB_DISABLE of $MASTER_ADDR, ${PASSWORD-no password}"`
	says := "nccl 1 of ml-dev-env-0.ml-dev-env-headless." + d.namespace + ".svc, no password"

	do("logging in to code-server",
		chromedp.Navigate("http://"+ports[8080]+"/"),
		chromedp.SendKeys(`input[name="password"]`, d.secrets["code-server-password"]+"\r"),
		chromedp.WaitVisible(`.monaco-workbench .explorer-viewlet`),
	)
	do("a terminal of code-server",
		chromedp.WaitVisible(`.explorer-viewlet .monaco-list-row`),
		chromedp.KeyEvent("`", chromedp.KeyModifiers(input.ModifierCtrl)),
		// The tab has the shell's name when the shell runs.
		chromedp.WaitReady(`.xterm-helper-textarea[aria-label*="bash"]`),
		chromedp.Focus(`.xterm-helper-textarea`),
		input.InsertText(terminal+" > /workspace/terminal.new && mv /workspace/terminal.new /workspace/terminal"),
		chromedp.KeyEvent("\r"),
	)
	const tenthsForTheTerminalToRun = "3000"
	d.equal("a terminal of code-server says", d.kubectl("exec", "ml-dev-env-0", "--container=train", "--", "sh", "-c",
		"for tenths in $(seq "+tenthsForTheTerminalToRun+"); do [ -e /workspace/terminal ] && break; sleep 0.1; done; "+
			"cat /workspace/terminal"), says+"\n")

	newTab()
	do("JupyterLab without a token", chromedp.Navigate("http://"+ports[8888]+"/lab"), chromedp.WaitVisible(`input[name="token"]`))
	var address, kernel, shell string
	do("JupyterLab by its token",
		chromedp.Navigate("http://"+ports[8888]+"/lab?token="+d.secrets["jupyter-token"]),
		chromedp.WaitVisible(`#jp-main-dock-panel .jp-Launcher`),
		chromedp.Location(&address),
		chromedp.Evaluate(kernelSays, &kernel, awaited),
		chromedp.Evaluate(fmt.Sprintf(terminalSays, strconv.Quote(terminal)), &shell, awaited),
	)
	if strings.Contains(address, d.secrets["jupyter-token"]) {
		d.Errorf("the token stays in the address %s", address)
	}
	d.equal("a kernel says", kernel, says+"\n")
	d.mustContain(shell, says)

	newTab()
	d.kubectl("exec", "ml-dev-env-0", "--container=train", "--", "/mlenv/bin/mlenv-agent", "exec", "python3", "-c",
		`from torch.utils.tensorboard import SummaryWriter as W; w = W("/workspace/tensorboard/try"); [w.add_scalar("loss", 1 / (i + 1), i) `+
			`for i in range(5)]; w.close()`)
	do("TensorBoard by its token",
		chromedp.Navigate("http://"+ports[6006]+"/"),
		chromedp.SendKeys(`input[name="token"]`, d.secrets["tensorboard-token"]+"\r"),
		chromedp.WaitVisible(`tb-webapp`),
		chromedp.Evaluate(runSeen, nil, awaited),
	)
}

// awaited waits for a promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// runSeen waits until TensorBoard has read the run.
const runSeen = `new Promise(async resolve => {
	while (!(await (await fetch("/data/runs")).json()).includes("try")) await new Promise(later => setTimeout(later, 500));
	resolve(true);
})`

// kernelSays runs a line of Python in a new kernel, through the web socket.
const kernelSays = `new Promise(async (resolve, reject) => {
	const kernel = await (await fetch("/api/kernels", {method: "POST", body: "{}"})).json();
	const socket = new WebSocket("ws://" + location.host + "/api/kernels/" + kernel.id + "/channels");
	const code = 'import os; print("nccl", os.environ["NCCL_IB_DISABLE"], "of", os.environ["MASTER_ADDR"] + ",", ' +
		'os.environ.get("PASSWORD", "no password"))';
	socket.onerror = reject;
	socket.onopen = () => socket.send(JSON.stringify({channel: "shell", header: {msg_id: "1", msg_type: "execute_request",
		username: "", session: "1", version: "5.3"},
		parent_header: {}, metadata: {}, content: {code: code, silent: false, store_history: false,
		user_expressions: {}, allow_stdin: false}, buffers: []}));
	socket.onmessage = m => {
		const said = JSON.parse(m.data);
		if (said.msg_type === "stream") resolve(said.content.text);
		if (said.msg_type === "error") reject(said.content.evalue); };
})`

// terminalSays runs a line in a new terminal and waits for the next line of output.
const terminalSays = `new Promise(async (resolve, reject) => {
	const terminal = await (await fetch("/api/terminals", {method: "POST", body: "{}"})).json();
	const socket = new WebSocket("ws://" + location.host + "/terminals/websocket/" + terminal.name);
	let text = "";
	socket.onerror = reject;
	socket.onopen = () => socket.send(JSON.stringify(["stdin", %s + "; echo en''d\r"]));
	socket.onmessage = m => {
		const [kind, said] = JSON.parse(m.data);
		if (kind === "stdout") text += said;
		if (text.includes("end")) resolve(text); };
})`

// debugger makes one of two ranks wait, and attaches to it as an editor does.
func (d *desk) debugger() {
	d.Helper()
	d.task("sync-repo", "--param=repo-url="+d.repo)
	started := d.startTkn("task", "mlenv-train", "--param=script=e2e/debugged.py", "--param=launcher=torchrun", "--param=debug-rank=1")
	ctx, cancel := d.within(timeForARunToEnd)
	defer cancel()
	pod := d.taskPod(ctx, started, "train")
	command := "kubectl port-forward pod/ml-dev-env-1 5678 -n " + d.namespace
	d.waitLog(pod, "step-train", "Rank 1 waits on node 1 for a debugger")
	d.mustContain(d.kubectl("logs", pod, "--container=step-train"), command)
	ports, end := d.forward("pod/ml-dev-env-1", agent.DebugPort)
	defer end()
	editor := d.attach(ctx, ports[agent.DebugPort])
	defer editor.conn.Close()
	ended, results := d.taskEnd(started)
	if !ended.IsSuccessful() {
		d.Errorf("the debugged training: %s: %s", results["reason"], results["message"])
	}
	log := d.kubectl("logs", pod, "--container=step-train")
	d.mustContain(log, "[0 0] rank 0 is done", "[1 1] rank 1 is done")
	if strings.Index(log, "[1 1] rank 1 begins") < strings.Index(log, command) {
		d.Errorf("rank 1 did not wait:\n%s", log)
	}
}
