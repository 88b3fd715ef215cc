// SPDX-License-Identifier: Apache-2.0

package agent

// ServicesDir holds the environment's Secret of services as files: ServicesKey,
// and each service's password or token under its key.
const ServicesDir = Home + "/services"

// ServicesKey is the key of the comma-separated list of services.
const ServicesKey = "services"

// TensorBoardDir is the folder of TensorBoard's logs.
const TensorBoardDir = Workspace + "/tensorboard"

// Names of the services.
const (
	CodeServer  = "code-server"
	Jupyter     = "jupyter"
	TensorBoard = "tensorboard"
)

// Service is a program that the agent of node 0 runs for users in parallel to jobs, on request.
type Service struct {
	Name string
	// Port for users.
	Port int
	// Credential is password or token, and Key its key in the Secret.
	Credential, Key string
	// Path of the page to open.
	Path string
}

// Services returns all services.
func Services() []Service {
	return []Service{
		{Name: CodeServer, Port: 8080, Credential: "password", Key: "code-server-password", Path: "/"},
		{Name: Jupyter, Port: 8888, Credential: "token", Key: "jupyter-token", Path: "/lab"},
		{Name: TensorBoard, Port: 6006, Credential: "token", Key: "tensorboard-token", Path: "/"},
	}
}

// FindService returns the service of that name.
func FindService(name string) (Service, bool) {
	for _, s := range Services() {
		if s.Name == name {
			return s, true
		}
	}
	return Service{}, false
}

// ServiceState is the state of a service.
type ServiceState string

// The service states.
const (
	// ServiceStarting: its first start is in progress.
	ServiceStarting ServiceState = "starting"
	// ServiceRunning: its process lives.
	ServiceRunning ServiceState = "running"
	// ServiceRestarting: it ended and restarts after a pause.
	ServiceRestarting ServiceState = "restarting"
	// ServiceAbsent: the training image does not have it.
	ServiceAbsent ServiceState = "absent"
	// ServiceRefused: it does not start without a password or token.
	ServiceRefused ServiceState = "refused"
)

// ServiceStatus is the status of a requested service.
type ServiceStatus struct {
	Name  string       `json:"name"`
	Port  int          `json:"port"`
	State ServiceState `json:"state"`
	// Answers is true if it accepts connections.
	Answers bool `json:"answers,omitempty"`
	// PID identifies the live process, 0 for none.
	PID int `json:"pid,omitempty"`
	// Restarts counts its restarts.
	Restarts int `json:"restarts,omitempty"`
	// Problem is why it does not run, or how it ended last.
	Problem string `json:"problem,omitempty"`
	// Log is the path of its output.
	Log string `json:"log,omitempty"`
}
