package kube

import (
	"context"
	"encoding/json"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Ask decodes what the API server answers at a path for which there is no typed client. It reports whether there was an answer;
// client-go's fake has none.
func Ask(ctx context.Context, client kubernetes.Interface, answer any, path ...string) bool {
	server, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || server == nil {
		return false
	}
	content, err := server.Get().AbsPath(path...).DoRaw(ctx)
	return err == nil && json.Unmarshal(content, answer) == nil
}
