package nccl

import "strings"

// logSubsystems are those of which the log shows who talks to whom over what.
const logSubsystems = "INIT,BOOTSTRAP,ENV,NET"

// SocketsOnly are the variables with which ranks talk over TCP sockets alone. interfaces is a value of
// NCCL_SOCKET_IFNAME; if it is empty, NCCL chooses.
func SocketsOnly(interfaces string) map[string]string {
	env := map[string]string{"NCCL_IB_DISABLE": "1"}
	if interfaces != "" {
		env["NCCL_SOCKET_IFNAME"] = interfaces
	}
	if gloo := glooInterface(interfaces); gloo != "" {
		env["GLOO_SOCKET_IFNAME"] = gloo
	}
	return env
}

// glooInterface is the interface for gloo if NCCL's setting names one. gloo
// takes one whole name, NCCL a list of prefixes ("eth"), of names ("=eth0") or of
// exclusions ("^lo,docker0"). What an exclusion leaves over differs by node: there
// the agent finds the interface that has the pod's address.
func glooInterface(interfaces string) string {
	if strings.HasPrefix(interfaces, "^") {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(interfaces, "="), ",")
	return first
}

// LogTo has NCCL write what it does into files that begin with prefix, one for each process. It leaves an
// environment that already names a file as it is.
func LogTo(env map[string]string, prefix string) {
	if env["NCCL_DEBUG_FILE"] != "" {
		return
	}
	// NCCL puts host and process ID in.
	env["NCCL_DEBUG_FILE"] = prefix + "%h-%p.log"
	if level := strings.ToUpper(env["NCCL_DEBUG"]); level != "INFO" && level != "ABORT" && level != "TRACE" {
		env["NCCL_DEBUG"] = "INFO"
	}
	switch given := env["NCCL_DEBUG_SUBSYS"]; {
	case given == "":
		env["NCCL_DEBUG_SUBSYS"] = logSubsystems
	case !strings.HasPrefix(given, "^"):
		env["NCCL_DEBUG_SUBSYS"] = logSubsystems + "," + given
	}
}
