package agent

import (
	"slices"
	"time"
)

// ServicesDir holds the environment's Secret of services as files: ServicesKey,
// and each service's password or token under its key.
const ServicesDir = Home + "/services"

// ServicesKey is the key of the list of services that are wanted, with commas.
const ServicesKey = "services"

// TensorBoardDir is what TensorBoard shows.
const TensorBoardDir = Workspace + "/tensorboard"

// Names of the services.
const (
	CodeServer  = "code-server"
	Jupyter     = "jupyter"
	TensorBoard = "tensorboard"
)

// Service is a program for people that the agent of node 0 runs beside jobs, where
// it is asked for.
type Service struct {
	Name string
	// Port that people reach it on.
	Port int
	// Credential is password or token, and Key where it is in the Secret.
	Credential, Key string
	// Path of the page to open.
	Path string
}

// Services are all that there are.
func Services() []Service {
	return []Service{
		{Name: CodeServer, Port: 8080, Credential: "password", Key: "code-server-password", Path: "/"},
		{Name: Jupyter, Port: 8888, Credential: "token", Key: "jupyter-token", Path: "/lab"},
		{Name: TensorBoard, Port: 6006, Credential: "token", Key: "tensorboard-token", Path: "/"},
	}
}

// FindService returns the service of that name.
func FindService(name string) (Service, bool) {
	all := Services()
	i := slices.IndexFunc(all, func(s Service) bool { return s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return all[i], true
}

// ServiceState is where a service is.
type ServiceState string

// The service states.
const (
	// ServiceStarting: it is being started for the first time.
	ServiceStarting ServiceState = "starting"
	// ServiceRunning: its process lives.
	ServiceRunning ServiceState = "running"
	// ServiceRestarting: it ended and is started again after a pause.
	ServiceRestarting ServiceState = "restarting"
	// ServiceAbsent: the training image does not have it.
	ServiceAbsent ServiceState = "absent"
	// ServiceRefused: it has no password or token, and without one it is not started.
	ServiceRefused ServiceState = "refused"
)

// ServiceStatus is one service that is asked for.
type ServiceStatus struct {
	Name  string       `json:"name"`
	Port  int          `json:"port"`
	State ServiceState `json:"state"`
	// Answers is true where it accepts connections.
	Answers bool `json:"answers,omitempty"`
	// PID and Started are of the process that lives.
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Restarts counts how often it was started again.
	Restarts int `json:"restarts,omitempty"`
	// Problem says why it does not run, or how it ended the last time.
	Problem string `json:"problem,omitempty"`
	// Log is the file of its output.
	Log string `json:"log,omitempty"`
}
