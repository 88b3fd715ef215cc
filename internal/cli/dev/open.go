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
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

type opening struct {
	place
	service      agent.Service
	showPassword bool
	browser      bool
}

func openCommand() *cobra.Command {
	var o opening
	cmd := &cobra.Command{
		Use:   "open vscode|jupyter|tensorboard",
		Short: "Open a service of a kept environment in the browser",
		Long: `Open VS Code, Jupyter or TensorBoard, which run on node 0 where mlenv up was given --services, in the browser: by its
Route where it has one, or else by a port of this machine, which is forwarded until Ctrl-C. Printed are the address and
the command that shows the password or token, without which none of them lets anybody in.

Exit code 0: done; 1: the service does not run, or cannot be reached; 2: wrong usage.`,
		Example: `  mlenv open vscode
  mlenv open jupyter --show-password --browser=false`,
		ValidArgs: []string{"vscode", agent.Jupyter, agent.TensorBoard},
		Args: func(_ *cobra.Command, args []string) error {
			name := strings.Join(args, " ")
			if name == "vscode" {
				name = agent.CodeServer
			}
			var ok bool
			if o.service, ok = agent.FindService(name); !ok {
				return fmt.Errorf("service %q: want vscode, jupyter or tensorboard", name)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), step.Log(cmd)) },
	}
	flags := cmd.Flags()
	o.addTo(flags)
	flags.BoolVar(&o.showPassword, "show-password", false, "print the password or token itself, which wants the right to read the Secret")
	flags.BoolVar(&o.browser, "browser", true, "start the browser, where there is a terminal")
	step.AddLogFormat(cmd)
	return cmd
}

func (o *opening) run(ctx context.Context, log *slog.Logger) error {
	clients, set, detach, err := o.attach(ctx, log)
	if err != nil {
		return err
	}
	defer detach()
	if err := o.answers(ctx, clients, set); err != nil {
		return err
	}
	credential, err := o.credential(ctx, clients)
	if err != nil {
		return err
	}
	routes, err := routeclient.NewForConfig(clients.Config)
	if err != nil {
		return fmt.Errorf("making a client for Routes: %w", err)
	}
	if host := o.routeHost(ctx, clients.Namespace, routes); host != "" {
		o.show(log, "https://"+host+o.service.Path, credential)
		return nil
	}
	pod := objects.NamesOf(o.environment).PodName(0)
	port, wait, err := forward(ctx, log, o.service.Port, func(ctx context.Context) (net.Conn, error) {
		return kube.DialPod(ctx, clients, clients.Namespace, pod, o.service.Port)
	})
	if err != nil {
		return err
	}
	o.show(log, fmt.Sprintf("http://localhost:%d%s", port, o.service.Path), credential)
	log.Info("It is forwarded to this machine until Ctrl-C.")
	<-ctx.Done()
	wait()
	return nil
}

// answers is an error where the service does not run on node 0.
func (o *opening) answers(ctx context.Context, clients *kube.Clients, set nodes.Set) error {
	facts, err := set[0].Facts(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(facts.Services, func(s agent.ServiceStatus) bool { return s.Name == o.service.Name })
	if i < 0 {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "opening %s: environment %s/%s was made without it", o.service.Name, clients.Namespace, o.environment),
			"mlenv up %s -n %s --services=all, with what else it was made with; no pod is changed", o.environment, clients.Namespace)
	}
	if s := facts.Services[i]; !s.Answers {
		return fail.Advise(fmt.Errorf("opening %s: it does not answer: it is %s: %s", s.Name, s.State, cmp.Or(s.Problem, "it may just be starting")),
			"mlenv shell 0 -n %s --%s=%s -- tail %s", clients.Namespace, nameFlag, o.environment, cmp.Or(s.Log, agent.State+"/services/"+s.Name+".log"))
	}
	return nil
}

// credential says what lets people in: the command that shows it, or itself.
func (o *opening) credential(ctx context.Context, clients *kube.Clients) (string, error) {
	names := objects.NamesOf(o.environment)
	if !o.showPassword {
		return "the " + o.service.Credential + " that this shows: " + names.ShowCredential(clients.Namespace, o.service), nil
	}
	secret, err := clients.Kube.CoreV1().Secrets(clients.Namespace).Get(ctx, names.ServicesSecret, metav1.GetOptions{})
	if err != nil {
		return "", kube.Problem(fmt.Errorf("getting secret %s/%s: %w", clients.Namespace, names.ServicesSecret, err))
	}
	return o.service.Credential + " " + string(secret.Data[o.service.Key]), nil
}

// routeHost is the host of the service's Route, "" where it has none that a router took. Who
// may not read Routes has none.
func (o *opening) routeHost(ctx context.Context, namespace string, routes routeclient.RoutesGetter) string {
	route, err := routes.Routes(namespace).Get(ctx, objects.NamesOf(o.environment).Route(o.service.Name), metav1.GetOptions{})
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

func (o *opening) show(log *slog.Logger, address, credential string) {
	log.Info(fmt.Sprintf("%s: %s with %s", o.service.Name, address, credential))
	if o.browser && term.IsTerminal(int(os.Stdout.Fd())) {
		if err := startBrowser(address); err != nil {
			log.Info(fmt.Sprintf("No browser was started: %v", err))
		}
	}
}

// startBrowser gives the address, in which no password is, to whatever opens addresses here.
func startBrowser(address string) error {
	command := []string{"xdg-open", address}
	if runtime.GOOS == "darwin" {
		command[0] = "open"
	}
	if command[0] == "xdg-open" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("there is no display")
	}
	return exec.Command(command[0], command[1:]...).Start()
}
