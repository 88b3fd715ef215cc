// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	routev1 "github.com/openshift/api/route/v1"
	routeclient "github.com/openshift/client-go/route/clientset/versioned/typed/route/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
)

type openOptions struct {
	envflags.Flags
	service      agent.Service
	showPassword bool
	browser      bool
}

func openCommand() *cobra.Command {
	var o openOptions
	cmd := &cobra.Command{
		Use:   "open [ENVIRONMENT] vscode|jupyter|tensorboard",
		Short: "Open a service of a kept environment in the browser",
		Long: `Open VS Code, Jupyter or TensorBoard, which run on node 0, in the browser: through its Route, or else through a port of
this machine that mlenv forwards until Ctrl-C, under a host name that only this environment has. If the environment was
created without the service, mlenv starts it, which takes up to two minutes and changes no pod. mlenv prints the address
and the command that shows the password or token.

Exit code 0: done; 1: the service does not run, or cannot be reached; 2: wrong usage.`,
		Example: `  mlenv open vscode
  mlenv open h-kim jupyter --show-password --browser=false`,
		ValidArgs: []string{"vscode", agent.Jupyter, agent.TensorBoard},
		Args:      func(cmd *cobra.Command, args []string) error { return o.parse(cmd.Flags(), args) },
		RunE:      func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), command.Log(cmd)) },
	}
	flags := cmd.Flags()
	o.AddTo(flags, envflags.OnlyNamespace)
	flags.BoolVar(&o.showPassword, "show-password", false, "print the password or token; needs the right to read the Secret")
	flags.BoolVar(&o.browser, "browser", true, "start the browser, if this is a terminal")
	command.AddLogFormat(cmd)
	return cmd
}

func (o *openOptions) parse(flags *pflag.FlagSet, args []string) error {
	last := max(0, len(args)-1)
	name := strings.Join(args[last:], "")
	if name == "vscode" {
		name = agent.CodeServer
	}
	var known bool
	o.service, known = agent.FindService(name)
	return errors.Join(envflags.ParseName(flags, args[:last]), command.Want(known, "service %q: want vscode, jupyter or tensorboard", name))
}

func (o *openOptions) run(ctx context.Context, log *slog.Logger) error {
	clients, set, detach, err := attach(ctx, &o.Flags, log)
	if err != nil {
		return err
	}
	defer detach()
	if err := o.ready(ctx, provision.Deps{Clients: clients, Log: log}, set[0]); err != nil {
		return err
	}
	e := env.Of(clients, o.Environment)
	credential, err := o.credential(ctx, clients, e)
	if err != nil {
		return err
	}
	routes, err := routeclient.NewForConfig(clients.Config)
	if err != nil {
		return fmt.Errorf("creating a client for Routes: %w", err)
	}
	if host := o.routeHost(ctx, e, routes); host != "" {
		o.show(log, "https://"+host+o.service.Path, credential)
		return nil
	}
	host := e.LocalHost(clients.Config.Host)
	port, wait, err := serveOnLoopback(ctx, o.service.Port, newPerHost(log, host, func(ctx context.Context) (net.Conn, error) {
		return e.Forward(ctx, 0, o.service.Port)
	}))
	if err != nil {
		return err
	}
	o.show(log, fmt.Sprintf("http://%s:%d%s", host, port, o.service.Path), credential)
	log.Info("If your browser does not find the name, add it to the hosts file of this machine: 127.0.0.1 " + host)
	log.Info("The port is forwarded until Ctrl-C.")
	<-ctx.Done()
	wait()
	return nil
}

// ready starts the service if the environment has not got it, and fails unless it answers.
func (o *openOptions) ready(ctx context.Context, d provision.Deps, zero *agent.Client) error {
	facts, err := zero.Facts(ctx)
	if err != nil {
		return err
	}
	status := agent.ServiceStatus{}
	if i := slices.IndexFunc(facts.Services, func(s agent.ServiceStatus) bool { return s.Name == o.service.Name }); i >= 0 {
		status = facts.Services[i]
	} else {
		d.Log.Info(fmt.Sprintf("Environment %s/%s has no %s yet. Starting it on node 0; no pod changes.", d.Clients.Namespace, o.Environment,
			o.service.Name))
		if status, err = provision.AddService(ctx, d, o.Environment, o.service, zero); err != nil {
			return err
		}
	}
	at := fmt.Sprintf("-n %s --%s=%s", d.Clients.Namespace, envflags.NameFlag, o.Environment)
	switch {
	case status.Answers:
		return nil
	case status.Name == "":
		return fail.Advise(fail.Becausef(fail.AgentUnreachable, "opening %s: node 0 of environment %s/%s has not started it", o.service.Name,
			d.Clients.Namespace, o.Environment),
			"mlenv doctor %s", at)
	case status.State == agent.ServiceAbsent:
		return fail.Advise(fail.Becausef(fail.InvalidInput, "opening %s: %s", status.Name, status.Problem),
			"mlenv up %s -n %s --on-change=recreate --image=IMAGE, with an image that has it; docs/train/develop.md", o.Environment,
			d.Clients.Namespace)
	}
	return fail.Advise(fmt.Errorf("opening %s: it does not answer and is %s: %s", status.Name, status.State,
		cmp.Or(status.Problem, "it may still be starting")),
		"mlenv shell 0 %s -- tail %s", at, cmp.Or(status.Log, agent.State+"/services/"+status.Name+".log"))
}

// credential returns the password or token, or the command that shows it.
func (o *openOptions) credential(ctx context.Context, clients *kube.Clients, e env.Environment) (string, error) {
	if !o.showPassword {
		return "the " + o.service.Credential + " that this command prints: " + e.ShowCredential(o.service), nil
	}
	secret, err := clients.Kube.CoreV1().Secrets(e.Namespace).Get(ctx, e.ServicesSecret, metav1.GetOptions{})
	if err != nil {
		return "", kube.Problem(fmt.Errorf("getting secret %s/%s: %w", e.Namespace, e.ServicesSecret, err))
	}
	return o.service.Credential + " " + string(secret.Data[o.service.Key]), nil
}

// routeHost returns the host of the service's Route, "" if no router admits one or the user may not read it.
func (o *openOptions) routeHost(ctx context.Context, e env.Environment, routes routeclient.RoutesGetter) string {
	route, err := routes.Routes(e.Namespace).Get(ctx, e.RouteName(o.service.Name), metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, ingress := range route.Status.Ingress {
		if slices.ContainsFunc(ingress.Conditions, func(c routev1.RouteIngressCondition) bool {
			return c.Type == routev1.RouteAdmitted && c.Status == "False"
		}) {
			continue
		}
		if host := cmp.Or(ingress.Host, route.Spec.Host); host != "" {
			return host
		}
	}
	return ""
}

func (o *openOptions) show(log *slog.Logger, address, credential string) {
	log.Info(fmt.Sprintf("%s: %s with %s", o.service.Name, address, credential))
	if o.browser && term.IsTerminal(int(os.Stdout.Fd())) {
		if err := startBrowser(address); err != nil {
			log.Info(fmt.Sprintf("The browser did not start: %v", err))
		}
	}
}

func startBrowser(address string) error {
	program := []string{"xdg-open", address}
	if runtime.GOOS == "darwin" {
		program[0] = "open"
	}
	if program[0] == "xdg-open" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("no display")
	}
	return exec.Command(program[0], program[1:]...).Start()
}
