// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
)

// internalRegistries are the names of OpenShift's own registry: its Service's, and the Route's that an administrator may expose.
var internalRegistries = []string{"image-registry.openshift-image-registry.svc", "default-route-openshift-image-registry."}

// InternalImage returns the namespace and the image stream of an image in OpenShift's own registry. ok is false for another image.
func InternalImage(image string) (namespace, stream string, ok bool) {
	registry, repository, _ := strings.Cut(image, "/")
	for _, known := range internalRegistries {
		ok = ok || strings.HasPrefix(registry, known)
	}
	namespace, name, two := strings.Cut(repository, "/")
	if !ok || !two || namespace == "" || strings.Contains(name, "/") {
		return "", "", false
	}
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return namespace, name, name != ""
}

// AllowPull returns the command that lets all service accounts of a namespace pull the images of another one.
func AllowPull(namespace, from string) string {
	return fmt.Sprintf("oc policy add-role-to-group system:image-puller system:serviceaccounts:%s -n %s", namespace, from)
}
